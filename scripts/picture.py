"""Draw the terminals of the documentation from runs of quickstart, demo and listen.

    nox -s picture

The pictures load nothing from the network: they use the reader's monospaced font.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from agentpay import PolicyViolationError
from agentpay_server import AgentPayServer

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COLUMNS = 104
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def main() -> None:
    """Run the programs and draw what they print."""
    draw("quickstart", "python examples/quickstart.py", printed("examples/quickstart.py"), styled)
    demo = ("demo", "--port", "0", "--seed", "7", "--steps", "14", "--interval", "0", "--no-dashboard")
    draw("demo", "agentpay-server demo --seed 7", printed("-m", "agentpay_server", *demo), highlighted)
    draw("listen", "agentpay listen --forward-to http://127.0.0.1:3000/hooks", listened(), highlighted)


def draw(name: str, command: str, lines: Sequence[str], style: Callable[[str], Text]) -> None:
    """Draw a terminal with a command and the lines that it prints."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for line in lines:
        console.print(style(line), overflow="fold")
    picture = console.export_svg(title="agentpay", theme=MONOKAI, unique_id=name)
    path = IMAGES / f"{name}.svg"
    path.write_text(without_network(picture), encoding="utf-8")
    print(path.relative_to(ROOT))


def printed(*arguments: str, code: int = 0) -> list[str]:
    """Return the lines that a Python program prints on standard output."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode != code:
        raise SystemExit(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()


def listened() -> list[str]:
    """Return the lines of `listen` for a few events, the first of which the receiver refuses."""
    statuses = iter([503])

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(next(statuses, 200))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with AgentPayServer(clock="system") as server, HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}/hooks"
        listen = ("listen", "--forward-to", url, "--secret", "whsec_picture", "--interval", "0.05")
        environment = {
            **os.environ,
            "AGENTPAY_BASE_URL": server.listen(),
            "AGENTPAY_API_KEY": server.operator_key,
        }
        with subprocess.Popen(
            [sys.executable, "-m", "agentpay.cli", *listen],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            if process.stdout is None or process.stderr is None:
                raise SystemExit("listen has no output")
            process.stderr.readline()
            operator = server.client()
            bot, shop = (operator.accounts.create(name=name).account_id for name in ("Bot", "Shop"))
            server.sandbox.fund(bot, "10")
            operator.policies.update(bot, max_single_transfer=2)
            for amount in (1, 2, 3):
                with contextlib.suppress(PolicyViolationError):
                    operator.transfers.create(from_=bot, to=shop, amount=amount)
            lines = [process.stdout.readline().rstrip() for _ in range(5)]
            process.terminate()
        receiver.shutdown()
    return lines


def highlighted(line: str) -> Text:
    """Return a line of output with colours for statuses."""
    # A key of a server that has ended, but keys look best hidden.
    shown = re.sub(r"(ap_operator_)\w+", r"\1…", line)
    text = Text(re.sub(r"(BASE_URL=http://127.0.0.1:)\d+", r"\g<1>8402", shown))
    if not line.startswith("  "):
        # The lines that say what to try name events and statuses too.
        text.highlight_regex(r"\b(settled|delivered|200|201)\b", "green")
        text.highlight_regex(r"\b(pending_approval|retry in \d+ s)\b", "yellow")
        text.highlight_regex(r"\b(rejected|refused|503)\b|-> 402\b|^E .*", "red")
    return text


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
