"""Try public payment clients, and print the page of the results: `python scripts/trial_results.py DIRECTORY`.

DIRECTORY keeps the clients' packages between runs. Takes about two minutes per client:

    python scripts/trial_results.py ~/.cache/agentpay/trials > docs/reference/trials.md
"""

import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen

from agentpay import __version__
from agentpay_lab.crash_test import trial
from agentpay_lab.crash_test.orders import TrialPlan, TrialProtocol, TrialReport
from agentpay_lab.crash_test.trial import Trial

SEED, SECONDS = 2, 60.0
ADAPTERS = Path(trial.__file__).with_name("adapters")
HEAD = """\
# Trials of public clients

See what public payment clients did in the [crash test](../how-to/crash-test.md#other-clients), which gives
orders, kills the client and asks again, while sellers misbehave. Payments were counted on the chain, for each
order. `scripts/trial_results.py` writes this page.

| client | version | protocol | orders | kills | paid twice | found after | the shortest run that fails |
| -- | -- | -- | -- | -- | -- | -- | -- |"""
TAIL = """
All trials: {date}, seed {seed}, at most {seconds:.0f} seconds of orders, on {processors} processors at a
load average of {load:.0f}. A trial ends at the first order that was paid twice; *found after* counts from
its first order. The first three rows are the adapter of this project's client, whose payments the service
makes under the order's name. `session` is a session of MPP, and `upto` a scheme of x402. For both, what
was settled from the channels of an order counts as paid for it. The other clients sign with a wallet of
their own, with their spend controls where they have some, and have no name for a purchase: their adapters
call them again when they are asked again. The moments of kills depend on the machine, so the numbers of
another run differ.
"""


@frozen(kw_only=True)
class Client:
    """A public client, and the adapter that buys with it."""

    name: str
    version: str
    packages: tuple[str, ...]
    adapter: str
    protocol: TrialProtocol


CLIENTS = (
    *(
        Client(name="agentpay", version=__version__, packages=(), adapter="payer.py", protocol=protocol)
        for protocol in (TrialProtocol.X402_V2, TrialProtocol.SESSION, TrialProtocol.UPTO)
    ),
    *(
        Client(
            name="@x402/fetch (npm)",
            version="2.27.0",
            packages=("@x402/fetch@2.27.0", "@x402/core@2.27.0", "@x402/svm@2.27.0", "@solana/kit@5.5.1"),
            adapter="wallets/x402_fetch.mjs",
            protocol=protocol,
        )
        for protocol in (TrialProtocol.X402_V2, TrialProtocol.UPTO)
    ),
    Client(
        name="x402 (PyPI)",
        version="2.25.0",
        packages=("x402[svm,httpx]==2.25.0",),
        adapter="wallets/x402_python.py",
        protocol=TrialProtocol.X402_V2,
    ),
    Client(
        name="pympp (PyPI)",
        version="0.16.0",
        packages=("pympp==0.16.0", "solders==0.29.0"),
        adapter="wallets/pympp_client.py",
        protocol=TrialProtocol.MPP,
    ),
)


def command_of(client: Client, root: Path) -> tuple[str, ...]:
    """Install a client's packages, unless they are, and return the command that runs its adapter."""
    program = ADAPTERS / client.adapter
    if not client.packages:
        return (sys.executable, "-P", str(program))
    directory = root / f"{program.stem}-{client.version}"
    mark = directory / "complete"
    is_node = program.suffix == ".mjs"
    directory.mkdir(parents=True, exist_ok=True)
    if not mark.exists():
        if is_node:
            flags = ("--no-audit", "--no-fund", "--legacy-peer-deps", "--silent", "--prefix", str(directory))
            npm = shutil.which("npm") or "npm"
            subprocess.run((npm, "install", *flags, *client.packages), check=True)
        else:
            subprocess.run((sys.executable, "-m", "venv", str(directory)), check=True)
            pip = (str(directory / "bin/python"), "-m", "pip", "install", "--quiet")
            subprocess.run((*pip, *client.packages), check=True)
        mark.touch()
    if not is_node:
        return (str(directory / "bin/python"), str(program))
    # Node resolves packages relative to the program.
    copy = directory / program.name
    copy.write_text(program.read_text("utf-8"), "utf-8")
    return ("node", str(copy))


def line_of(client: Client, report: TrialReport, found_after: float) -> str:
    """Return the row of a client."""
    shortest = "none" if report.shortest is None else report.shortest.story
    wrong = "none" if report.first_wrong is None else report.first_wrong
    after = f"{found_after:.0f} s" if report.first_wrong is not None else "not found"
    cells = [client.name, client.version, client.protocol.value, str(len(report.orders)), str(report.kills)]
    return f"| {' | '.join([*cells, wrong, after, shortest])} |"


def main() -> None:
    """Try each client, and print its row when its trial ends."""
    root = Path(sys.argv[1]).expanduser()
    print(HEAD)
    for client in CLIENTS:
        plan = TrialPlan(
            command=command_of(client, root),
            seed=SEED,
            seconds=SECONDS,
            orders=10_000,
            protocols=(client.protocol,),
        )
        began = time.monotonic()
        times = {"first order": began, "found": began}

        def say(what: str, began: float = began, times: dict[str, float] = times) -> None:
            print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr)
            if what.startswith("order-0:"):
                times["first order"] = time.monotonic()
            elif what == "waiting for every payment to end":
                times["found"] = time.monotonic()

        report = Trial(plan, say).run()
        print(line_of(client, report, times["found"] - times["first order"]), flush=True)
    said = {"date": datetime.now(UTC).date(), "seed": SEED, "seconds": SECONDS}
    print(TAIL.format(**said, processors=os.cpu_count(), load=os.getloadavg()[-1]), end="")


if __name__ == "__main__":
    main()
