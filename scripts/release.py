"""Release the version in agentpay/_version.py: one command, which asks before it publishes.

    python scripts/release.py                       # or --dry-run, which stops before the tag
    python scripts/release.py --check-tag v0.1.0    # what a workflow asks before it publishes

It refuses to start unless the checkout is clean, the tag is new, and the changelog has an entry for the
version. It runs every check, builds and tries the distributions, tags, and uploads the files that it has
tried. A version is never uploaded twice: to fix a mistake, release the next patch version and yank the bad
one.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from home import check_home

ROOT = Path(__file__).resolve().parent.parent
LONGER = ("pythons", "lowest", "newest", "neighbours", "successor", "validator", "paths")
BUILT = ROOT / ".nox" / ".cache" / "dist"


def version() -> str:
    """Return the version, which is stated in one place."""
    found = re.search(r'__version__[^"]*"([^"]+)"', (ROOT / "agentpay" / "_version.py").read_text("utf-8"))
    if found is None:
        raise SystemExit("agentpay/_version.py states no version")
    return found[1]


def obstacles(new: str, *, changelog: str, status: str, tags: Sequence[str]) -> list[str]:
    """Return what keeps a version from being released; empty if nothing does."""
    found = []
    if status.strip():
        found.append("the checkout has changes that are not committed: commit them, or remove them")
    if f"v{new}" in tags:
        found.append(f"the tag v{new} exists: set the next version in agentpay/_version.py")
    heading = re.search(
        rf"^## {re.escape(new)} · \d{{4}}-\d\d-\d\d$(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if heading is None:
        found.append(
            f"CHANGELOG.md has no heading `## {new} · YYYY-MM-DD`: write it above what is in "
            "this version, with the day of the release"
        )
    elif not heading[1].strip():
        found.append(f"CHANGELOG.md says nothing about {new}: list below its heading what is in this version")
    return found


def run(*command: object) -> None:
    """Run a command; its failure ends the release."""
    print("$", *command, flush=True)
    subprocess.run([*map(str, command)], cwd=ROOT, check=True)


def output(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main(arguments: Sequence[str]) -> None:
    """Check, build, try, tag and upload."""
    new = version()
    if "--check-tag" in arguments:
        tag = arguments[-1]
        changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
        found = obstacles(new, changelog=changelog, status="", tags=())
        if tag != f"v{new}":
            found.append(
                f"the tag {tag} is not v{new}: tag v{new}, or set the version in agentpay/_version.py"
            )
        if found:
            raise SystemExit("\n".join(found))
        print(f"{tag} can be released")
        return
    found = obstacles(
        new,
        changelog=(ROOT / "CHANGELOG.md").read_text("utf-8"),
        status=output("git", "status", "--porcelain"),
        tags=output("git", "tag").split(),
    )
    if found:
        raise SystemExit("\n".join(found))
    run(sys.executable, "scripts/run.py")
    run(sys.executable, "scripts/run.py", *LONGER)
    # Last, so that what is uploaded is what was tried.
    run(sys.executable, "scripts/run.py", "package")
    files = sorted(BUILT.iterdir())
    print(f"agentpay-kit and agentpay-lab {new} are ready:", *(path.name for path in files))
    if "--dry-run" in arguments:
        return
    check_home()
    if input(f"Type {new} to tag and publish it: ") != new:
        raise SystemExit("nothing was published")
    run("git", "tag", "--annotate", f"v{new}", "--message", f"agentpay-kit and agentpay-lab {new}")
    # Pushed last: if the upload fails, nothing is public yet, and the local tag can be deleted.
    run(sys.executable, "-m", "twine", "upload", *files)
    run("git", "push", "origin", "HEAD", f"v{new}")


if __name__ == "__main__":
    main(sys.argv[1:])
