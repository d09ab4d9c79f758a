"""The treasury's SOL: counted, warned of, and named by `/readyz` when it pays for nothing more.

See interface O1.
"""

import logging
from collections.abc import Iterator

import bounds
import httpx
import money
import pytest
import validators
from prometheus_client.parser import text_string_to_metric_families
from server_world import START, raw_client

from agentpay_server import AgentPayServer, Settings

RESERVE = 20_000_000
"""Lamports that new work leaves in the treasury (interface F5)."""

FEE = 2 * 5_000
"""Lamports that a transfer costs."""


@pytest.fixture(autouse=True)
def probed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request read the chain, not the first one of a second for all."""
    bounds.shorten(monkeypatch, probed_every_seconds=0)


class Watched:
    """A server whose treasury holds what a test says."""

    def __init__(self, server: AgentPayServer, http: httpx.Client) -> None:
        self.server, self.http = server, http

    def holds(self, lamports: int) -> None:
        money.give_treasury(self.server, lamports)

    def not_ready(self) -> list[str]:
        answer = self.http.get("/readyz")
        return [] if answer.status_code == 200 else list(answer.json()["not_ready"])

    def sol(self) -> float | None:
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            if family.name == "agentpay_treasury_sol":
                return float(family.samples[0].value)
        return None


@pytest.fixture
def watched() -> Iterator[Watched]:
    validators.embedded_only("what its treasury holds is set in the virtual machine")
    settings = Settings(treasury_low_sol="0.5")
    with AgentPayServer(clock=START, settings=settings) as server, raw_client(server, "") as http:
        yield Watched(server, http)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("treasury.low")]


@pytest.mark.parametrize(
    ("lamports", "not_ready"),
    [(0, ["treasury"]), (RESERVE + FEE - 1, ["treasury"]), (RESERVE + FEE, [])],
)
def test_a_treasury_that_cannot_pay_for_a_transaction_is_not_ready(
    watched: Watched, lamports: int, not_ready: list[str]
) -> None:
    watched.holds(lamports)
    assert watched.not_ready() == not_ready


def test_each_fall_of_the_treasury_below_the_threshold_is_logged_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="agentpay_server")
    for lamports, told_before in [
        (500_000_000, 0),
        (499_999_999, 1),
        (400_000_000, 1),
        (500_000_000, 1),
        (100_000_000, 2),
    ]:
        watched.holds(lamports)
        watched.sol()
        assert len(told(caplog)) == told_before
    assert "sol=0.499999999 threshold_sol=0.5" in told(caplog)[0]
    assert {record.levelname for record in caplog.records if str(record.msg).startswith("treasury")} == {
        "WARNING"
    }


def test_treasury_checks_do_not_consume_counted_faults(watched: Watched) -> None:
    watched.server.sandbox.clock.advance(0)
    with watched.server.sandbox.fault("chain_down", times=1):
        watched.server.sandbox.clock.advance(minutes=10)
        assert watched.sol() is not None
        with raw_client(watched.server) as http:
            assert [fault["times"] for fault in http.get("/ext/v1/sandbox/faults").json()["data"]] == [1]
