"""The command line against a running server, as its users have it: arguments, two streams, an exit code."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from loaded_python import LoadedPython

from agentpay import Account, AgentPay
from agentpay.cli import COMMANDS as CLIENT_COMMANDS
from agentpay.cli import main as client_main
from agentpay_server import AgentPayServer
from agentpay_server.cli import main as server_main

WAIT_SECONDS = 120
NO_CONFIG = "/nonexistent/config.toml"

Process = subprocess.Popen[str] | LoadedPython


def is_of_the_client(arguments: Sequence[str]) -> bool:
    """Whether `agentpay` has the command; `keys generate` is of the server."""
    return arguments[0] in CLIENT_COMMANDS and arguments[1:2] != ("generate",)


def module(arguments: Sequence[str]) -> str:
    return "agentpay" if is_of_the_client(arguments) else "agentpay_server"


class CommandLine:
    """Runs commands that ask one server."""

    def __init__(self, server: AgentPayServer) -> None:
        self.server = server
        self.client = server.client()
        self.environment = {
            "AGENTPAY_BASE_URL": server.listen(),
            "AGENTPAY_API_KEY": server.operator_key,
            "AGENTPAY_CONFIG": NO_CONFIG,
        }

    def funded(self, amount: str = "100", *, name: str = "Payer") -> Account:
        """Create an account that holds USDC."""
        account = self.client.accounts.create(name=name)
        self.server.sandbox.fund(account.account_id, amount)
        return self.client.accounts.get(account.account_id)

    def run(self, *arguments: str) -> Result:
        result = CliRunner(env=self.environment).invoke(
            client_main if is_of_the_client(arguments) else server_main, list(arguments)
        )
        assert "Traceback" not in result.output
        return result

    def shown(self, *arguments: str) -> str:
        """Run a command that is done, and return what people see of it."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """Run a command with `--json` that prints one object and nothing else, and return the object."""
        (found,) = self.items(*arguments)
        return found

    def items(self, *arguments: str) -> list[Any]:
        """Run a command with `--json` and return the objects that it prints, one a line."""
        result = self.run(*arguments, "--json")
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return [json.loads(line, parse_float=Decimal) for line in result.stdout.splitlines()]

    def refused(self, *arguments: str, exit_code: int = 1) -> str:
        """Run a command that the server refuses, and return the terminal output."""
        result = self.run(*arguments)
        assert (result.exit_code, result.stdout) == (exit_code, ""), result.output
        assert result.stderr.startswith("Error: ")
        return result.stderr

    def unwritten(self, *arguments: str) -> tuple[int, str]:
        """Run a command whose results go to a full disk; return its exit code and its messages."""
        environment = {**os.environ, **self.environment}
        with (
            Path("/dev/full").open("w", encoding="utf-8") as full,
            LoadedPython(
                "-m", module(arguments), *arguments, environment=environment, stdout=full.fileno()
            ) as process,
        ):
            said = process.communicate()[1]
            return process.wait(), said

    @contextmanager
    def process(self, *arguments: str, is_fresh: bool = False) -> Iterator[Process]:
        """Run a command as a separate process."""
        with processing(*arguments, environment=self.environment, is_fresh=is_fresh) as process:
            yield process


@contextmanager
def processing(
    *arguments: str, environment: dict[str, str] | None = None, is_fresh: bool = False
) -> Iterator[Process]:
    """Run a command as a separate process, which is killed if it still runs at the end.

    Args:
        arguments: those of the command line.
        environment: besides this process's own.
        is_fresh: start Python for it, as a shell does; at least one test of each long-running command does.
    """
    told = {**os.environ, **(environment or {})}
    process: Process
    if is_fresh:
        command = [sys.executable, "-m", module(arguments), *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, encoding="utf-8", env=told)
    else:
        process = LoadedPython("-m", module(arguments), *arguments, environment=told)
    with process:
        try:
            yield process
        finally:
            process.kill()


def next_json(process: Process) -> Any:
    """Return what the next line of a process holds."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    return json.loads(line)


def pending(client: AgentPay, account_id: str, *, memo: str | None = None) -> str:
    """Ask for a transfer that waits for approval, and return its identifier."""
    payee = client.accounts.create(name="Payee").account_id
    client.policies.update(account_id, escalation_threshold=5)
    transfer = client.transfers.create(from_=account_id, to=payee, amount=5, memo=memo)
    assert transfer.status == "pending_approval"
    return transfer.transfer_id


def see_no_events(patch: pytest.MonkeyPatch) -> None:
    """Let `agentpay-server trigger` see no event, as if none had occurred."""
    patch.setattr("agentpay_server.cli.trigger._newest", lambda *_: ())
