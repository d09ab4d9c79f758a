"""Other projects' clients against the same hostile sellers and kills, each in a separate environment.

Such a client holds the key and signs in the agent's process: there is no server and no policy, so only agents
are killed.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from agentpay.contract.usdc import from_micro, to_micro
from agentpay_lab.crash_test.node import ChainNode, LandedPayments
from agentpay_lab.crash_test.run import KILL_EVERY_SECONDS, PRICE_USDC, SPEED
from agentpay_lab.crash_test.servers import CannotStartError
from agentpay_server.paywall import Mode, Paywall, Protocol

TRIES: Final = 4
_PROGRAMS: Final = Path(__file__).with_name("peer_programs")
_NETWORK: Final = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
_INSTALL_SECONDS: Final = 600
_LOOK_SECONDS: Final = 0.1
_WALLET_USDC: Final = 1_000
_LATEST_SECONDS: Final = 30.0
"""How long sellers may broadcast after the end, in real time: longer than they hold a payment."""


@frozen(kw_only=True)
class PeerClient:
    """A client: its packages, the program that buys with it, and its payment protocol."""

    name: str
    packages: tuple[str, ...]
    program: str
    protocol: Protocol


PEERS: Final = (
    PeerClient(
        name="@x402/fetch 2.27.0",
        packages=("@x402/fetch@2.27.0", "@x402/core@2.27.0", "@x402/svm@2.27.0", "@solana/kit@5.5.1"),
        program="x402_fetch.mjs",
        protocol=Protocol.X402_V2,
    ),
    PeerClient(
        name="x402 2.25.0 (PyPI)",
        packages=("x402[svm,httpx]==2.25.0",),
        program="x402_python.py",
        protocol=Protocol.X402_V2,
    ),
    PeerClient(
        name="pympp 0.16.0",
        packages=("pympp==0.16.0", "solders==0.29.0"),
        program="pympp_client.py",
        protocol=Protocol.MPP,
    ),
)


@frozen(kw_only=True)
class PeerLine:
    """Results of a client; `twice` and `settled` according to the chain.

    `twice_in_a_call` are purchases paid more often than the client was called for them.
    """

    client: str
    purchases: int
    asked: int
    served: int
    settled: int
    twice: int
    twice_in_a_call: int
    settled_usdc: Decimal
    kills: int


def run_peers(
    *, seed: int, seconds: float, purchases: int, scratch: Path, say: Callable[[str], None]
) -> Iterator[PeerLine]:
    """Run each peer, and yield its results; `CannotStartError` if one cannot be installed.

    `seconds` is the duration of purchases and kills per peer, `purchases` the maximum.
    """
    for peer in PEERS:
        say(f"installing {peer.name}")
        command = _installed(peer)
        say(f"running {peer.name}")
        names = [f"{peer.program.partition('.')[0]}-{number}" for number in range(purchases)]
        chance = random.Random(seed)  # noqa: S311 - no secret depends on it
        yield _run(peer, command, names, chance=chance, seconds=seconds, files=scratch / peer.program)


def _run(
    peer: PeerClient,
    command: Sequence[str],
    names: Sequence[str],
    *,
    chance: random.Random,
    seconds: float,
    files: Path,
) -> PeerLine:
    done = files.with_suffix(".done")
    with (
        contextlib.closing(ChainNode(speed=SPEED)) as node,
        Paywall(rpc_url=node.url, clock=node.clock) as shop,
    ):
        for name in names:
            mode = chance.choice(tuple(Mode))
            shop.sell(f"/{name}", PRICE_USDC, protocols=[peer.protocol], external_id=name, mode=mode)
        plan: dict[str, Any] = {
            "done": str(done),
            "mint": node.usdc_mint,
            "network": _NETWORK,
            "price_micro": str(to_micro(PRICE_USDC)),
            "purchases": [[name, f"/{name}"] for name in names],
            "rpc_url": node.url,
            "secret": list(bytes(node.wallet(to_micro(_WALLET_USDC)))),
            "shop": shop.listen(),
            "tries": TRIES,
        }
        plan_file = files.with_suffix(".json")
        plan_file.write_text(json.dumps(plan), "utf-8")
        with files.with_suffix(".log").open("ab") as log:
            kills = _disturbed([*command, str(plan_file)], log, chance, seconds)
        ends_at = time.monotonic() + _LATEST_SECONDS
        while time.monotonic() < ends_at and any(sale.status == "held" for sale in shop.sales):
            time.sleep(_LOOK_SECONDS)
        return line_of(peer, names, done, node.landed(), kills=kills)


def _disturbed(command: Sequence[str], log: Any, chance: random.Random, seconds: float) -> int:  # noqa: ANN401 - a binary file
    """Run and kill the agent until it finishes or the time is up; return the number of kills."""
    kills, ends_at = 0, time.monotonic() + seconds
    while True:
        kill_at = time.monotonic() + chance.expovariate(1 / KILL_EVERY_SECONDS)
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - a command of ours
        try:
            process.wait(max(min(kill_at, ends_at) - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        else:
            return kills
        if time.monotonic() >= ends_at:
            return kills


def line_of(
    peer: PeerClient, names: Sequence[str], done: Path, landed: LandedPayments, *, kills: int
) -> PeerLine:
    noted = done.read_text("utf-8").splitlines() if done.exists() else []
    asked = {name: noted.count(f"{name} asked") for name in names}
    tried = [name for name in names if asked[name]]
    return PeerLine(
        client=peer.name,
        purchases=len(tried),
        asked=sum(asked.values()),
        served=sum(f"{name} served" in noted for name in tried),
        settled=sum(landed.times(name) > 0 for name in tried),
        twice=sum(landed.times(name) > 1 for name in tried),
        twice_in_a_call=sum(landed.times(name) > asked[name] for name in tried),
        settled_usdc=from_micro(sum(landed.micro(name) for name in tried)),
        kills=kills,
    )


# --- Environments


def _installed(peer: PeerClient) -> list[str]:
    """Return the command that runs a peer's program; installs its packages at the first use."""
    digest = hashlib.sha256("\n".join((*peer.packages, sys.version)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentpay" / "crash-test"
    directory = cache / f"{peer.program.partition('.')[0]}-{digest}"
    is_node = peer.program.endswith(".mjs")
    mark = directory / "complete"
    try:
        if not mark.exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            (_install_node if is_node else _install_python)(directory, peer.packages)
            mark.touch()
        if not is_node:
            return [str(_python_of(directory)), str(_PROGRAMS / peer.program)]
        # Node resolves packages relative to the program.
        program = directory / peer.program
        shutil.copyfile(_PROGRAMS / peer.program, program)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        raise CannotStartError(f"{peer.name} could not be installed: {output[-500:]}") from None
    return ["node", str(program)]


def _install_node(directory: Path, packages: Sequence[str]) -> None:
    # These packages' peer dependencies conflict, and are not needed.
    flags = ["--no-audit", "--no-fund", "--no-package-lock", "--legacy-peer-deps", "--silent"]
    _call(["npm", "install", *flags, "--prefix", str(directory), *packages])


def _install_python(directory: Path, packages: Sequence[str]) -> None:
    _call([sys.executable, "-m", "venv", str(directory / "venv")])
    _call([str(_python_of(directory)), "-m", "pip", "install", "--quiet", *packages])


def _python_of(directory: Path) -> Path:
    windows = directory / "venv/Scripts/python.exe"
    return windows if windows.exists() else directory / "venv/bin/python"


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)  # noqa: S603 - commands of ours
