"""Within `with PaymentAuth(…)`, the outcome of a voucher travels with the next request to the service."""

from collections.abc import Iterator

import bounds
import httpx
import pytest

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.errors import SessionCapExceededError
from agentpay.payments import PaymentAuth
from agentpay.types import VoucherReport
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall

pytestmark = pytest.mark.embedded_chain("the seller lives on its chain")


@pytest.fixture
def shop(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server, {}) as paywall:
        paywall.sell_by_session("/call", "0.001")
        yield paywall


@pytest.fixture
def seller(shop: Paywall) -> Iterator[httpx.Client]:
    with httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
        yield http


def auth_of(client: AgentPay, account: Account, seller: object, cap: str = "1") -> PaymentAuth:
    return PaymentAuth(client, account_id=account.account_id, session_cap=cap, seller_client=seller)


def reports(server: AgentPayServer) -> int:
    """Return how many requests did nothing but report."""
    return sum(request.path.endswith("/outcome") for request in server.requests)


def test_a_loop_sends_no_reports_of_their_own(
    server: AgentPayServer,
    client: AgentPay,
    account: Account,
    seller: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds.shorten(monkeypatch, late_report_seconds=3600.0)
    with auth_of(client, account, seller) as auth:
        for _ in range(5):
            assert seller.get("/call", auth=auth).status_code == 200
        assert reports(server) == 0
    # The last one is reported before the session is closed.
    assert reports(server) == 1


def test_a_report_that_no_request_takes_along_is_sent_by_itself(
    server: AgentPayServer,
    client: AgentPay,
    account: Account,
    seller: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds.shorten(monkeypatch, late_report_seconds=0.01)
    with auth_of(client, account, seller) as auth:
        seller.get("/call", auth=auth)
        # Another process gets the next voucher as soon as it is reported.
        other = auth_of(client.with_options(max_retries=50), account, seller)
        assert seller.get("/call", auth=other).status_code == 200


def test_a_refused_request_keeps_the_report(
    server: AgentPayServer,
    client: AgentPay,
    account: Account,
    seller: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds.shorten(monkeypatch, late_report_seconds=3600.0)
    with auth_of(client, account, seller, cap="0.01") as auth:
        for _ in range(10):
            seller.get("/call", auth=auth)
        with pytest.raises(SessionCapExceededError):
            seller.get("/call", auth=auth)
        assert auth._payer.late is not None
        assert len(auth._payer.late._reports) == 1
    assert reports(server) == 1


def test_a_refusal_is_reported_at_once(
    server: AgentPayServer,
    client: AgentPay,
    account: Account,
    shop: Paywall,
    seller: httpx.Client,
) -> None:
    with auth_of(client, account, seller) as auth:
        seller.get("/call", auth=auth)
        shop.sell_by_session("/call", "0.001", mode="steal_voucher")
        refused = [seller.get(f"/call?n={n}", auth=auth).status_code for n in range(2)]
        assert refused == [503, 503]
        (session,) = client.sessions.list(account_id=account.account_id)
        assert (session.status, session.closing_reason) == ("closing", "payee_refuses")


def test_an_unknown_voucher_is_ignored(client: AgentPay, account: Account, seller: httpx.Client) -> None:
    auth = auth_of(client, account, seller)
    asked = seller.get("/call")
    step = client.payments.authorize(
        account_id=account.account_id,
        idempotency_key="call-1",
        response=asked,
        session_cap="1",
        previous=VoucherReport(charge_id="chg_unknown", status_code=200),
    )
    assert step.step == "open"  # type: ignore[union-attr]
    auth.close()
