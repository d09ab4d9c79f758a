"""The command line against a running server, as its users have it: arguments, two streams, an exit code."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from agentpay import AgentPay
from agentpay_server import AgentPayServer
from agentpay_server.cli import main

WAIT_SECONDS = 30
NO_CONFIG = "/nonexistent/config.toml"


class CommandLine:
    """Runs commands that ask one server."""

    def __init__(self, server: AgentPayServer) -> None:
        self.environment = {
            "AGENTPAY_BASE_URL": server.listen(),
            "AGENTPAY_API_KEY": server.operator_key,
            "AGENTPAY_CONFIG": NO_CONFIG,
        }

    def run(self, *arguments: str) -> Result:
        result = CliRunner(env=self.environment).invoke(main, list(arguments))
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

    def unwritten(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command whose results go to a full disk."""
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            return subprocess.run(
                [sys.executable, "-m", "agentpay_server.cli", *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                timeout=60,
                check=False,
                env={**os.environ, **self.environment},
            )

    @contextmanager
    def process(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a command as a separate process."""
        with processing(*arguments, environment=self.environment) as process:
            yield process


@contextmanager
def processing(
    *arguments: str, environment: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command as a separate process, which is killed if it still runs at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "agentpay_server.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_json(process: "subprocess.Popen[str]") -> Any:
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
