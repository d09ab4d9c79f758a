"""An account pays a paywall by session, through the service: opening, vouchers, close, each hostile mode.

The chain is the judge: what the account paid is what the paywall settled, to the unit.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall, SessionMode

pytestmark = [
    pytest.mark.embedded_chain("the program of channels is on its chain"),
    pytest.mark.plugin("paywall"),
]

CAP = Decimal("0.01")


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server) as shop:
        shop.sell_by_session("/tick", "0.001")
        yield shop


class Buyer:
    """Buys at a paywall as the client library would, one request after another."""

    def __init__(self, http: httpx.Client, paywall: Paywall, account: Account) -> None:
        self._http, self._account = http, account
        self._shop = httpx.Client(transport=paywall.transport(), base_url=paywall.base_url)
        self._origin = "http://paywall.invalid"

    def authorize(self, asked: httpx.Response, key: str) -> httpx.Response:
        body = {
            "account_id": self._account.account_id,
            "idempotency_key": key,
            "origin": self._origin,
            "headers": [list(pair) for pair in asked.headers.multi_items()],
            "session_cap": str(CAP),
        }
        return self._http.post("/ext/v1/payments", json=body)

    def step(self, key: str) -> dict[str, Any]:
        """Return the step that pays a fresh challenge, after opening a session if there is none."""
        step = self.authorized(key)
        if step["step"] == "open":
            opened = self.present(step)
            assert opened is not None
            assert opened.status_code == 200, opened.text
            step = self.authorized(key)
        assert step["step"] == "voucher"
        return step

    def authorized(self, key: str) -> dict[str, Any]:
        response = self.authorize(self._shop.get("/tick"), key)
        assert response.status_code == 201, response.json()
        return dict(response.json())

    def present(self, step: dict[str, Any]) -> httpx.Response | None:
        """Present the header of a step; None if the connection is dropped."""
        header = step["header"]
        try:
            return self._shop.get("/tick", headers={header["name"]: header["value"]})
        except httpx.RemoteProtocolError:
            return None

    def buy(self, key: str) -> httpx.Response | None:
        """Buy once; report what the seller responded."""
        step = self.step(key)
        response = self.present(step)
        if response is not None:
            path = f"/ext/v1/payments/{step['charge_id']}/outcome"
            reported = self._http.post(path, json={"status_code": response.status_code})
            assert reported.status_code == 200, reported.json()
        return response

    def close(self, session_id: str) -> dict[str, Any]:
        return dict(self._http.post(f"/ext/v1/sessions/{session_id}/close").json())

    def session(self) -> dict[str, Any]:
        (found,) = self._http.get("/ext/v1/sessions").json()["data"]
        return dict(found)


@pytest.fixture
def buyer(http: httpx.Client, paywall: Paywall, account: Account) -> Buyer:
    return Buyer(http, paywall, account)


@pytest.fixture
def spent(client: AgentPay, account: Account) -> Any:
    def look() -> Decimal:
        return 10 - client.accounts.balance(account.account_id).balance_usdc

    return look


def test_a_session_is_bought_from_opening_to_close(
    server: AgentPayServer, paywall: Paywall, buyer: Buyer, spent: Any
) -> None:
    for number in range(5):
        response = buyer.buy(f"call-{number}")
        assert response is not None
        assert (response.status_code, response.json()["paid_usdc"]) == (200, "0.001000")
    assert len(paywall.channels) == 1
    closing = buyer.close(buyer.session()["session_id"])
    closed = buyer.present(closing)
    assert closed is not None
    assert closed.status_code == 200, closed.text
    server.sandbox.clock.advance(5)
    session = buyer.session()
    assert (session["status"], session["settled_usdc"], session["returned_usdc"]) == (
        "settled",
        "0.005000",
        "0.005000",
    )
    assert spent() == paywall.received_usdc == Decimal("0.005")


@pytest.mark.parametrize("mode", list(SessionMode))
def test_no_mode_takes_more_than_the_vouchers(
    server: AgentPayServer, paywall: Paywall, buyer: Buyer, spent: Any, mode: SessionMode
) -> None:
    paywall.sell_by_session("/tick", "0.001", mode=mode)
    step = buyer.step("call-0")
    presented = [buyer.present(step) for _ in range(2)]
    assert step["running_total_usdc"] == "0.001000"
    assert any(response is not None for response in presented)
    closing = buyer.close(step["session_id"])
    if closing["header"] is not None:
        buyer.present(closing)
    # The grace period, and what comes before and after it.
    server.sandbox.clock.advance(60)
    server.sandbox.clock.advance(1_000)
    session = buyer.session()
    assert session["status"] == "settled"
    settled = Decimal(session["settled_usdc"])
    assert settled in (0, Decimal("0.001"))
    assert settled + Decimal(session["returned_usdc"]) == CAP
    assert spent() == settled
    assert paywall.received_usdc == settled


def test_a_payer_that_closes_by_force_pays_what_was_served(
    server: AgentPayServer, paywall: Paywall, buyer: Buyer, spent: Any
) -> None:
    """The close is never presented; the paywall sees it on chain."""
    for number in range(3):
        buyer.buy(f"call-{number}")
    buyer.close(buyer.session()["session_id"])
    server.sandbox.clock.advance(62)
    server.sandbox.clock.advance(1_000)
    assert buyer.session()["status"] == "settled"
    assert spent() == paywall.received_usdc == Decimal("0.003")
