"""The documented uses of an install, each in its own process in that environment.

A use that fails ends the run and shows its output.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

LONGEST_SECONDS = 120
"""Time limit of a step; each takes a second or two."""

RECEIVERS = {
    "starlette_app": ("starlette", "uvicorn"),
    "fastapi_app": ("fastapi", "uvicorn"),
    "flask_app": ("flask",),
    "django_app": ("django",),
}
"""The webhook receiver examples, and the packages that each needs."""

ALONE = """
import importlib.metadata, re
import agentpay, agentpay.webhooks, agentpay.integrations

installed = {one.name.lower().replace("_", "-") for one in importlib.metadata.distributions()}
required = importlib.metadata.requires("agentpay-kit")
of_extras = {re.match(r"[\\w-]+", one)[0] for one in required if "extra ==" in one}
found = of_extras & installed
assert "solders" in of_extras and not found, found
assert agentpay.__version__ == importlib.metadata.version("agentpay-kit")
"""

SMALL = """
import compileall, importlib.metadata, pathlib, sysconfig

place = pathlib.Path(sysconfig.get_path("purelib"))
compileall.compile_dir(place, quiet=1)
size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
assert size <= 14 * 1024**2, f"with bytecode it has {size:,} bytes"
assert len(list(importlib.metadata.distributions())) <= 12
"""

KIT = """
import importlib.metadata, pathlib, sysconfig, tempfile
import httpx
from agentpay_server import AgentPayServer

files = [file for file in pathlib.Path(sysconfig.get_path("purelib")).rglob("*") if file.suffix != ".pyc"]
size = sum(file.stat().st_size for file in files if file.is_file())
assert size <= 80 * 1000**2, f"it has {size:,} bytes"
assert len(list(importlib.metadata.distributions())) <= 25

with tempfile.TemporaryDirectory() as scratch:
    for start in range(2):
        with AgentPayServer(data_dir=scratch) as server:
            assert len(list(server.client().accounts.list())) == start
            server.client().accounts.create(name="kept")
            refused = httpx.get(server.listen() + "/metrics")
            assert refused.status_code == 404 and "the extra ops" in refused.json()["message"], refused.text
            assert server.facilitator_url
            try:
                server.rpc_url
            except ModuleNotFoundError as missing:
                assert missing.name == "websockets" and "[cluster]" in str(missing), missing
            else:
                raise AssertionError("subscriptions need websockets")
"""

WHOLE = """
import httpx
from agentpay_server import AgentPayServer, RpcSettings

with AgentPayServer() as server:
    assert "agentpay_" in httpx.get(server.listen() + "/metrics").text
    with AgentPayServer(rpc=RpcSettings(url=server.rpc_url), clock="system") as other:
        assert list(other.client().accounts.list()) == []
"""

PAY = """
import sys
from agentpay import AgentPay

with AgentPay() as client:
    account = client.accounts.create(name=sys.argv[1])
    client.policies.update(account.account_id, max_daily_spend="10")
    assert account.account_id in [each.account_id for each in client.accounts.list()]
    assert client.accounts.balance(account.account_id).balance_usdc == 0
"""

FIND = """
import sys
from agentpay import AgentPay

with AgentPay() as client:
    assert sys.argv[1] in [each.name for each in client.accounts.list()]
"""

NOWHERE = "http://127.0.0.1:9"
"""An address at which no service is."""

CALL_TOOLS = """
import asyncio, os, sys
from mcp import Client, StdioServerParameters

async def call():
    started = StdioServerParameters(command=sys.executable, args=["-m", "agentpay.mcp"], env=dict(os.environ))
    async with Client(started) as client:
        assert len((await client.list_tools()).tools) == 8
        order = {"payment_ref": "order-0001", "to": "acct_1", "amount_usdc": "1"}
        result = (await client.call_tool("pay", order)).structured_content
    assert (result["status"], result["money_moved"]) == ("unknown", "unknown"), result

