"""The processes of a crash test, which are killed and restarted."""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_START_SECONDS: Final = 120.0
_AGENT: Final = Path(__file__).with_name("agent.py")


class CannotStartError(Exception):
    """The message includes the end of the process's log."""


class ServerProcess:
    """A server on a fixed port; `options` are those of `serve`, except the port."""

    def __init__(self, options: Sequence[str], environment: dict[str, str], log: Path) -> None:
        with socket.socket() as sock:
            # The port is released here. Another process is unlikely to take it.
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.url: str = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "agentpay_server", "serve", "--port", str(port), *options]
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command, env=self._environment, stdout=subprocess.PIPE, stderr=log
            )
        self._is_ready = False

    def wait(self) -> None:
        """Wait until it accepts requests; `CannotStartError` if not in time."""
        if self._is_ready:
            return
        assert self._process is not None  # noqa: S101 - it was started
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        ready, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
        line = self._process.stdout.readline() if ready else b""
        if not line.startswith(b"{"):
            self.kill()
            raise CannotStartError(f"a server did not start: {self._log_end()}")
        self._is_ready = True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def _log_end(self) -> str:
        return self._log.read_text("utf-8", "replace")[-800:]


class AgentProcess:
    """An agent process. For `plan` see `Agent`."""

    def __init__(self, plan: dict[str, Any], directory: Path, name: str) -> None:
        self._plan, self._log = directory / f"{name}.json", directory / f"{name}.log"
        self._done = directory / f"{name}.done"
        self._names = [purchase[0] for purchase in plan["purchases"]]
        self._plan.write_text(json.dumps({**plan, "done": str(self._done)}), "utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # -P: the modules beside the program must not hide those of others.
        command = [sys.executable, "-P", str(_AGENT), str(self._plan)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own command

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_finished(self) -> bool:
        return set(self._names) <= set(self.outcomes())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def outcomes(self) -> dict[str, tuple[str, int]]:
        """Return each finished purchase's outcome, and how often it was tried."""
        found: dict[str, tuple[str, int]] = {}
        if not self._done.exists():
            return found
        for line in self._done.read_text("utf-8").splitlines():
            name, _, rest = line.partition(" ")
            outcome, colon, asked = rest.partition(":")
            if colon and asked.isdecimal():
                before = found.get(name, ("", 0))[1]
                found[name] = (outcome, before + int(asked))
        return found

    def log_end(self) -> str:
        return self._log.read_text("utf-8", "replace")[-800:] if self._log.exists() else ""
