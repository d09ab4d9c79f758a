"""Write all files that are generated from others in the tree, or name each stale one.

    python scripts/generate.py [--check] [NAME ...]

Names are those of `ARTEFACTS`; without one, all. With `--check` nothing is written, and the exit code is 1 if
a file differs. Some are made from earlier ones, so each is computed when its turn comes.
"""

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"

Files = Mapping[Path, str | bytes | None]
"""The content of each file; None if it must not exist."""


def _of(module: str) -> Callable[[], Files]:
    """Return what the script of that name generates, imported when it is needed."""
    return lambda: import_module(module).files()


ARTEFACTS: Final[Mapping[str, Callable[[], Files]]] = {
    "sync": _of("unasync"),
    "openapi": _of("openapi_documents"),
    "events": _of("event_pages"),
    "options": _of("options"),
    "diagrams": _of("diagrams"),
    "console": _of("console_types"),
    "llms": _of("llms"),
    "programs": _of("channel_program"),
    "sbom": _of("sbom"),
}


def main(arguments: list[str] | None = None) -> int:
    """Write each stale file, or with `--check` only name it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ARTEFACTS))
    parser.add_argument("--check", action="store_true", help="only compare")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(ARTEFACTS):
        parser.error(f"no {', '.join(sorted(unknown))}: there are {', '.join(ARTEFACTS)}")
    stale = 0
    for name in given.names or ARTEFACTS:
        for path, text in ARTEFACTS[name]().items():
            wanted = text.encode("utf-8") if isinstance(text, str) else text
            if (path.read_bytes() if path.exists() else None) == wanted:
                continue
            stale += 1
            print(f"{'not current' if given.check else 'wrote'}: {path.relative_to(ROOT)}", flush=True)
            if given.check:
                continue
            if wanted is None:
                path.unlink()
            else:
                path.write_bytes(wanted)
    if given.check and stale:
        print("run: python scripts/generate.py")
    return 1 if given.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
