"""Check the content of the built distributions, install them in every documented way, and use each install.

    python scripts/try_package.py DIRECTORY [CONSTRAINTS]

Each install has a separate empty environment, so that a missing dependency, or an import from another extra,
fails. `package_ways.py` has the checks that run there. Versions are those of the constraints file, or the
newest. Environments are created by uv if it is on the path, otherwise by venv and pip.
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
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import package_ways
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from package_ways import RECEIVERS, Installed
from packaging.metadata import Metadata
from trove_classifiers import classifiers

ROOT = Path(__file__).resolve().parent.parent
NAME = "agentpay_kit"
LABORATORY = "agentpay_lab"

WHEEL_HOLDS = {
    "agentpay/py.typed",
    "agentpay/__init__.py",
    "agentpay/_sync/client.py",
    "agentpay_server/py.typed",
    "agentpay_server/chain/channels/channels.so",
    "agentpay_server/pytest_plugin.py",
    "agentpay_server/clients/_sync/sandbox.py",
    "agentpay_server/plugins/console/index.html",
    "agentpay_server/plugins/migrations/script.py.mako",
    "agentpay_server/plugins/migrations/versions/0104_the_first_tables.py",
    "agentpay_server/plugins/scenes/bundled/demo.toml",
}
LABORATORY_HOLDS = {
    "agentpay_lab/__main__.py",
    "agentpay_lab/crash_test/adapters/payer.py",
    "agentpay_lab/crash_test/adapters/payer.sh",
    "agentpay_lab/crash_test/adapters/payer.mjs",
    "agentpay_lab/simulation/next_release/additions.py",
}
SDIST_HOLDS = {
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "docs/index.md",
    "agentpay_lab/hatch_build.py",
    "agentpay_lab/src/agentpay_lab/__init__.py",
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
        others = (Path(other).name for other in self.others)
        return " + ".join(["the client", *(f"[{extra}]" for extra in self.extras), *others])


def main(directory: Path, constraints: Path | None = None) -> None:
    """Try the wheels of the kit and of the laboratory, and the one sdist, of a directory."""
    (wheel,), (sdist,) = directory.glob(f"{NAME}-*.whl"), directory.glob("*.tar.gz")
    (laboratory,) = directory.glob(f"{LABORATORY}-*.whl")
    extras = look_into(wheel, sdist)
    look_into_laboratory(laboratory)
    with tempfile.TemporaryDirectory() as scratch, postgres() as database_url:
        pins = () if constraints is None else ("--constraint", str(constraints))
        client = environment(Path(scratch) / "client", *pins, f"{wheel}")
        installs = documented(client, database_url, laboratory)
        tried = {extra for install in installs for extra in install.extras}
        if tried != extras:
            raise SystemExit(f"the tried extras differ from the declared ones: {sorted(extras ^ tried)}")

        def attempt(number: int, install: Install) -> None:
            start = time.monotonic()
            extra = f"[{','.join(install.extras)}]" if install.extras else ""
            try:
                installed = environment(
                    Path(scratch) / f"{number}", *pins, f"{wheel}{extra}", *install.others
                )
                for way in install.ways:
                    way(installed)
            except (SystemExit, subprocess.SubprocessError) as error:
                raise SystemExit(f"{install.name}: {error}") from error
            print(f"{install.name}: {time.monotonic() - start:.0f} s", flush=True)

        # More than cores: installs wait for downloads, and checks for servers that start and end.
        with ThreadPoolExecutor((os.cpu_count() or 1) * 3 // 2) as workers:
            for one in [workers.submit(attempt, *numbered) for numbered in enumerate(installs)]:
                one.result()


def documented(client: Installed, database_url: str, laboratory: Path) -> list[Install]:
    """Return every install that the documentation names, the longest first.

    Args:
        client: an environment with only the client, to call the servers of the other installs.
        database_url: an empty PostgreSQL database.
        laboratory: the wheel of agentpay-lab.
    """
    serves = partial(package_ways.as_server, client=client)
    serves_in_memory = partial(package_ways.in_memory, client=client)
    stores = partial(package_ways.on_postgres, client=client, database_url=database_url)
    receivers = [
        Install((), needs, (partial(package_ways.as_receiver, app=app),)) for app, needs in RECEIVERS.items()
    ]
    return [
        Install(("server",), (), (serves, serves_in_memory, package_ways.without_driver)),
        Install(("server", "postgres", "fast"), (), (stores,)),
        Install(("server",), (f"{laboratory}",), (package_ways.as_laboratory,)),
        Install(("test",), ("pytest",), (package_ways.as_test_suite,)),
        Install(("test", "cluster", "ops"), (), (package_ways.with_cluster_and_metrics,)),
        Install(("test",), (), (package_ways.as_test_kit,)),
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
    metadata, problems = problems_of(wheel, WHEEL_HOLDS)
    with tarfile.open(sdist) as opened:
        sources = {name.partition("/")[2] for name in opened.getnames()}
    problems += [f"the sdist has no {name}" for name in sorted(SDIST_HOLDS - sources)]
    problems += [f"{name} must not be in the sdist" for name in sorted(sources) if name.startswith(".ci")]
    if problems:
        raise SystemExit("\n".join(problems))
    return {*(metadata.provides_extra or [])}


def look_into_laboratory(wheel: Path) -> None:
    """Check the content of the laboratory's wheel, and that it needs the kit of the same version.

    Raises:
        SystemExit: a file is missing or must not be there, or the wheel needs something else.
    """
    metadata, problems = problems_of(wheel, LABORATORY_HOLDS)
    needs = [str(need) for need in metadata.requires_dist or []]
    if needs != [f"agentpay-kit[server]=={metadata.version}"]:
        problems += [f"{wheel.name} needs {needs}"]
    if problems:
        raise SystemExit("\n".join(problems))


def problems_of(wheel: Path, holds: set[str]) -> tuple[Metadata, list[str]]:
    """Return the metadata of a wheel, and what is missing in it, must not be there, or an index refuses.

    Args:
        wheel: the wheel.
        holds: files that it must hold, of each of its packages.
    """
    distribution, version, *_ = wheel.name.split("-")
    information = f"{distribution}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
        # Raises for each field that an index refuses.
        metadata = Metadata.from_email(opened.read(f"{information}/METADATA"))
        carried = f"{information}/sboms/{metadata.name}.cdx.json"
        fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(opened.read(carried).decode())
    expected = holds | {f"{information}/licenses/LICENSE", f"{information}/entry_points.txt", carried}
    places, may = ({name.split("/")[0] for name in names} for names in (held, expected))
    problems = [f"{wheel.name} has no {name}" for name in sorted(expected - held)]
    problems += [f"{name}/ must not be in {wheel.name}" for name in sorted(places - may)]
    problems += [f"{wheel.name}: {carried}: {fault}"] if fault else []
    problems += [
        f"{wheel.name}: no index knows {name}" for name in {*(metadata.classifiers or [])} - classifiers
    ]
    if {*(metadata.import_names or [])} != {name for name in places if "." not in name}:
        problems.append(f"{wheel.name} says that it is imported as {metadata.import_names}")
    return metadata, problems


def environment(place: Path, *requirements: str) -> Installed:
    """Create an environment with the given requirements, or options of pip, and their dependencies."""
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
    sys.path.insert(0, str(ROOT / "tests" / "support"))
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
    main(*(Path(argument).resolve() for argument in sys.argv[1:3]))
