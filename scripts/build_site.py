"""Build the site of the documentation into `site/`, with the version of the packages in its footer.

    python scripts/build_site.py

Once the project has a home (`scripts/home.py`), pages have a link to edit them. Everything else is in
`zensical.toml`.
"""

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

from home import UNDECIDED, home
from release import version

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = ROOT / "zensical.toml"
_MARK = "[project]\n"


def configuration(text: str, *, number: str, repository: str | None) -> str:
    """Return the configuration with a version, and with the address of the repository if there is one.

    Args:
        text: the content of `zensical.toml`.
        number: the version.
        repository: the address, such as `https://github.com/owner/name`.
    """
    settings = {"copyright": f"agentpay {number}"}
    if repository:
        settings |= {"repo_url": repository, "edit_uri": "edit/main/docs/"}
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    changed = text.replace(_MARK, _MARK + lines, 1)
    tomllib.loads(changed)
    return changed


def main() -> None:
    """Build the site, and add the Markdown sources, which llms.txt links to."""
    repository = None if home().startswith(UNDECIDED) else home()
    text = configuration(CONFIGURATION.read_text("utf-8"), number=version(), repository=repository)
    # In the same directory, since its paths are relative to it.
    copy = CONFIGURATION.with_name(f".zensical-{os.getpid()}.toml")
    copy.write_text(text, "utf-8")
    try:
        command = ["zensical", "build", "--clean", "--strict", "--config-file", str(copy)]
        subprocess.run(command, check=True, cwd=ROOT)
    finally:
        copy.unlink()
    for page in (ROOT / "docs").rglob("*.md"):
        shutil.copyfile(page, ROOT / "site" / page.relative_to(ROOT / "docs"))


if __name__ == "__main__":
    main()
