"""Transfers on a cluster that lands each after 300 ms: how long callers wait, in landings.

The cluster executes nothing (`landing_cluster.py`), so that the path of the server is what counts: HTTP,
PostgreSQL and the calls to the cluster. All are separate processes. AGENTPAY_BENCH_STORE=memory
leaves PostgreSQL out.
"""

import asyncio
import os
import statistics
from contextlib import nullcontext

import postgres
from harness import Result, print_table
from throughput import KEY, Caller, Pair, cluster, connected, cpu_seconds, served, settled

LANDING_SECONDS = 0.3
RESPONSE_SECONDS = 0.005
BOUNDS = {64: 1.25, 256: 2.0, 1_000: 6.0}
"""The longest median, in landings, by the number of callers."""

PAYERS = 64
ROUNDS = 4
_CALLERS_OF_AN_OPERATOR = 500
"""Fewer than a server serves at once."""


def run() -> list[Result]:
    """Print how long transfers take, and the CPU time of each."""
    in_memory = os.environ.get("AGENTPAY_BENCH_STORE") == "memory"
    with nullcontext() if in_memory else postgres.server() as url:
        store = [] if url is None else ["--database-url", postgres.new_database(url, "landings")]
        with cluster("landing_cluster.py", str(LANDING_SECONDS), str(RESPONSE_SECONDS)) as options:
            return asyncio.run(_measured(store, options))


async def _measured(store: list[str], options: list[str]) -> list[Result]:
    results = []
    async with served(store, [*options, "--max-connections", "2000"]) as (process, port):
        async with connected(port, 1) as (caller,):
            keys = [KEY, (await caller.post("/ext/v1/sandbox/operators", {"name": "second"}))["key"]]
        pairs = {key: await _pairs(port, key) for key in keys}
        for count, bound in BOUNDS.items():
            async with connected(port, count) as callers:
                for number, caller in enumerate(callers):
                    caller.key = keys[number // _CALLERS_OF_AN_OPERATOR]
                paid = [pairs[caller.key][number % PAYERS] for number, caller in enumerate(callers)]
                await settled(callers, paid, count * 2, Caller.pay)
                before = cpu_seconds(process)
                seconds = await settled(callers, paid, count * ROUNDS, Caller.pay)
                cpu = (cpu_seconds(process) - before) / len(seconds)
            median = statistics.median(seconds)
            name = f"a cluster that lands in {LANDING_SECONDS} s, {count} callers: median, in landings"
            print(
                f"{count:5} callers: {median / LANDING_SECONDS:.2f} landings, "
                f"{cpu * 1e3:.2f} ms of server CPU for each transfer",
                flush=True,
            )
            results.append(Result(name, median * 1e6, LANDING_SECONDS * 1e6, median / LANDING_SECONDS, bound))
    return results


async def _pairs(port: int, key: str) -> list[Pair]:
    async with connected(port, PAYERS) as callers:
        for caller in callers:
            caller.key = key
        return list(await asyncio.gather(*map(Caller.pair, callers)))


if __name__ == "__main__":
    print_table(run())
