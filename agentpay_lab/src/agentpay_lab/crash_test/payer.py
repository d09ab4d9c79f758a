"""The payer of a trial: a process that is told what to buy, killed, and started again.

It speaks in lines of JSON, and may do anything else as well: write garbage or without end, stay silent, end,
or leave children behind. Little of what it writes is kept.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from agentpay.contract.printable import printable

RESULTS: Final = ("served", "refused", "failed")
"""What a payer may say about an order."""

MAX_ENDS: Final = 4
"""A payer that ends so often, and gives no result, cannot be tried."""

DIRECTORY: Final = "TRIAL_DIRECTORY"
"""The variable that names the directory of a payer, which survives it."""

POLL_SECONDS: Final = 0.002
_LINE_BYTES: Final = 65_536
_LINES: Final = 1_000
_ERROR_LINES: Final = 20
_ERROR_CHARACTERS: Final = 300
_END_SECONDS: Final = 1.0
"""A process that reads no more gets this long to end."""

_ERROR_SECONDS: Final = 1.0


class PayerError(Exception):
    """The payer cannot be tried; the message says why."""


class Payer:
    """The payer's process, which is killed and started again. Whatever it writes, little of it is kept."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], disk: Path) -> None:
        self._command, self._environment, self._disk = command, environment, disk
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._errors: deque[bytes] = deque(maxlen=1)
        self._ends = 0
        self.kills = 0

    def ask(self, order: Mapping[str, str]) -> None:
        """Send an order, to a new process if there is none.

        Raises:
            PayerError: see `end`.
        """
        line = json.dumps(order) + "\n"
        while True:
            process = self._running()
            assert process.stdin is not None  # noqa: S101 - it is a pipe
            try:
                process.stdin.write(line.encode())
                process.stdin.flush()
            except BrokenPipeError:
                self.end()
            else:
                return

    def end(self) -> None:
        """Clean up after a process that ended by itself, or reads no more orders.

        Raises:
            PayerError: several have ended, and none has given a result.
        """
        process = self._process
        assert process is not None  # noqa: S101 - one has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        has_ended = process.returncode is not None
        self.kill(counts=False)
        self._ends += 1
        if self._ends >= MAX_ENDS:
            how = f"ends with exit code {process.returncode}" if has_ended else "closes its standard input"
            lines = "\n".join(self.last_lines())
            raise PayerError(f"the payer {how} before it buys" + (f":\n{lines}" if lines else ""))

    def result(self, order: str) -> str | None:
        """Return the payer's word about an order, if it has come; what is no result is ignored."""
        # Not until it is empty: it may be written faster than it is read.
        for _ in range(self._lines.qsize()):
            # RecursionError: brackets in thousands.
            with contextlib.suppress(ValueError, RecursionError):
                told = json.loads(self._lines.get().decode("utf-8", "replace"))
                if isinstance(told, dict) and told.get("order") == order:
                    result, self._ends = told.get("result"), 0
                    return result if result in RESULTS else "failed"
        return None

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process is None or self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that is gone, until `kill` or `end`."""
        return None if self._process is None else self._process.poll()

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines that the last process wrote on standard error, which may be on their way."""
        deadline = time.monotonic() + _ERROR_SECONDS
        while not self._errors and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        lines = (self._errors[0] if self._errors else b"").decode("utf-8", "replace").split("\n")
        kept = [line.rstrip() for line in lines if line.strip()][-_ERROR_LINES:]
        return tuple(printable(line)[:_ERROR_CHARACTERS] for line in kept)

    def kill(self, *, counts: bool = True) -> None:
        """Kill the process and its children, those in other process groups too where /proc shows them."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _kill_those_of(self._disk)
        if self._process.stdin is not None:
            # What was not written yet is lost with the process.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process, self._lines = None, queue.SimpleQueue()
        self.kills += counts

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None:
            return self._process
        # Children of a payer that has ended by itself.
        self.kill(counts=False)
        self._lines, self._errors = queue.SimpleQueue(), deque(maxlen=1)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the caller's command
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise PayerError(f"the payer cannot be started: {error}") from None
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        threading.Thread(target=_keep_end, args=(self._process.stderr, self._errors), daemon=True).start()
        return self._process


def _read(stdout: IO[bytes], lines: "queue.SimpleQueue[bytes]") -> None:
    """Keep whole lines of a result's length, at most some at a time; read the rest away."""
    with stdout:
        is_rest = False
        while chunk := stdout.readline(_LINE_BYTES):
            is_whole = chunk.endswith(b"\n")
            if is_whole and not is_rest and lines.qsize() < _LINES:
                lines.put(chunk)
            is_rest = not is_whole


def _keep_end(stderr: IO[bytes], end: "deque[bytes]") -> None:
    with stderr:
        while chunk := os.read(stderr.fileno(), _LINE_BYTES):
            kept = end[0] if end else b""
            end.append((kept + chunk)[-_LINE_BYTES:])


def _kill_those_of(disk: Path) -> None:
    """Kill processes whose environment names a payer's directory: its children, wherever they went."""
    mark = f"{DIRECTORY}={disk}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environ.read_bytes().split(b"\0"):
                os.kill(int(environ.parent.name), signal.SIGKILL)
