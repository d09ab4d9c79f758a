"""The daily limit and the balance: reached to the last unit, passed by none (interface PO9; P9)."""

import asyncio
from collections import Counter
from datetime import timedelta
from decimal import Decimal

import money
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from server_world import Funded

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.transfers import Transfer
from agentpay.errors import APIError, InsufficientBalanceError, PolicyViolationError
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

DAY_SECONDS = 24 * 3600
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def payee(funded: Funded) -> Account:
    return funded("1", name="Payee")


def pay(client: AgentPay, payer: Account, payee: Account, amount: str) -> bool:
    """Pay, and tell whether the daily limit allowed it."""
    try:
        transfer = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=amount)
    except PolicyViolationError:
        return False
    return transfer.status == "settled"


def test_spending_may_reach_the_limit_exactly_and_not_exceed_it(
    server: AgentPayServer, client: AgentPay, funded: Funded, payee: Account
) -> None:
    payer = funded("100")
    client.policies.update(payer.account_id, max_daily_spend=10)
    assert pay(client, payer, payee, "9.999998")
    assert not pay(client, payer, payee, "0.000003")
    assert pay(client, payer, payee, "0.000001")
    assert not pay(client, payer, payee, "0.000002")
    assert pay(client, payer, payee, "0.000001")
    assert not pay(client, payer, payee, "0.000001")
    detail = server.console.details(payer.account_id)
    assert (detail.spent_usdc, detail.reserved_usdc, detail.remaining_usdc) == (10, 0, 0)


def test_a_spend_counts_until_a_microsecond_before_24_hours(
    server: AgentPayServer, client: AgentPay, funded: Funded, payee: Account
) -> None:
    payer = funded("100")
    client.policies.update(payer.account_id, max_daily_spend=10)
    assert pay(client, payer, payee, "10")
    server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    assert not pay(client, payer, payee, "0.000001")
    server.sandbox.clock.advance(0.000001)
    assert server.console.details(payer.account_id).spent_usdc == 0
    assert pay(client, payer, payee, "10")
    assert not pay(client, payer, payee, "0.000001")


@given(
    spends=st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=10 * 3600 * 1000),
            st.integers(min_value=1, max_value=10),
            st.booleans(),
        ),
        max_size=5,
    ),
    wanted=st.integers(min_value=1, max_value=12),
)
@example(spends=[(0, 4, False), (1, 4, False), (0, 2, False)], wanted=5)
@example(spends=[(0, 4, True), (1, 4, False)], wanted=7)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_refused_agent_that_waits_until_available_at_pays_and_a_microsecond_earlier_does_not(
    server: AgentPayServer,
    client: AgentPay,
    funded: Funded,
    spends: list[tuple[int, int, bool]],
    wanted: int,
) -> None:
    """By transfers and open sessions: a session's cap is reserved for as long as it is open."""
    clock, payer, payee = server.sandbox.clock, funded("1000"), funded("1", name="Payee")
    client.policies.update(payer.account_id, max_daily_spend=10)
    held = 0
    for wait_ms, amount, is_session in spends:
        clock.advance(wait_ms / 1000)
        try:
            if is_session:
                client.sessions.open(account_id=payer.account_id, to=payee.account_id, cap_usdc=amount)
                held += amount
            else:
                pay(client, payer, payee, str(amount))
        except PolicyViolationError:
            continue
    terms = {"from_": payer.account_id, "to": payee.account_id, "amount": wanted}
    check = client.transfers.check(**terms)
    if check.decision == "settle":
        return
    with pytest.raises(PolicyViolationError) as caught:
        client.transfers.create(**terms)
    refused = caught.value
    assert (refused.rule, refused.limit_usdc, refused.requested_usdc) == ("max_daily_spend", 10, wanted)
    assert refused.body is not None
    assert check.refusal == refused.body.refusal
    assert (refused.available_at is None) == (held + wanted > 10)
    if refused.available_at is None:
        clock.advance(2 * DAY_SECONDS)
        assert not pay(client, payer, payee, str(wanted))
        return
    clock.advance((refused.available_at - clock.now() - MICROSECOND).total_seconds())
    assert not pay(client, payer, payee, str(wanted))
    clock.advance(MICROSECOND.total_seconds())
    assert pay(client, payer, payee, str(wanted))


def test_spends_before_the_limit_was_set_count(client: AgentPay, funded: Funded, payee: Account) -> None:
    payer = funded("100")
    assert pay(client, payer, payee, "8")
    client.policies.update(payer.account_id, max_daily_spend=10)
    assert not pay(client, payer, payee, "2.000001")
    assert pay(client, payer, payee, "2")
    client.policies.update(payer.account_id, max_daily_spend=5)
    assert not pay(client, payer, payee, "0.000001")


def test_neither_refusals_nor_deposits_change_the_remaining_limit(
    server: AgentPayServer, client: AgentPay, funded: Funded, payee: Account
) -> None:
    payer = funded("10")
    client.policies.update(payer.account_id, max_daily_spend=20, max_single_transfer=15)
    assert not pay(client, payer, payee, "16")
    with pytest.raises(InsufficientBalanceError):
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="11")
    assert server.console.details(payer.account_id).spent_usdc == 0
    assert pay(client, payer, payee, "10")
    assert pay(client, payee, payer, "10")
    server.sandbox.fund(payer.account_id, "10")
    assert server.console.details(payer.account_id).remaining_usdc == 10
    assert pay(client, payer, payee, "10")
    assert not pay(client, payer, payee, "0.000001")


async def outcomes_of_200(server: AgentPayServer, payer: Account, payee: Account) -> Counter[str]:
    client = server.async_client()
    made = await asyncio.gather(
        *(
            client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
            for _ in range(200)
        ),
        return_exceptions=True,
    )
    counted: Counter[str] = Counter()
    for outcome in made:
        if isinstance(outcome, Transfer):
            counted[outcome.status] += 1
        else:
            assert isinstance(outcome, APIError), outcome
            counted[f"{outcome.transfer_status} {outcome.code}"] += 1
    return counted


@pytest.mark.anyio
async def test_200_racing_transfers_reach_the_limit_and_do_not_exceed_it(
    server: AgentPayServer, client: AgentPay, funded: Funded, payee: Account
) -> None:
    payer = funded("300")
    client.policies.update(payer.account_id, max_daily_spend="50.999999")
    counted = await outcomes_of_200(server, payer, payee)
    assert counted == {"settled": 50, "rejected policy_violation": 150}
    assert money.held(server, payee.usdc_token_account) == 51_000_000
    assert server.console.details(payer.account_id).spent_usdc == 50


@pytest.mark.anyio
async def test_200_racing_transfers_spend_the_balance_and_none_fails_on_chain(
    server: AgentPayServer, client: AgentPay, funded: Funded, payee: Account
) -> None:
    payer = funded("50.999999")
    counted = await outcomes_of_200(server, payer, payee)
    assert counted == {"settled": 50, "rejected insufficient_balance": 150}
    assert money.held(server, payer.usdc_token_account) == 999_999
    assert server.console.details(payer.account_id).reserved_usdc == Decimal(0)
