"""Surfpool, a real Solana validator for tests: installed once, started on free ports, always torn down.

It is an addon of Node, which `npm` fetches into a cache directory at the first use: `AGENTPAY_SURFPOOL_DIR`,
or a separate directory in the user's cache. Where it cannot run, tests that need it are skipped, with the
reason.
"""

import json
import os
import platform
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

VERSION = "1.5.0"
PACKAGE = "@solana/surfpool-linux-x64-gnu"

_INSTALL_SECONDS = 300
_START_SECONDS = 120
_STOP_SECONDS = 60
_STANDSTILL_SECONDS = 0.5
_PAUSE_SECONDS = 30

# Undrained events block it after some 980 transactions. It ends with its standard input, hence with the
# process that started it, even when that is killed.
_SCRIPT = """
const {Surfnet} = require(process.argv[1]);
const node = Surfnet.startWithConfig(JSON.parse(process.argv[2]));
setInterval(() => node.drainEvents(), 50);
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
console.log(JSON.stringify({url: node.rpcUrl, websocket_url: node.wsUrl}));
"""


class Surfpool:
    """A running validator.

    Attributes:
        url: of its JSON-RPC endpoint.
        websocket_url: of its websocket.
    """

    def __init__(self, url: str, websocket_url: str) -> None:
        self.url = url
        self.websocket_url = websocket_url
        self._http = httpx.Client(timeout=120, trust_env=False)

    def call(self, method: str, *params: Any) -> Any:
        """Return the result of a JSON-RPC call; fail on an error."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        answer = self._http.post(self.url, json=body).json()
        assert "error" not in answer, answer
        return answer["result"]

    @contextmanager
    def blocks_paused(self) -> Iterator[None]:
        """Produce no blocks within the `with` block.

        Surfpool responds to `pauseClock` before the block that has begun ends. On a busy machine, that block
        includes transactions sent afterwards. So the `with` block begins once the slot has stopped changing.
        """
        self.call("surfnet_pauseClock")
        try:
            self._await_standstill()
            yield
        finally:
            self.call("surfnet_resumeClock")

    def _await_standstill(self) -> None:
        deadline = time.monotonic() + _PAUSE_SECONDS
        slot, since = None, 0.0
        while slot is None or time.monotonic() - since < _STANDSTILL_SECONDS:
            assert time.monotonic() < deadline, f"the slot changes {_PAUSE_SECONDS} s after the pause"
            asked_at = time.monotonic()
            current = self.call("getSlot", {"commitment": "processed"})
            if current != slot:
                slot, since = current, asked_at
            time.sleep(0.02)

    def close(self) -> None:
        self._http.close()


@contextmanager
def running(slot_ms: int = 50) -> Iterator[Surfpool]:
    """Start a validator of one's own, and stop it in the end; skip the test where that is impossible."""
    config = {"offline": True, "blockProductionMode": "clock", "slotTimeMs": slot_ms}
    process = subprocess.Popen(
        ["node", "-e", _SCRIPT, str(_package()), json.dumps(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        assert ready, f"Surfpool did not start within {_START_SECONDS} s"
        node = Surfpool(**json.loads(process.stdout.readline()))
        try:
            yield node
        finally:
            node.close()
    finally:
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def needs_linux_and_node() -> None:
    """Skip the test on a machine that Surfpool's addon does not run on."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("Surfpool's addon is for Linux on x86-64")
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs Node and npm")


def _package() -> Path:
    """Return where the addon is, installed if it is not there yet."""
    needs_linux_and_node()
    return installed("complete", f"{PACKAGE}@{VERSION}") / PACKAGE


def installed(mark: str, *packages: str) -> Path:
    """Return the `node_modules` that holds packages of npm, installed once; skip the test without Node.

    Args:
        mark: names them: a file next to them says that they are complete.
        packages: each with its version.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs Node and npm")
    import fcntl  # noqa: PLC0415 - elsewhere than on Unix there is none.

    directory = _directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        # Test processes start together, and only one is to install.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / mark).exists():
            _install(directory, packages)
            (directory / mark).touch()
    return directory / "node_modules"


def _install(directory: Path, packages: tuple[str, ...]) -> None:
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(directory), *packages]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"{', '.join(packages)} could not be installed: {told[-300:]}")


def _directory() -> Path:
    chosen = os.environ.get("AGENTPAY_SURFPOOL_DIR")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "agentpay" / f"surfpool-{VERSION}"
