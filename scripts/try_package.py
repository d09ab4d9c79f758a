"""Look into the distributions that were built, install them as users do, and pay with them.

    python scripts/try_package.py DIRECTORY

Two environments that hold nothing else: the client alone in one, `agentpay[server]` in the other. The client
of the first reaches the server of the second over a port.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WHEEL_HOLDS = {
    "agentpay/py.typed",
    "agentpay/__init__.py",
    "agentpay/_sync/client.py",
    "agentpay_server/py.typed",
    "agentpay_server/pytest_plugin.py",
    "agentpay_server/clients/_sync/client.py",
    "agentpay_server/store/migrations/script.py.mako",
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

CLIENT = """
import importlib.metadata, re
import agentpay, agentpay.webhooks, agentpay.integrations
from agentpay import AgentPay

installed = {one.name.lower().replace("_", "-") for one in importlib.metadata.distributions()}
required = importlib.metadata.requires("agentpay")
of_extras = {re.match(r"[\\w-]+", one)[0] for one in required if "extra ==" in one}
assert "solders" in of_extras and not of_extras & installed, of_extras & installed
assert agentpay.__version__ == importlib.metadata.version("agentpay") == VERSION

with AgentPay() as client:
    account = client.accounts.create(name="Packaged bot")
    client.policies.update(account.account_id, max_daily_spend="10")
    assert [each.account_id for each in client.accounts.list()] == [account.account_id]
    print(f"{account.handle} holds {client.accounts.balance(account.account_id).balance_usdc} USDC")
"""


def main(directory: Path) -> None:
    """Try the one wheel and the one sdist of a directory."""
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    version = look_into(wheel, sdist)
    with tempfile.TemporaryDirectory() as scratch:
        client = environment(Path(scratch) / "client", f"{wheel}")
        server = environment(Path(scratch) / "server", f"{wheel}[server]")
        run(server, "-I", ROOT / "examples" / "quickstart.py")
        serve = [server.parent / "agentpay-server", "serve", "--port", "0"]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=scratch) as running:
            try:
                told = json.loads(running.stdout.readline() if running.stdout else "")
                run(
                    client,
                    "-I",
                    "-W",
                    "error",
                    "-c",
                    f"VERSION = {version!r}{CLIENT}",
                    AGENTPAY_BASE_URL=told["base_url"],
                    AGENTPAY_API_KEY=told["operator_key"],
                )
            finally:
                running.terminate()


def look_into(wheel: Path, sdist: Path) -> str:
    """Check what the distributions hold, and return the version that they say they are.

    Raises:
        SystemExit: something is missing, or does not belong there.
    """
    _, version, *_ = wheel.name.split("-")
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
    information = f"agentpay-{version}.dist-info"
    expected = WHEEL_HOLDS | {f"{information}/licenses/LICENSE", f"{information}/entry_points.txt"}
    places = {name.split("/")[0] for name in held}
    with tarfile.open(sdist) as opened:
        sources = {name.partition("/")[2] for name in opened.getnames()}
    problems = [f"the wheel has no {name}" for name in sorted(expected - held)]
    problems += [f"the sdist has no {name}" for name in sorted(SDIST_HOLDS - sources)]
    problems += [
        f"{name}/ does not belong into the wheel"
        for name in sorted(places - {"agentpay", "agentpay_server", information})
    ]
    problems += [
        f"{name} does not belong into the sdist" for name in sorted(sources) if name.startswith(".ci")
    ]
    if problems:
        raise SystemExit("\n".join(problems))
    return version


def environment(place: Path, requirement: str) -> Path:
    """Make an environment that holds a requirement and what it needs, and return its Python."""
    subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", place], check=True)
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
    subprocess.run(install, check=True)
    return python


def run(python: Path, *arguments: str | Path, **variables: str) -> None:
    """Run a Python that sees nothing of this directory."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGENTPAY", "PYTHON"))
    }
    subprocess.run([python, *arguments], check=True, cwd=python.parent, env={**environ, **variables})


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
