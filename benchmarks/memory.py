"""What 100,000 transfers leave behind on a data directory: in the memory of the process, and at a start.

The transfers are made in a separate process, whose resident memory is read after a first 5,000 and again at
the end. A start is the whole of `agentpay-server serve`, from the shell to the line that it accepts requests.
AGENTPAY_BENCH_TRANSFERS makes it fewer.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from harness import Result, print_table, resident_bytes

from agentpay_server import AgentPayServer

TRANSFERS = int(os.environ.get("AGENTPAY_BENCH_TRANSFERS", "100000"))
WARM_UP = 5_000
CALLERS = 16
GROWTH_MB, START_SECONDS = 20, 1.5
SERVE = [sys.executable, "-m", "agentpay_server", "serve", "--port", "0", "--data-dir"]


def run() -> list[Result]:
    """Return how memory grew, and how long a start takes against one on an empty directory."""
    with tempfile.TemporaryDirectory() as scratch:
        full, empty = f"{scratch}/full", f"{scratch}/empty"
        grown = subprocess.run(
            [sys.executable, __file__, full], check=True, stdout=subprocess.PIPE, text=True
        )
        told = json.loads(grown.stdout)
        starts = [(_start(full), _start(empty)) for _ in range(6)][1:]
    growth_mb = (told["after"] - told["before"]) / 1e6
    full_start, empty_start = (statistics.median(times) for times in zip(*starts, strict=True))
    return [
        Result(
            f"a transfer on a data directory, {CALLERS} callers; {TRANSFERS:,} of them grow the process by "
            f"{growth_mb:.1f} MB (below {GROWTH_MB}: {'ok' if growth_mb < GROWTH_MB else 'MISSED'})",
            told["seconds"] / TRANSFERS * 1e6,
            told["first_seconds"] / WARM_UP * 1e6,
            (told["seconds"] / TRANSFERS) / (told["first_seconds"] / WARM_UP),
            None,
        ),
        Result(
            f"start on {TRANSFERS:,} transfers, against an empty directory (below {START_SECONDS} s: "
            f"{'ok' if full_start < START_SECONDS else 'MISSED'})",
            full_start * 1e6,
            empty_start * 1e6,
            full_start / empty_start,
            None,
        ),
    ]


def _start(directory: str) -> float:
    begin = time.perf_counter()
    with subprocess.Popen([*SERVE, directory], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - begin
        process.terminate()
    assert line
    return seconds


def grow(directory: str) -> None:
    """Make the transfers, and print how much memory the process has before and after, in bytes."""
    with AgentPayServer(data_dir=directory, clock="system", seed=1) as server:
        client = server.client()
        pairs = [
            (client.accounts.create(name="payer").account_id, client.accounts.create(name="payee").account_id)
            for _ in range(CALLERS)
        ]
        for payer, _ in pairs:
            server.sandbox.fund(payer, "1000000")

        async def transfers(count: int) -> None:
            async_client = server.async_client()
            left = iter(range(count))

            async def caller(payer: str, payee: str) -> None:
                for _ in left:
                    await async_client.transfers.create(from_=payer, to=payee, amount="0.01")

            await asyncio.gather(*(caller(*pair) for pair in pairs))

        first_seconds = _timed(transfers, WARM_UP)
        before = resident_bytes()
        seconds = _timed(transfers, TRANSFERS)
        after = resident_bytes()
    print(json.dumps({"before": before, "after": after, "seconds": seconds, "first_seconds": first_seconds}))


def _timed(transfers, count: int) -> float:
    begin = time.perf_counter()
    asyncio.run(transfers(count))
    return time.perf_counter() - begin


if __name__ == "__main__":
    if len(sys.argv) > 1:
        grow(sys.argv[1])
    else:
        print_table(run())
