"""The cost of setting up and tearing down a server per test, warm, compared with moto's `mock_aws`.

Warm means that a virtual machine is at hand: the first server of a process makes one, which takes longer than
all the rest, and every later one takes over the machine of the one before, emptied
(`chain/embedded/virtual_machine.py`). The floor here is that making: what every test would pay if machines
were thrown away.
"""

import time
from contextlib import suppress

from attrs import evolve
from harness import Result, compare, resident_bytes
from solders.litesvm import LiteSVM

from agentpay_server import AgentPayServer

BOUND_MS = 3.0
OF_MOTO = 0.2
TESTS = 1_000
TESTS_BOUND_SECONDS = 30.0
GROWTH_BOUND_MB = 5.0


def run() -> list[Result]:
    """Return the cost of the fixture, absolute and in parts of moto's, and of a thousand tests that pay."""
    fixture = compare("fixture: set-up and tear-down", subject=_fixture, floor=LiteSVM, bound=None, calls=20)
    results = [_named(fixture, fixture.subject_us / 1000, BOUND_MS, "ms")]
    with suppress(ImportError):
        results += _beside_moto()
    for _ in range(TESTS // 4):
        _test_that_pays()
    before = resident_bytes()
    start = time.perf_counter()
    for _ in range(TESTS):
        _test_that_pays()
    seconds = time.perf_counter() - start
    growth_mb = (resident_bytes() - before) / 1e6
    name = f"{TESTS} tests that provision, fund and pay, on one core (each)"
    paying = Result(
        name, seconds / TESTS * 1e6, fixture.subject_us, seconds / TESTS / fixture.subject_us * 1e6, None
    )
    growth = evolve(paying, name=f"memory over {TESTS} such tests")
    return [
        *results,
        _named(paying, seconds, TESTS_BOUND_SECONDS, "s"),
        _named(growth, growth_mb, GROWTH_BOUND_MB, "MB"),
    ]


def _named(result: Result, measured: float, bound: float, unit: str) -> Result:
    verdict = "ok" if measured <= bound else "MISSED"
    name = f"{result.name} ({measured:.1f} {unit}, at most {bound:.0f} {unit}: {verdict})"
    return Result(name, result.subject_us, result.floor_us, result.ratio, None)


def _fixture() -> None:
    """Do what the fixture `agentpay_server` does around a test."""
    AgentPayServer(seed=7).start().close()


def _test_that_pays() -> None:
    with AgentPayServer(seed=7) as server:
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, 10)
        client.transfers.create(from_=payer, to=payee, amount=5)


def _beside_moto() -> list[Result]:
    import boto3  # noqa: PLC0415 - where it is installed
    from moto import mock_aws  # noqa: PLC0415

    def bare() -> None:
        with mock_aws():
            pass

    def with_a_client() -> None:
        with mock_aws():
            boto3.client("s3", region_name="us-east-1")

    def server_with_a_client() -> None:
        with AgentPayServer(seed=7) as server:
            server.client()

    pairs = (
        ("mock_aws", _fixture, bare),
        ("mock_aws and a client", server_with_a_client, with_a_client),
    )
    return [
        compare(f"fixture vs {name}", subject=subject, floor=floor, bound=OF_MOTO, calls=10)
        for name, subject, floor in pairs
    ]


if __name__ == "__main__":
    from harness import print_table

    print_table(run())
