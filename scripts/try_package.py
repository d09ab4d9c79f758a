"""Check the content of the built distributions, install them in every documented way, and use each install.

    python scripts/try_package.py DIRECTORY

Each install has its own empty environment, so that a missing dependency, or an import from another extra,
fails. `package_ways.py` has the checks that run there. Environments are created by uv if it is on the path,
otherwise by venv and pip.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import package_ways
from package_ways import RECEIVERS, Installed

ROOT = Path(__file__).resolve().parent.parent
NAME = "agentpay_kit"

WHEEL_HOLDS = {
    "agentpay/py.typed",
    "agentpay/__init__.py",
    "agentpay/_sync/client.py",
    "agentpay_server/py.typed",
    "agentpay_server/pytest_plugin.py",
    "agentpay_server/clients/_sync/sandbox.py",
    "agentpay_server/database/migrations/script.py.mako",
}
SDIST_HOLDS = {
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "docs/index.md",
    "examples/quickstart.py",
    "noxfile.py",
    "tests/conftest.py",
}


@dataclass(frozen=True)
class Install:
    """A documented install.

    Attributes:
        extras: extras of agentpay-kit.
        others: packages that users of this install add.
        ways: checks to run in it.
    """

    extras: tuple[str, ...]
    others: tuple[str, ...]
    ways: tuple[Callable[[Installed], None], ...]

    @property
    def name(self) -> str:
        """Name of the install in messages."""
        return " + ".join(["the client", *(f"[{extra}]" for extra in self.extras), *self.others])


def main(directory: Path) -> None:
    """Try the one wheel and the one sdist of a directory."""
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    extras = look_into(wheel, sdist)
    with tempfile.TemporaryDirectory() as scratch, postgres() as database_url:
        client = environment(Path(scratch) / "client", f"{wheel}")
        installs = documented(client, database_url)
        tried = {extra for install in installs for extra in install.extras}
        if tried != extras:
            raise SystemExit(f"the tried extras differ from the declared ones: {sorted(extras ^ tried)}")

        def attempt(number: int, install: Install) -> None:
            start = time.monotonic()
            extra = f"[{','.join(install.extras)}]" if install.extras else ""
            try:
                installed = environment(Path(scratch) / f"{number}", f"{wheel}{extra}", *install.others)
                for way in install.ways:
                    way(installed)
            except (SystemExit, subprocess.SubprocessError) as error:
                raise SystemExit(f"{install.name}: {error}") from error
            print(f"{install.name}: {time.monotonic() - start:.0f} s", flush=True)

        # More than cores: installs wait for downloads, and checks for servers that start and end.
        with ThreadPoolExecutor((os.cpu_count() or 1) * 3 // 2) as workers:
            for one in [workers.submit(attempt, *numbered) for numbered in enumerate(installs)]:
                one.result()


def documented(client: Installed, database_url: str) -> list[Install]:
    """Return every install that the documentation names, the longest first.

    Args:
        client: an environment with only the client, to call the servers of the other installs.
        database_url: an empty PostgreSQL database.
    """
    serves = partial(package_ways.as_server, client=client)
    serves_in_memory = partial(package_ways.in_memory, client=client)
    stores = partial(package_ways.on_postgres, client=client, database_url=database_url)
    receivers = [
        Install((), needs, (partial(package_ways.as_receiver, app=app),)) for app, needs in RECEIVERS.items()
    ]
    return [
        Install(("server",), (), (serves, package_ways.without_driver)),
        Install(("server", "postgres"), (), (stores,)),
        Install(("server", "fast"), (), (serves_in_memory,)),
        Install(("server",), ("pytest",), (package_ways.as_test_suite,)),
        Install(("mcp",), (), (package_ways.as_tools,)),
        Install(("cli",), (), (package_ways.as_command_line,)),
        *receivers,
        Install((), (), (package_ways.as_client,)),
    ]


def look_into(wheel: Path, sdist: Path) -> set[str]:
    """Check the content of the distributions, and return the extras that they declare.

    Raises:
        SystemExit: a file is missing or must not be there.
    """
    _, version, *_ = wheel.name.split("-")
    information = f"{NAME}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
        metadata = message_from_bytes(opened.read(f"{information}/METADATA"))
    expected = WHEEL_HOLDS | {f"{information}/licenses/LICENSE", f"{information}/entry_points.txt"}
    places = {name.split("/")[0] for name in held}
    with tarfile.open(sdist) as opened:
        sources = {name.partition("/")[2] for name in opened.getnames()}
    problems = [f"the wheel has no {name}" for name in sorted(expected - held)]
    problems += [f"the sdist has no {name}" for name in sorted(SDIST_HOLDS - sources)]
    problems += [
        f"{name}/ must not be in the wheel"
        for name in sorted(places - {"agentpay", "agentpay_server", information})
    ]
    problems += [f"{name} must not be in the sdist" for name in sorted(sources) if name.startswith(".ci")]
    if problems:
        raise SystemExit("\n".join(problems))
    return set(metadata.get_all("Provides-Extra", []))


def environment(place: Path, *requirements: str) -> Installed:
    """Create an environment with the given requirements and their dependencies."""
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if uv := shutil.which("uv"):
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(place)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python), *requirements]
    else:
        make = [sys.executable, "-m", "venv", "--without-pip", str(place)]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", *requirements]
    for command in (make, install):
        subprocess.run(command, check=True)
    return Installed(python)


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of an empty PostgreSQL database, on the server that the tests use."""
    sys.path.insert(0, str(ROOT / "tests"))
    import asyncpg  # noqa: PLC0415 - a dependency of the tests
    import postgres_server  # noqa: PLC0415

    async def make(server: str, name: str) -> None:
        connection = await asyncpg.connect(server)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    with postgres_server.directory() as directory:
        server = postgres_server.url_of(directory)
        name = f"{postgres_server.prefix_of(directory)}package"
        asyncio.run(make(server, name))
        yield urlsplit(server)._replace(path=f"/{name}").geturl()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