asyncio.run(call())
"""

DELIVER = """
import sys, time
import httpx
from agentpay.webhooks import SIGNATURE_HEADER, sign

url, body = sys.argv[1], sys.argv[2].encode()
for _ in range(600):
    try:
        httpx.get(url)
        break
    except httpx.TransportError:
        time.sleep(0.05)
assert httpx.post(url, content=body).status_code == 401
answer = httpx.post(url, content=body, headers={SIGNATURE_HEADER: sign(body, "whsec_package")})
assert answer.status_code == 200, answer.text
"""

EVENT = {
    "id": "evt_1",
    "type": "transfer.settled",
    "created_at": "2026-01-31T12:00:00Z",
    "data": {
        "transfer_id": "txn_1",
        "account_id": "acct_1",
        "amount_usdc": "25.000000",
        "tx_signature": "5ig",
        "settled_at": "2026-01-31T12:00:00Z",
    },
}


class Installed:
    """An environment, and its programs."""

    def __init__(self, python: Path) -> None:
        self.python = python

    def command(self, *arguments: object) -> list[str]:
        """Return a command line whose program is in the environment."""
        program, *others = map(str, arguments)
        return [shutil.which(program, path=str(self.python.parent)) or program, *others]

    def run(self, *arguments: object, code: int = 0, cwd: Path | None = None, **variables: str) -> str:
        """Run a program and return its output on both streams."""
        done = subprocess.run(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=LONGEST_SECONDS,
            cwd=cwd or self.python.parent,
            env=environ(variables),
        )
        if done.returncode != code or "Traceback" in done.stdout:
            fail(done.args, f"exit code {done.returncode}, not {code}\n{done.stdout}")
        return done.stdout

    @contextmanager
    def started(
        self, *arguments: object, cwd: Path | None = None, **variables: str
    ) -> Iterator["subprocess.Popen[str]"]:
        """Run a program while the block runs. SIGTERM must end it, with exit code 0 if handled."""
        command = self.command(*arguments)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                cwd=cwd or self.python.parent,
                env=environ(variables),
            )
            hanging = Timer(LONGEST_SECONDS, process.kill)
            hanging.start()
            try:
                with process:
                    yield process
                    process.terminate()
                    process.communicate()
            except BaseException:
                log.seek(0)
                print(" ".join(command), log.read(), sep="\n", file=sys.stderr)
                raise
            finally:
                hanging.cancel()
                process.kill()

    @contextmanager
    def serving(self, *options: object, **variables: str) -> Iterator[dict[str, str]]:
        """Serve with some options; yields the environment variables for a client of that server."""
        serve = ("agentpay-server", "serve", "--port", 0, *options)
        with self.started(*serve, **variables) as process:
            told = next_json(process)
            key = told.get("operator_key") or variables.get("AGENTPAY_SERVER_OPERATOR_KEY", "")
            yield {"AGENTPAY_BASE_URL": told["base_url"], "AGENTPAY_API_KEY": key}
        if os.name == "posix" and process.returncode != 0:
            fail(serve, f"ended with exit code {process.returncode}")


def environ(variables: dict[str, str]) -> dict[str, str]:
    """Return this process's environment, without variables that would change what is imported or called."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGENTPAY", "PYTHON", "VIRTUAL_ENV", "COV_"))
    }
    return {**inherited, "PYTHONIOENCODING": "utf-8", **variables}


def fail(command: object, said: str) -> NoReturn:
    """End the run with a message."""
    shown = " ".join(command) if isinstance(command, list) else command
    raise SystemExit(f"{shown}\n{said}")


