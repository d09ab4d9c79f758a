"""Snapshots with open channels: chain, books and seller go back together, to the unit."""

from collections.abc import Iterator
from decimal import Decimal

import httpx
import pytest

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall, UptoMode

pytestmark = [
    pytest.mark.embedded_chain("the program of channels is on its chain"),
    pytest.mark.plugin("channels"),
]

PRICE = Decimal("0.001")
FUNDS = Decimal(10)
MAXIMUM = Decimal("0.05")
CHARGE = Decimal("0.012")
FORCED_SECONDS = 60 + 120 + 10
GRACE_SECONDS = 900


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server) as shop:
        shop.sell_by_session("/tick", PRICE)
        shop.sell_upto("/answer", MAXIMUM, charge=CHARGE)
        yield shop


def agent(client: AgentPay, account: Account, paywall: Paywall) -> httpx.Client:
    auth = PaymentAuth(client, account_id=account.account_id, session_cap="1")
    return httpx.Client(auth=auth, transport=paywall.transport(), base_url=paywall.base_url)


def call(http: httpx.Client, *keys: str, path: str = "/tick") -> None:
    for key in keys:
        assert http.get(path, extensions={"payment_key": key}).status_code == 200


def balance(client: AgentPay, account: Account) -> Decimal:
    return client.accounts.balance(account.account_id).balance_usdc


def test_a_session_goes_back_with_its_vouchers_and_its_seller(
    server: AgentPayServer, client: AgentPay, account: Account, paywall: Paywall
) -> None:
    with agent(client, account, paywall) as http:
        call(http, "a", "b")
        (session,) = client.sessions.list(account_id=account.account_id)
        before = server.sandbox.snapshot()
        call(http, "c", "d")
    client.sessions.close(session.session_id)
    server.sandbox.clock.advance(61 + GRACE_SECONDS + 5)
    assert client.sessions.get(session.session_id).status == "settled"

    server.sandbox.restore(before)
    again = client.sessions.get(session.session_id)
    assert (again.status, again.running_total_usdc) == ("open", 2 * PRICE)
    assert balance(client, account) == FUNDS - 1
    with agent(client, account, paywall) as http:
        # A repeated key gets its voucher of before; in this future the others were never used.
        call(http, "b", "c")
    assert client.sessions.get(session.session_id).running_total_usdc == 3 * PRICE
    client.sessions.close(session.session_id)
    server.sandbox.clock.advance(61 + GRACE_SECONDS + 5)
    ended = client.sessions.get(session.session_id)
    assert (ended.status, ended.settled_usdc) == ("settled", 3 * PRICE)
    assert balance(client, account) == FUNDS - 3 * PRICE
    budget = client.accounts.budget(account.account_id)
    assert (budget.reserved_usdc, budget.spent_usdc) == (0, 3 * PRICE)


def test_a_session_whose_opening_is_on_its_way_goes_back_with_it(
    server: AgentPayServer, client: AgentPay, account: Account, paywall: Paywall
) -> None:
    with httpx.Client(transport=paywall.transport(), base_url=paywall.base_url) as http:
        step = client.payments.authorize(
            account_id=account.account_id,
            idempotency_key="a",
            response=http.get("/tick"),
            session_cap="1",
        )
        before = server.sandbox.snapshot()
        header = {step.header.name: step.header.value}
        assert http.get("/tick", headers=header).status_code < 400
        server.sandbox.restore(before)
        assert client.sessions.get(step.session_id).status == "opening"
        # Signed before the snapshot, it can land in this future too.
        assert http.get("/tick", headers=header).status_code < 400
    with agent(client, account, paywall) as http:
        call(http, "a")
    assert client.sessions.get(step.session_id).running_total_usdc == PRICE


@pytest.mark.parametrize(("mode", "taken"), [(UptoMode.HONEST, CHARGE), (UptoMode.NEVER_SETTLE, Decimal(0))])
def test_a_payment_up_to_a_maximum_goes_back_with_its_channel(
    server: AgentPayServer,
    client: AgentPay,
    account: Account,
    paywall: Paywall,
    mode: UptoMode,
    taken: Decimal,
) -> None:
    paywall.sell_upto("/answer", MAXIMUM, charge=CHARGE, mode="never_settle")
    with agent(client, account, paywall) as http:
        call(http, "a", path="/answer")
    (payment,) = client.payments.list(account_id=account.account_id)
    assert payment.status == "submitted"
    before = server.sandbox.snapshot()
    server.sandbox.clock.advance(FORCED_SECONDS)
    server.sandbox.clock.advance(GRACE_SECONDS + 10)
    assert client.payments.get(payment.transfer_id).amount_usdc == 0
    assert balance(client, account) == FUNDS

    server.sandbox.restore(before)
    again = client.payments.get(payment.transfer_id)
    assert (again.status, again.amount_usdc) == ("submitted", MAXIMUM)
    assert balance(client, account) == FUNDS - MAXIMUM
    server.sandbox.clock.advance(FORCED_SECONDS)
    server.sandbox.clock.advance(GRACE_SECONDS + 10)
    ended = client.payments.get(payment.transfer_id)
    assert (ended.status, ended.amount_usdc) == ("settled", 0)
    assert balance(client, account) == FUNDS
    # Another purchase has a channel of its own.
    paywall.sell_upto("/answer", MAXIMUM, charge=CHARGE, mode=mode)
    with agent(client, account, paywall) as http:
        call(http, "b", path="/answer")
    server.sandbox.clock.advance(FORCED_SECONDS)
    server.sandbox.clock.advance(GRACE_SECONDS + 10)
    assert balance(client, account) == FUNDS - taken
    budget = client.accounts.budget(account.account_id)
    assert (budget.reserved_usdc, budget.spent_usdc) == (0, taken)
