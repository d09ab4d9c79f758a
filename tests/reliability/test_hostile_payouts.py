"""Sellers write the transactions that pay channels out, and add to them what they like.

Whatever they add, the books have of each channel what its program settled; and chain, balance and history
agree. What does not add up suspends the account.
"""

from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import httpx
import money
import pytest
import receivers
from attrs import evolve, frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st
from server_world import raw_client
from session_sellers import SessionSeller, UptoSeller, let_call
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from agentpay.contract.accounts import Account
from agentpay.contract.usdc import to_micro
from agentpay_lab.simulation import forwarder
from agentpay_server import AgentPayServer
from agentpay_server.chain import instructions
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import TREASURIES, OnchainTerms, Voucher

pytestmark = pytest.mark.unmeasured

FUNDS = 100_000
CAP = 10_000
LOW, HIGH = 2_000, 5_000
"""The totals of the vouchers that a seller holds."""


@frozen(kw_only=True)
class Sale:
    """A channel, and what its seller does to it.

    Attributes:
        settled: the total of the voucher that it settles; None for none.
        when: `together` with the payout, `before` it with the seal apart, or `sealed` before.
        verified: where in the payout it has the highest voucher verified, which it does not settle.
        is_inner: whether another program calls the steps.
        is_upto: whether it is the channel of a payment, whose vouchers the seller signs.
    """

    settled: int | None
    when: str = "together"
    verified: str | None = None
    is_inner: bool = False
    is_upto: bool = False


@frozen(kw_only=True)
class Payout:
    """What else a seller does in the transaction.

    Attributes:
        credit: what it pays into the account.
        closes: whether it closes a token account of its own.
        reopens: whether it creates the first channel's escrow again.
        is_frozen: whether the account cannot receive, so that what should return goes to the treasury.
        stays_open: whether it has settled the first channel before, and paid that out of the open channel.
    """

    sales: tuple[Sale, ...]
    credit: int = 0
    closes: bool = False
    reopens: bool = False
    is_frozen: bool = False
    stays_open: bool = False


@frozen
class Shop:
    """A server, and a seller with all kinds of channels."""

    server: AgentPayServer
    http: httpx.Client
    session: SessionSeller
    upto: UptoSeller

    def opened(self, account: Account, key: str, *, is_upto: bool) -> tuple[OnchainTerms, dict[int, Any]]:
        """Open a channel; return its terms, and instructions that have its vouchers verified, by total."""
        # One origin would have one channel.
        body = {"account_id": account.account_id, "origin": f"https://shop-{key}.example.com"}
        name = f"{account.account_id}-{key}"
        if is_upto:
            asked = {"idempotency_key": name, "headers": self.upto.ask_upto(CAP)}
            header = self.http.post("/ext/v1/payments", json=body | asked).json()["header"]
            self.upto.open_channel(header)
            terms = self.upto.opening
            assert terms is not None
            return terms, {total: self._verified_upto(terms, total) for total in (LOW, HIGH)}
        seller, vouchers = self.session, {}
        cap = {"session_cap": f"0.{CAP:06}"}
        for price in (LOW, LOW, HIGH - LOW):
            offer = seller.ask_session(price)
            asked = {"idempotency_key": f"{name}-{price}", **offer, **cap}
            answer = self.http.post("/ext/v1/payments", json=body | asked)
            assert answer.status_code == 201, answer.json()
            step = answer.json()
            if step["step"] == "open":
                assert seller.accept_opening(step["header"]).failure is None
                seller.cumulative = 0
                receivers.eventually(partial(self._is_open, step["session_id"]))
                continue
            total = seller.take_voucher(step["header"])
            vouchers[total] = seller._verified()
            outcome = f"/ext/v1/payments/{step['charge_id']}/outcome"
            assert self.http.post(outcome, json={"status_code": 200}).status_code == 200
        assert seller.opening is not None
        assert list(vouchers) == [LOW, HIGH]
        return seller.opening, vouchers

    def _is_open(self, session_id: str) -> bool:
        return bool(self.http.get(f"/ext/v1/sessions/{session_id}").json()["status"] == "open")

    def _verified_upto(self, terms: OnchainTerms, total: int) -> Instruction:
        voucher, key = Voucher(channel=terms.address, cumulative_micro=total), self.upto.authorizer
        return codecs.verify_voucher(voucher, key.pubkey(), key.sign_message(voucher.message()))

    def credit(self, account: Account, amount: int) -> list[Instruction]:
        """Return what pays an amount into an account."""
        if not amount:
            return []
        pay = instructions.transfer_checked(
            source=Pubkey.from_string(self.session.wallet.token_account),
            destination=Pubkey.from_string(account.usdc_token_account),
            owner=self.session.payee.pubkey(),
            mint=self.mint,
            amount_micro=amount,
        )
        return [pay]

    def closes(self, seed: str) -> Instruction:
        """Create a token account of the seller's; return what closes it."""
        another, _ = self.session._run(self.session.wallet.open_another(seed))
        owner = self.session.payee.pubkey()
        return instructions.close_account(account=Pubkey.from_string(another), destination=owner, owner=owner)

    def reopens(self, terms: OnchainTerms) -> Instruction:
        """Return what creates a channel's escrow."""
        payer = self.session.facilitator.pubkey()
        return instructions.create_associated_token_account_idempotent(
            payer=payer, owner=terms.address, mint=self.mint
        )

    @property
    def mint(self) -> Pubkey:
        return Pubkey.from_string(self.session.chain.usdc_mint)

    def send(self, *steps: Instruction) -> None:
        status = self.session.send(*steps)
        assert status is not None
        assert status.failure is None, status


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
    is_upto=st.booleans(),
)
PAYOUTS = st.builds(
    Payout,
    sales=st.lists(SALES, min_size=1, max_size=2).map(tuple),
    credit=st.sampled_from((0, 1, LOW, 3 * CAP)),
    closes=st.booleans(),
    reopens=st.booleans(),
    is_frozen=st.sampled_from((False, False, False, True)),
    stays_open=st.booleans(),
)
PLAIN = Sale(settled=LOW, verified="first")


