"""Going back to a snapshot through the client, after a test that has paid: bound in milliseconds.

The floor is a request of the same way that changes nothing. The world is one that a suite would build once:
twenty accounts with money, a hundred transfers. What the test does is not measured.
"""

import statistics
from collections.abc import Callable

from harness import Result, seconds_per_call

from agentpay_server import AgentPayServer

BOUND_MS = 5.0
ACCOUNTS = 20
TRANSFERS = 100
TESTS = 200


def run() -> list[Result]:
    """Return how long a restore and a snapshot take, as multiples of reading the clock."""
    with AgentPayServer() as server:
        client, sandbox = server.client(), server.sandbox
        accounts = [client.accounts.create(name=f"Account {n}").account_id for n in range(ACCOUNTS)]
        for account_id in accounts:
            sandbox.fund(account_id, 1_000)

        def pay(key: str) -> None:
            client.transfers.create(from_=accounts[0], to=accounts[1], amount=1, idempotency_key=key)

        for number in range(TRANSFERS):
            pay(f"before-{number}")
        snapshot = sandbox.snapshot()

        def test() -> None:
            client.accounts.create(name="Made by the test")
            pay("key")

        def measured(name: str, subject: Callable[[], object], *, restore_after: bool) -> Result:
            pairs = []
            for _ in range(TESTS):
                test()
                pairs.append((seconds_per_call(subject, 1), seconds_per_call(sandbox.clock.now, 1)))
                if restore_after:
                    sandbox.restore(snapshot)
            subject_us, floor_us = (statistics.median(times) * 1e6 for times in zip(*pairs, strict=True))
            verdict = "ok" if subject_us <= BOUND_MS * 1000 else "MISSED"
            ratio = statistics.median(s / f for s, f in pairs)
            return Result(f"{name} (at most {BOUND_MS:.0f} ms: {verdict})", subject_us, floor_us, ratio, None)

        return [
            measured("sandbox.restore(...)", lambda: sandbox.restore(snapshot), restore_after=False),
            measured("sandbox.snapshot()", sandbox.snapshot, restore_after=True),
        ]
