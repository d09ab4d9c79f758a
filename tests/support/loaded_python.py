"""`python -m …` as a separate process, forked from one that has already loaded all that a server needs.

Python and its imports take a second to start, a fork takes milliseconds. What the process does is the same to
its end: its streams, its signals, its exit code. What is loaded when is not: a test of that starts Python.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Self

WAIT_SECONDS = 120.0


class LoadedPython:
    """A process, as `subprocess.Popen` shows it.

    Args:
        arguments: `-m MODULE …`, or `-c CODE …`.
        environment: instead of this process's own.
        stdin: a descriptor for its standard input, which is empty without it.
        stdout: a descriptor for its standard output; without it, `stdout` is the end of a pipe.
        stderr: likewise.
        loads: modules to load before the fork, besides those of a server.
    """

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        loads: Sequence[str] = (),
    ) -> None:
        self.returncode: int | None = None
        self.stdout, out = _stream(stdout)
        self.stderr, err = _stream(stderr)
        ours, report = os.pipe()
        # Unbuffered: all that it has told is in the pipe.
        self._report = os.fdopen(ours, "rb", buffering=0)
        order = {
            "arguments": arguments,
            "environment": dict(os.environ) if environment is None else environment,
            "directory": str(Path.cwd()),
            "loads": loads,
        }
        source = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
        given = [source, out, err, report]
        socket.send_fds(_orders(), [json.dumps(order).encode() + b"\n"], given)
        for number in {*given} - {stdin, stdout, stderr}:
            os.close(number)
        self.pid = self._told(WAIT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.wait()
        for stream in (self.stdout, self.stderr, self._report):
            if stream is not None:
                stream.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may end meanwhile: its parent, the server of forks, does not keep its process id.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        if self.returncode is None:
            self.returncode = self._told(timeout)
        return self.returncode

    def communicate(self, timeout: float = WAIT_SECONDS) -> tuple[str, str]:
        """Wait for its end, and return what it still had to say."""
        said = ["", ""]

        def read(place: int, stream: IO[str]) -> None:
            said[place] = stream.read()

        streams = [each for each in enumerate((self.stdout, self.stderr)) if each[1] is not None]
        readers = [Thread(target=read, args=each, daemon=True) for each in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said[0], said[1]

    def _told(self, timeout: float) -> int:
        if not select.select([self._report], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("python", timeout)
        return int(self._report.readline())


def _stream(given: int | None) -> tuple[IO[str] | None, int]:
    """Return the end of a pipe to read from, and the other; only what is given if anything is."""
    if given is not None:
        return None, given
    ours, theirs = os.pipe()
    return os.fdopen(ours, encoding="utf-8"), theirs


@cache
def _orders() -> socket.socket:
    """Return the connection to the process of this one that the others are forked from."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_python.py")), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait(WAIT_SECONDS)

    atexit.register(end)
    return ours
