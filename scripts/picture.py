"""Draw the terminal session in the README from a run of the quickstart.

    nox -s picture

The picture loads nothing from the network: it uses the reader's monospaced font.
"""

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "quickstart.svg"
COMMAND = ("examples/quickstart.py",)
COLUMNS = 104
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def main() -> None:
    """Run the quickstart and write the picture."""
    done = subprocess.run(
        [sys.executable, *COMMAND],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), ("python " + " ".join(COMMAND), "bold")))
    for line in done.stdout.splitlines():
        console.print(styled(line), no_wrap=True, overflow="ellipsis", crop=True)
    picture = console.export_svg(title="agentpay", theme=MONOKAI, unique_id="quickstart")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(without_network(picture), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))


def styled(line: str) -> Text:
    """Return a line of output with colours for headings, successes and rejections."""
    if not line.startswith(" "):
        return Text(line, style="bold cyan")
    text = Text(line)
    text.highlight_regex(r"\bsettled\b|\bTrue\b", "green")
    text.highlight_regex(r"\bmax_\w+(?= is)|\brejection\b.*", "red")
    return text


def without_network(picture: str) -> str:
    """Return the picture without references to remote fonts."""
    picture = re.sub(r"<!--.*?-->\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r"@font-face\s*\{[^}]*\}\s*", "", picture)
    picture = re.sub(r"font-family: Fira Code, monospace;", f"font-family: {FONTS};", picture)
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


if __name__ == "__main__":
    main()