def next_json(process: "subprocess.Popen[str]") -> Any:  # noqa: ANN401 - a JSON value
    """Return the JSON value on the next line of a process's output."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        fail(process.args, "printed no line")
    return json.loads(line)


# --- The client, without the server and with a web framework


def as_client(client: Installed) -> None:
    """Use the client in an environment without the server, and check the size of that environment."""
    client.run("python", "-I", "-W", "error", "-c", ALONE)
    client.run("python", "-I", "-c", SMALL)
    said = client.run("agentpay-mcp", code=1)
    if not re.fullmatch(r"agentpay-mcp: mcp is not installed: pip install \S+\[mcp\]\S*\n", said):
        fail("agentpay-mcp", said)
    for command in (("agentpay-server",), ("python", "-I", "-m", "agentpay_server")):
        said = client.run(*command, code=1)
        if not re.fullmatch(
            r"agentpay-server: the server needs click, .*: pip install \S+\[server\]\S*\n", said
        ):
            fail(command, said)


def as_tools(installed: Installed) -> None:
    """Start the MCP server with the official client, and call it while no service responds."""
    said = installed.run("agentpay-mcp", code=2, AGENTPAY_API_KEY="ap_operator_x", AGENTPAY_BASE_URL=NOWHERE)
    if "agent-scoped key" not in said:
        fail("agentpay-mcp", said)
    installed.run("python", "-I", "-c", CALL_TOOLS, AGENTPAY_API_KEY="ap_agent_x", AGENTPAY_BASE_URL=NOWHERE)


def as_command_line(installed: Installed) -> None:
    """Run commands that need only the client, one that finds no server, and one that needs the server."""
    with tempfile.TemporaryDirectory() as home:
        variables = {
            "AGENTPAY_CONFIG": str(Path(home) / "config.toml"),
            "AGENTPAY_BASE_URL": f"http://127.0.0.1:{free_port()}",
            "AGENTPAY_API_KEY": "ap_operator_x",
        }
        for expected, code, command in (
            ("agentpay, version", 0, ["agentpay", "--version"]),
            ("_AGENTPAY_COMPLETE", 0, ["agentpay", "completion", "bash"]),
            ("whsec_", 0, ["agentpay", "listen", "--print-secret"]),
            ("no server responds", 1, ["agentpay", "accounts", "list"]),
            ("is not installed", 1, ["agentpay-server", "serve"]),
        ):
            told = installed.run(*command, code=code, **variables)
            if expected not in told:
                fail(command, f"no {expected!r} in {told!r}")


def as_receiver(installed: Installed, app: str) -> None:
    """Receive a webhook in one of the examples, started by its documented command."""
    port, needs = free_port(), RECEIVERS[app]
    if "uvicorn" in needs:
        command: tuple[object, ...] = ("uvicorn", "--port", port, f"{app}:app")
    elif "flask" in needs:
        command = ("flask", "--app", app, "run", "--port", port)
    else:
        command = ("python", f"{app}.py", "runserver", "--noreload", port)
    secret = {"AGENTPAY_WEBHOOK_SECRET": "whsec_package"}
    with installed.started(*command, cwd=EXAMPLES / "receivers", PYTHONDONTWRITEBYTECODE="1", **secret):
        url = f"http://127.0.0.1:{port}/webhooks"
        installed.run("python", "-I", "-c", DELIVER, url, json.dumps(EVENT))


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


# --- The server


def as_server(installed: Installed, client: Installed) -> None:
    """Run every example and every command, in memory and on a data directory."""
    for example in sorted(EXAMPLES.glob("*.py")):
        installed.run("python", "-I", example)
    in_memory(installed, client)
    demo = installed.run("agentpay-server", "demo", "--port", 0, "--interval", 0, "--steps", 3, "--json")
    if len(re.findall(r'^{"step":', demo, re.MULTILINE)) != 3:
        fail("agentpay-server demo --steps 3", demo)
    with tempfile.TemporaryDirectory() as scratch:
        key = installed.run("agentpay-server", "keys", "generate").strip()
        kept(installed, client, "--data-dir", Path(scratch) / "data", AGENTPAY_SERVER_OPERATOR_KEY=key)


def in_memory(installed: Installed, client: Installed) -> None:
    """Serve in memory, with a client and the client commands."""
    with installed.serving() as server:
        client.run("python", "-I", "-W", "error", "-c", PAY, "in memory", **server)
        client_commands(installed, server)


CLIENT = "agentpay"
"""The command of the client."""


def client_commands(installed: Installed, server: dict[str, str]) -> None:
    """Trigger an event, receive it with `listen`, and list objects."""
    with installed.started(CLIENT, "listen", "--json", **server) as listening:
        next_json(listening)
        installed.run("agentpay-server", "trigger", "transfer.settled", **server)
        while next_json(listening).get("event", {}).get("type") != "transfer.settled":
            pass
    for command in (("keys", "list"), ("approvals", "list"), ("deliveries", "list")):
        for line in installed.run(CLIENT, *command, "--json", **server).splitlines():
            json.loads(line)
    json.loads(installed.run("agentpay-server", "openapi"))


def as_laboratory(installed: Installed) -> None:
    """Simulate a small world, and start the crash test."""
    small = ("--minutes", 0.2, "--servers", 1, "--agents", 1, "--json")
    said = installed.run("agentpay-lab", "simulate", "--seed", 5, *small).splitlines()
    if json.loads(said[-1])["violations"] != 0:
        fail("agentpay-lab simulate", "\n".join(said))
    # The one seller of this seed is honest: the run passes when it is paid, whatever is killed before.
    installed.run("agentpay-lab", "crash-test", "--for", 80, "--agents", 1, "--purchases", 1, "--seed", 31)


def kept(installed: Installed, client: Installed, *where: object, **variables: str) -> None:
    """Check that data survives a restart."""
    with installed.serving(*where, **variables) as server:
        client.run("python", "-I", "-c", PAY, "kept", **server)
    with installed.serving(*where, **variables) as server:
        client.run("python", "-I", "-c", FIND, "kept", **server)


def without_driver(installed: Installed) -> None:
    """Check the advice when the PostgreSQL driver is missing."""
    serve = ("agentpay-server", "serve", "--port", 0, "--database-url", "postgresql://nobody@localhost/none")
    said = installed.run(*serve, code=1, AGENTPAY_SERVER_ENCRYPTION_KEY="00" * 32)
    if not re.search(r"needs asyncpg, which is not installed: pip install \S+\[postgres\]", said):
        fail(serve, said)


def on_postgres(installed: Installed, client: Installed, database_url: str) -> None:
    """Serve on PostgreSQL, twice."""
    variables = {
        "AGENTPAY_SERVER_DATABASE_URL": database_url,
        "AGENTPAY_SERVER_ENCRYPTION_KEY": "00" * 32,
        "AGENTPAY_SERVER_OPERATOR_KEY": installed.run("agentpay-server", "keys", "generate").strip(),
    }
    kept(installed, client, **variables)


# --- In the process of a test


def as_test_kit(installed: Installed) -> None:
    """Use an embedded server with the extra `test` alone, and check the size of that environment."""
    installed.run("python", "-I", "-W", "error", "-c", KIT)


def with_cluster_and_metrics(installed: Installed) -> None:
    """Serve metrics, and a server on the chain of another."""
    installed.run("python", "-I", "-c", WHOLE)


# --- With pytest


def as_test_suite(installed: Installed) -> None:
    """Run the example test suite, and the tests in the documentation."""
    with tempfile.TemporaryDirectory() as scratch:
        suite = Path(scratch)
        shutil.copytree(EXAMPLES / "agent_test_suite", suite, dirs_exist_ok=True)
        for page in ("README.md", "docs/tutorial/first-paid-call.md", "docs/how-to/test-your-agent.md"):
            text = (ROOT / page).read_text("utf-8")
            for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
                if "agentpay_account" in block:
                    name = re.sub(r"\W", "_", page)
                    (suite / f"test_{name}_{number}.py").write_text(block, "utf-8")
        installed.run("pytest", "-q", "-W", "error", cwd=suite)