def ended(shop: Shop, account: Account, sale: Sale, number: int, part: int | None) -> list[Instruction]:
    """Do what a seller does to a channel before its payout; return the rest.

    `part` is what it pays into the account while it pays a part out of the open channel; None for no part.
    """
    terms, vouchers = shop.opened(account, str(number), is_upto=sale.is_upto)
    voucher = [] if sale.settled is None else [vouchers[sale.settled]]
    taken = [*voucher, codecs.settle(terms.address)] if voucher else []
    seal, plain = (
        codecs.settle_and_seal(payee=terms.payee, channel=terms.address, has_voucher=takes)
        for takes in (bool(voucher), False)
    )
    pay = codecs.distribute_opened(terms, treasury=TREASURIES["devnet"])
    if sale.is_inner:
        seal, plain, pay = (forwarder.forwarded(each) for each in (seal, plain, pay))
    if part is not None and taken:
        shop.send(*taken, pay, *shop.credit(account, part))
        taken, voucher, seal = [], [], plain
    steps = [*voucher, seal]
    if sale.when == "before":
        steps = [plain]
        if taken:
            shop.send(*taken)
    elif sale.when == "sealed":
        shop.send(*steps)
        steps = []
    match sale.verified:
        case "first":
            steps.insert(0, vouchers[HIGH])
        case "before seal" if steps == [plain]:
            steps.insert(0, vouchers[HIGH])
        case "before payout":
            steps.append(vouchers[HIGH])
    return [*steps, pay]


@example(Payout(sales=(PLAIN,), closes=True))
@example(Payout(sales=(Sale(settled=LOW, verified="first", is_upto=True),), closes=True))
@example(Payout(sales=(Sale(settled=LOW),), credit=HIGH - LOW))
@example(Payout(sales=(Sale(settled=LOW, is_inner=True),), credit=HIGH))
@example(Payout(sales=(Sale(settled=None, verified="before seal"),), credit=LOW))
@example(Payout(sales=(PLAIN, Sale(settled=HIGH, when="sealed", is_upto=True)), credit=1))
@example(Payout(sales=(PLAIN, Sale(settled=HIGH, when="sealed", is_upto=True)), is_frozen=True))
@example(Payout(sales=(Sale(settled=LOW, is_upto=True),), reopens=True))
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
    if payout.reopens and len(payout.sales) == 1 and first is not None:
        steps.append(shop.reopens(first))
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
