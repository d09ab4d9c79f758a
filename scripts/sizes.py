"""Print what the server weighs: lines by capability, classes, and the story of a transfer.

    python scripts/sizes.py

Generated code (`_sync`) counts nowhere. The story is the files that the page of the architecture lists under
"A transfer settles". Next to their lines stand those of the functions that a transfer really executes: one is
made, on a server in memory, while calls are recorded.
"""

import ast
import inspect
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "agentpay_server"
PLUGINS = SERVER / "plugins"


def files(*patterns: str) -> list[Path]:
    """Return the Python files below the server that patterns name, without generated ones."""
    found: set[Path] = set()
    for pattern in patterns:
        for path in SERVER.glob(pattern):
            found.update(path.rglob("*.py") if path.is_dir() else [path])
    return sorted(path for path in found if "_sync" not in path.parts)


def lines(paths: Iterable[Path]) -> int:
    """Return the lines of files."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def classes(paths: Iterable[Path]) -> int:
    """Return how many classes files define."""
    trees = (ast.parse(path.read_text("utf-8")) for path in paths)
    return sum(isinstance(node, ast.ClassDef) for tree in trees for node in ast.walk(tree))


def story() -> list[Path]:
    """Return the files that tell how a transfer settles, in the order in which one reads them."""
    page = (ROOT / "docs/explanation/architecture.md").read_text("utf-8")
    section = page.partition("## A transfer settles")[2].partition("\n## ")[0]
    return [ROOT / name for name in re.findall(r"^\| `(agentpay_server/[\w/]+\.py)`", section, re.MULTILINE)]


def executed() -> set[CodeType]:
    """Return the functions of the server that one transfer executes, the client's call included."""
    # Read here, because only this function needs the server's packages.
    from agentpay_server import AgentPayServer  # noqa: PLC0415

    found: set[CodeType] = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SERVER)):
            found.add(frame.f_code)

    # Before the server starts, because a thread takes the profile when it begins.
    threading.setprofile(record)
    try:
        with AgentPayServer() as server, server.client() as client:
            payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
            server.sandbox.fund(payer, 10)

            def pay(key: str) -> None:
                client.transfers.create(from_=payer, to=payee, amount="1", idempotency_key=key)

            pay("first")
            found.clear()
            sys.setprofile(record)
            pay("second")
            sys.setprofile(None)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    return {code for code in found if not code.co_name.startswith("<")}


def main() -> None:
    """Print the table."""
    everything = files("**/*.py")
    of_plugins = {path.stem: files(f"plugins/{path.name}") for path in sorted(PLUGINS.glob("[!_]*"))}
    core = [path for path in everything if not path.is_relative_to(PLUGINS)]
    print(f"server: {lines(everything):,} lines, {len(everything)} files, {classes(everything)} classes")
    print(f"core: {lines(core):,} lines, {len(core)} files")
    for name, paths in of_plugins.items():
        print(f"    {name}: {lines(paths):,} lines, {len(paths)} files")
    read = story()
    print(f'"a transfer settles": {len(read)} files, {lines(read):,} lines')
    codes = executed()
    modules = {code.co_filename for code in codes}
    count = sum(len(inspect.getsourcelines(code)[0]) for code in codes)
    print(f"    executes {len(codes)} functions of {len(modules)} modules, {count:,} lines")


if __name__ == "__main__":
    main()
