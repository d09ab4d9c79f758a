"""Sellers write the transactions that pay channels out, and add to them what they like.

Whatever they add, the books have of each channel what its program settled; and chain, balance and history
agree. What does not add up suspends the account.
"""

from collections.abc import Iterator
from decimal import Decimal

import money
import pytest
from attrs import evolve, frozen
from hostile_sellers import CAP, HIGH, LOW, Sale, Shop, ended
from hypothesis import example, given, settings
from hypothesis import strategies as st
from server_world import raw_client
from session_sellers import SessionSeller, UptoSeller, let_call

from agentpay.contract.usdc import to_micro
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

FUNDS = 100_000


@frozen(kw_only=True)
class Payout:
    """What else a seller does in the transaction.

    Attributes:
        credit: what it pays into the account.
        closes: whether it closes a token account of its own.
        refill: what it pays into the first channel's escrow, which it creates again; None for no escrow.
        is_frozen: whether the account cannot receive, so that what should return goes to the treasury.
        stays_open: whether it has settled the first channel before, and paid that out of the open channel.
    """

    sales: tuple[Sale, ...]
    credit: int = 0
    closes: bool = False
    refill: int | None = None
    is_frozen: bool = False
    stays_open: bool = False


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with AgentPayServer() as server, raw_client(server) as http:
        session, upto = SessionSeller.at(server).open(), UptoSeller.at(server)
        upto.wallet, upto.facilitator = session.wallet, session.facilitator
        upto.payee = upto.facilitator
        money.mint(server, session.wallet.token_account, 10**9)
        let_call(server)
        yield Shop(server, http, session, upto)


SALES = st.builds(
    Sale,
    settled=st.sampled_from((None, LOW, HIGH)),
    when=st.sampled_from(("together", "before", "sealed")),
    verified=st.sampled_from((None, "first", "before seal", "before payout")),
    is_inner=st.booleans(),
    flag=st.sampled_from((1, 2, 255)),
    padding=st.sampled_from((0, 1, 200)),
    is_upto=st.booleans(),
)
PAYOUTS = st.builds(
    Payout,
    sales=st.lists(SALES, min_size=1, max_size=2).map(tuple),
    credit=st.sampled_from((0, 1, LOW, 3 * CAP)),
    closes=st.booleans(),
    refill=st.sampled_from((None, 0, LOW, CAP)),
    is_frozen=st.sampled_from((False, False, False, True)),
    stays_open=st.booleans(),
)
PLAIN = Sale(settled=LOW, verified="first")


@example(Payout(sales=(PLAIN,), closes=True))
@example(Payout(sales=(Sale(settled=LOW, verified="first", is_upto=True),), closes=True))
@example(Payout(sales=(Sale(settled=LOW),), credit=HIGH - LOW))
@example(Payout(sales=(Sale(settled=LOW, is_inner=True),), credit=HIGH))
@example(Payout(sales=(Sale(settled=None, verified="before seal"),), credit=LOW))
@example(Payout(sales=(PLAIN, Sale(settled=HIGH, when="sealed", is_upto=True)), credit=1))
@example(Payout(sales=(PLAIN, Sale(settled=HIGH, when="sealed", is_upto=True)), is_frozen=True))
@example(Payout(sales=(Sale(settled=LOW, is_upto=True),), refill=0))
@example(Payout(sales=(Sale(settled=LOW),), refill=CAP))
@example(Payout(sales=(Sale(settled=HIGH, flag=2),), credit=LOW))
@example(Payout(sales=(Sale(settled=HIGH, when="before", padding=200),), credit=LOW))
@example(Payout(sales=(Sale(settled=HIGH, when="before"),), credit=LOW, stays_open=True))
@example(Payout(sales=(Sale(settled=LOW, when="sealed", is_upto=True),) * 3, credit=LOW))
@settings(max_examples=20)
@given(PAYOUTS)
def test_the_books_of_a_payout_are_what_the_program_settled(shop: Shop, payout: Payout) -> None:
    server, client = shop.server, shop.server.client()
    server.sandbox.clock.advance(4_000)  # Openings are limited by the hour.
    shop.session.open()  # With new SOL for rent.
    account = client.accounts.create(name="Payer")
    server.sandbox.fund(account.account_id, Decimal(FUNDS) / 10**6)
    credit = 0 if payout.is_frozen else payout.credit
    steps = []
    for number, sale in enumerate(payout.sales):
        # More than one fit into a transaction only if the others are sealed before.
        kept = sale if not number else evolve(sale, when="sealed", verified=None)
        part = credit if payout.stays_open and not number else None
        steps += ended(shop, account, kept, number, part)
    first = shop.upto.opening if payout.sales[0].is_upto else shop.session.opening
    if payout.refill is not None and len(payout.sales) == 1 and first is not None:
        steps += shop.reopens(first, payout.refill)
    steps += shop.credit(account, credit)
    if payout.closes and len(payout.sales) == 1:  # More do not fit into a transaction.
        steps.append(shop.closes(account.account_id[-20:]))
    if payout.is_frozen:
        money.freeze(server, account.usdc_token_account)
    shop.send(*steps)
    server.sandbox.clock.advance(1)

    settled = [CAP if payout.is_frozen else sale.settled or 0 for sale in payout.sales]
    sessions = client.sessions.list(account_id=account.account_id)
    payments = client.payments.list(account_id=account.account_id)
    assert sorted(
        [to_micro(each.settled_usdc) for each in sessions if each.settled_usdc is not None]
        + [to_micro(each.amount_usdc) for each in payments if each.status == "settled"]
    ) == sorted(settled)
    held = money.token_account(server, account.usdc_token_account).amount_micro
    entries = client.accounts.transactions(account.account_id, status="settled")
    history = sum(to_micro(each.amount_usdc) * (1 if each.direction == "in" else -1) for each in entries)
    told = to_micro(client.accounts.balance(account.account_id).balance_usdc)
    credits_ = credit * (2 if payout.stays_open and payout.sales[0].settled else 1)
    assert held == history == told == FUNDS + credits_ - sum(settled)
    budget = client.accounts.budget(account.account_id)
    assert (to_micro(budget.spent_usdc), to_micro(budget.reserved_usdc)) == (sum(settled), 0)
    (row,) = money.rows(server, "accounts", account_id=account.account_id)
    is_payment = len(payout.sales) == 1 and payout.sales[0].is_upto
    assert (row["suspended_us"] is not None) == (payout.is_frozen and not is_payment)
