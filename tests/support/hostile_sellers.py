"""A seller that does to channels, before their payout, what a test says."""

from functools import partial
from typing import Any

import httpx
import receivers
from attrs import frozen
from session_sellers import SessionSeller, UptoSeller
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from agentpay.contract.accounts import Account
from agentpay_lab.simulation import forwarder
from agentpay_server import AgentPayServer
from agentpay_server.chain import instructions
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import TREASURIES, OnchainTerms, Voucher

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
        flag: what says that a seal takes a voucher.
        padding: how many bytes follow a settlement.
        is_upto: whether it is the channel of a payment, whose vouchers the seller signs.
    """

    settled: int | None
    when: str = "together"
    verified: str | None = None
    is_inner: bool = False
    flag: int = 1
    padding: int = 0
    is_upto: bool = False


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
        return self._pays(account.usdc_token_account, amount)

    def _pays(self, token_account: str, amount: int) -> list[Instruction]:
        if not amount:
            return []
        pay = instructions.transfer_checked(
            source=Pubkey.from_string(self.session.wallet.token_account),
            destination=Pubkey.from_string(token_account),
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

    def reopens(self, terms: OnchainTerms, amount: int) -> list[Instruction]:
        """Return what creates a channel's escrow, and pays an amount into it."""
        payer = self.session.facilitator.pubkey()
        create = instructions.create_associated_token_account_idempotent(
            payer=payer, owner=terms.address, mint=self.mint
        )
        return [create, *self._pays(str(terms.escrow), amount)]

    @property
    def mint(self) -> Pubkey:
        return Pubkey.from_string(self.session.chain.usdc_mint)

    def send(self, *steps: Instruction) -> None:
        status = self.session.send(*steps)
        assert status is not None
        assert status.failure is None, status


def _with(step: Instruction, end: bytes, *, after: int | None = None) -> Instruction:
    return Instruction(step.program_id, bytes(step.data)[:after] + end, step.accounts)


def ended(shop: Shop, account: Account, sale: Sale, number: int, part: int | None) -> list[Instruction]:
    """Do what a seller does to a channel before its payout; return the rest.

    `part` is what it pays into the account while it pays a part out of the open channel; None for no part.
    """
    terms, vouchers = shop.opened(account, str(number), is_upto=sale.is_upto)
    voucher = [] if sale.settled is None else [vouchers[sale.settled]]
    taken = [*voucher, _with(codecs.settle(terms.address), bytes(sale.padding))] if voucher else []
    plain = codecs.settle_and_seal(payee=terms.payee, channel=terms.address, has_voucher=False)
    seal = _with(plain, bytes((sale.flag,)), after=1) if voucher else plain
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
