"""The machine of money: operations, faults and restarts in any order, and the model of what they do."""

import asyncio
import os
import tempfile
import unittest
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import chains
import worlds
from attrs import define, field
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from outsiders import Wallet
from virtual_time import VirtualTimeLoop
from worlds import Answer, Party, World

DAY_US = 24 * 3600 * 10**6
WEALTH = 10**9
HOUR_US = DAY_US // 24


def usdc(micro: int) -> str:
    return f"{micro / 10**6:.6f}"


@define
class Account:
    """The model's record of an account."""

    party: Party
    balance: int = 0
    unseen: int = 0
    """The part sent by third parties that may not be scanned yet."""
    reserved: int = 0
    policy: dict[str, Any] = field(factory=dict)
    spends: list[tuple[int, int]] = field(factory=list)


@define
class Transfer:
    """The model's record of a transfer, and of the key that it holds."""

    terms: tuple[int, str, int]
    answer: Answer
    status: str
    key_expires_us: int | None
    spent_us: int = 0
    # Until when it may be approved; None if it never had to be.
    waits_until_us: int | None = None


ACTS = {
    "none": chains.passed,
    "reply lost": chains.reply_lost,
    "dropped": chains.dropped,
    "delivered twice": chains.repeated,
    "expired": chains.expiring,
    "lagging": chains.lagging,
    "not final": chains.not_final,
}


STATUSES = {200: "settled", 202: "pending_approval", 402: "rejected"}

sources = st.integers(0, 2)
targets = st.integers(0, 3)
amounts = st.integers(1, 40)
keys = st.sampled_from("abcdefgh")
limits = st.none() | st.integers(0, 60)


class Money(RuleBasedStateMachine):
    """Three accounts and an outside recipient."""

    interrupted: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.world = self.do(self.started())
        self.now_us = 0
        self.minted = 0
        self.accounts: list[Account] = []
        self.outside = 0
        self.keys: dict[str, Transfer] = {}
        self.made: list[Transfer] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def started(self) -> Coroutine[Any, Any, World]:
        return worlds.started(interrupted=self.interrupted)

    # --- The model ----------------------------------------------------------------------------------------

    def spent(self, account: Account) -> int:
        return sum(amount for at_us, amount in account.spends if at_us > self.now_us - DAY_US)

    def set_aside(self, account: Account) -> int:
        """Money that belongs to an account and is not in its balance."""
        return 0

    def elsewhere(self) -> int:
        """Money that neither the accounts nor the outside recipient hold."""
        return 0

    def refusal(self, source: int, amount: int) -> str | None:
        account = self.accounts[source]
        policy = account.policy
        if policy.get("paused"):
            return "account_paused"
        single, daily = policy.get("max_single_transfer"), policy.get("max_daily_spend")
        if single is not None and amount > single:
            return "policy_violation"
        if daily is not None and self.spent(account) + amount > daily:
            return "policy_violation"
        if amount > account.balance - account.reserved:
            return "insufficient_balance"
        return None

    def escalates(self, source: int, amount: int) -> bool:
        threshold = self.accounts[source].policy.get("escalation_threshold")
        return threshold is not None and amount >= threshold

    def holder(self, key: str) -> Transfer | None:
        held = self.keys.get(key)
        if held is None or (held.key_expires_us is not None and held.key_expires_us <= self.now_us):
            return None
        return held

    def move(self, terms: tuple[int, str, int]) -> None:
        source, to, amount = terms
        self.accounts[source].balance -= amount
        for account in self.accounts:
            if account.party.account_id == to:
                account.balance += amount
                return
        self.outside += amount

    def keep(self, key: str, terms: tuple[int, str, int], answer: Answer, status: str) -> Transfer:
        is_open = status in ("pending_approval", "submitted")
        expires_us = None if is_open else self.now_us + DAY_US
        transfer = Transfer(terms, answer, status, expires_us, self.now_us)
        if status == "pending_approval":
            transfer.waits_until_us = self.now_us + DAY_US
        assert answer.transfer_id not in {made.answer.transfer_id for made in self.made}
        self.keys[key] = transfer
        self.made.append(transfer)
        return transfer

    def expect(self, key: str, terms: tuple[int, str, int], answer: Answer) -> None:
        """Compare the response of a request without a lasting fault, and update the model."""
        held = self.holder(key)
        source, _, amount = terms
        if held is not None and held.terms != terms:
            assert (answer.status, answer.error) == (409, "idempotency_conflict")
            return
        if held is not None and held.status == "submitted":
            assert (answer.status, answer.transfer_id) == (503, held.answer.transfer_id)
            return
        is_retried = held is not None and (
            held.status == "failed" or held.answer.error == "insufficient_balance"
        )
        if held is not None and not is_retried:
            assert (answer.status, answer.body) == (held.answer.status, held.answer.body)
            return
        refusal = self.refusal(source, amount)
        if refusal is not None:
            assert (answer.status, answer.error) == (402, refusal)
        elif self.escalates(source, amount):
            assert (answer.status, answer.body["status"]) == (202, "pending_approval")
        else:
            assert (answer.status, answer.body["status"]) == (200, "settled"), answer
            self.accounts[source].spends.append((self.now_us, amount))
            self.move(terms)
        self.keep(key, terms, answer, STATUSES[answer.status])

    # --- The operations -----------------------------------------------------------------------------------

    @initialize(funds=st.lists(st.integers(0, 100), min_size=3, max_size=3))
    def begin(self, funds: list[int]) -> None:
        for micro in funds:
            self.accounts.append(Account(self.do(self.world.account())))
            if micro:
                self.fund(len(self.accounts) - 1, micro)
        self.outsider: Party = self.do(self.world.outside())
        self.meet_strangers()
        for wallet in self.strangers:
            self.do(wallet.open(WEALTH))

    def meet_strangers(self) -> None:
        chain, signer = self.world.chain.inner, self.world.runtime.context.signer
        self.strangers = [Wallet(chain, signer, number) for number in (1, 2)]

    @rule(account=sources, micro=st.integers(1, 100))
    def fund(self, account: int, micro: int) -> None:
        self.do(self.world.fund(self.accounts[account].party.account_id, usdc(micro)))
        self.accounts[account].balance += micro
        self.accounts[account].unseen = 0
        self.minted += micro

    @rule(payments=st.lists(st.tuples(targets, amounts), min_size=1, max_size=4), shared=st.booleans())
    def a_stranger_pays(self, payments: list[tuple[int, int]], shared: bool) -> None:
        """One transaction, to any accounts and the outside, from one stranger or from two who pay alike."""
        parties = [*(account.party for account in self.accounts), self.outsider]
        first, second = self.strangers
        to = [(parties[target].token_account, micro) for target, micro in payments]
        self.do(first.pay(*to, also_from=second if shared else None))
        for target, micro in payments:
            paid = micro * (1 + shared)
            self.minted += paid
            if target == 3:
                self.outside += paid
            else:
                self.accounts[target].balance += paid
                self.accounts[target].unseen += paid

    @rule(
        account=sources,
        single=limits,
        daily=limits,
        threshold=st.none() | st.integers(20, 60),
        paused=st.sampled_from([False, False, False, True]),
    )
    def set_policy(
        self, account: int, single: int | None, daily: int | None, threshold: int | None, paused: bool
    ) -> None:
        policy = {
            "max_single_transfer": single,
            "max_daily_spend": daily,
            "escalation_threshold": threshold,
            "paused": paused,
        }
        self.accounts[account].policy = policy
        sent = {name: value / 10**6 if type(value) is int else value for name, value in policy.items()}
        self.do(self.world.policy(self.accounts[account].party, **sent))

    @rule(key=keys, source=sources, recipient=targets, amount=amounts, trouble=st.sampled_from(sorted(ACTS)))
    def transfer(self, key: str, source: int, recipient: int, amount: int, trouble: str) -> None:
        terms = self.terms(source, recipient, amount)
        height = self.world.chain.inner._blocks.height()
        self.world.chain.next_payment(ACTS[trouble])
        answer = self.send(key, terms)
        self.world.chain.script_ends()
        self.expect(key, terms, answer)
        if self.world.chain.inner._blocks.height() > height:
            self.expire_in_flight()

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def resubmit(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.keys)))
        terms = self.keys[key].terms
        self.expect(key, terms, self.send(key, terms))

    @rule(source=sources, recipient=targets, amount=amounts, count=st.integers(2, 6), key=keys)
    def race(self, source: int, recipient: int, amount: int, count: int, key: str) -> None:
        terms = self.terms(source, recipient, amount)
        names = [f"{key}{len(self.made)}-{number}" for number in range(count)]

        async def all_at_once() -> list[Answer]:
            return await asyncio.gather(*(self.sending(name, terms) for name in names))

        answers = [self.do(self.resolved(answer)) for answer in self.do(all_at_once())]
        # Equal requests are interchangeable: the model assumes that the successful ones came first.
        order = sorted(zip(names, answers, strict=True), key=lambda pair: pair[1].status)
        for name, answer in order:
            self.expect(name, terms, answer)

    @rule(key=keys, source=sources, recipient=targets, amount=amounts)
    def transfer_while_the_chain_is_away(self, key: str, source: int, recipient: int, amount: int) -> None:
        terms = self.terms(source, recipient, amount)
        self.world.chain.is_down = True
        answer = self.send(key, terms)
        self.world.chain.is_down = False
        held = self.holder(key)
        is_new = held is None or (
            held.terms == terms and (held.status == "failed" or held.answer.error == "insufficient_balance")
        )
        if is_new and not self.accounts[source].policy.get("paused"):
            assert (answer.status, answer.error, answer.transfer_id) == (503, "chain_unavailable", None)
        else:
            self.expect(key, terms, answer)

    @rule(key=keys, source=sources, recipient=targets, amount=amounts)
    def transfer_into_a_black_hole(self, key: str, source: int, recipient: int, amount: int) -> None:
        if (
            self.holder(key) is not None
            or self.refusal(source, amount) is not None
            or self.escalates(source, amount)
        ):
            return
        terms = self.terms(source, recipient, amount)
        self.world.chain.swallow_next_payment()
        answer = self.send(key, terms)
        self.world.chain.script_ends()
        assert (answer.status, answer.body["status"]) == (503, "submitted")
        self.keep(key, terms, answer, "submitted")
        self.accounts[source].spends.append((self.now_us, amount))
        self.accounts[source].reserved += amount

    @rule(expired=st.booleans())
    def black_holes_end(self, expired: bool) -> None:
        if expired:
            self.world.chain.inner.expire_blockhash()
            self.expire_in_flight()
        self.world.chain.black_holes.clear()
        self.do(self.world.rest())
        for transfer in self.made:
            if transfer.status == "submitted":
                shown = self.end(transfer)
                assert shown["status"] == transfer.status == "settled"
                transfer.answer = Answer(200, shown, transfer.answer.headers)
                self.move(transfer.terms)

    def expire_in_flight(self) -> None:
        """A lost transaction has expired: it is signed again and lost again, or has failed if paused."""
        self.do(self.world.rest())
        for transfer in self.made:
            account = self.accounts[transfer.terms[0]]
            if transfer.status == "submitted" and account.policy.get("paused"):
                shown = self.end(transfer)
                assert (shown["status"], shown["error"]) == ("failed", "account_paused")
                transfer.status = "failed"
                account.spends.remove((transfer.spent_us, transfer.terms[2]))

    def end(self, transfer: Transfer) -> dict[str, Any]:
        self.accounts[transfer.terms[0]].reserved -= transfer.terms[2]
        transfer.key_expires_us = self.now_us + DAY_US
        transfer.status = "settled"
        shown: dict[str, Any] = self.do(self.world.get_transfer(transfer.answer.transfer_id or ""))
        return shown

    # --- Approvals

    @precondition(lambda self: self.waiting())
    @rule(
        data=st.data(),
        verbs=st.lists(st.sampled_from(["approve", "approve", "reject"]), min_size=1, max_size=4),
        trouble=st.sampled_from(sorted(ACTS)),
    )
    def decide(self, data: st.DataObject, verbs: list[str], trouble: str) -> None:
        """Operators decide about one transfer, all at once."""
        transfer = data.draw(st.sampled_from(self.waiting()))
        transfer_id = transfer.answer.transfer_id or ""
        height = self.world.chain.inner._blocks.height()
        self.world.chain.next_payment(ACTS[trouble])

        async def all_at_once() -> list[Answer]:
            return await asyncio.gather(*(getattr(self.world, verb)(transfer_id) for verb in verbs))

        answers = [self.do(self.resolved(answer)) for answer in self.do(all_at_once())]
        self.world.chain.script_ends()
        self.expect_decision(transfer, dict(zip(enumerate(verbs), answers, strict=True)))
        if self.world.chain.inner._blocks.height() > height:
            self.expire_in_flight()

    def expect_decision(self, transfer: Transfer, answers: dict[tuple[int, str], Answer]) -> None:
        source, _, amount = transfer.terms
        refusal = self.refusal(source, amount)
        decided = [(verb, answer) for (_, verb), answer in answers.items() if answer.status != 409]
        assert {answer.error for answer in answers.values() if answer.status == 409} <= {"not_pending"}
        if refusal == "insufficient_balance":
            for verb, answer in decided:
                assert verb == "reject" or answer.error == "insufficient_balance"
            decided = [(verb, answer) for verb, answer in decided if verb == "reject"]
            if not decided:
                return
        ((verb, answer),) = decided
        transfer.key_expires_us = self.now_us + DAY_US
        if verb == "reject":
            assert (answer.status, answer.body["error"]) == (200, "escalation_rejected")
            self.reject(transfer, answer.body["message"])
        elif refusal is not None:
            assert (answer.status, answer.error) == (402, refusal)
            transfer.status, transfer.answer = "rejected", answer
        else:
            assert (answer.status, answer.body["status"]) == (200, "settled"), answer
            transfer.status, transfer.answer = "settled", answer
            transfer.spent_us = self.now_us
            self.accounts[source].spends.append((self.now_us, amount))
            self.move(transfer.terms)

    def reject(self, transfer: Transfer, message: str) -> None:
        body = {
            "error": "policy_violation",
            "message": message,
            "transfer_id": transfer.answer.transfer_id,
            "status": "rejected",
        }
        transfer.status, transfer.answer = "rejected", Answer(402, body, transfer.answer.headers)

    def waiting(self) -> list[Transfer]:
        return [transfer for transfer in self.made if transfer.status == "pending_approval"]

    def expire_what_waits(self) -> None:
        for transfer in self.waiting():
            assert transfer.waits_until_us is not None
            if transfer.waits_until_us <= self.now_us:
                shown = self.do(self.world.get_transfer(transfer.answer.transfer_id or ""))
                assert shown["error"] == "escalation_expired"
                self.reject(transfer, shown["message"])
                transfer.key_expires_us = transfer.waits_until_us + DAY_US

    @rule(jump_us=st.sampled_from([1, 10**6, HOUR_US, 11 * HOUR_US, DAY_US - 1, DAY_US]))
    def advance(self, jump_us: int) -> None:
        self.do(self.world.advance(jump_us / 10**6))
        self.now_us += jump_us
        if jump_us >= HOUR_US:
            # All shorter jumps of a run together are shorter than a blockhash's life.
            self.expire_in_flight()
        for account in self.accounts:
            account.unseen = 0
        self.expire_what_waits()

    # --- What holds after every step ----------------------------------------------------------------------

    @invariant()
    def the_chain_is_what_the_model_says(self) -> None:
        if not self.accounts:
            return
        held = [self.world.balance(account.party) for account in self.accounts]
        assert held == [account.balance for account in self.accounts]
        if hasattr(self, "outsider"):
            assert self.world.balance(self.outsider) == self.outside
            assert sum(held) + self.outside + self.elsewhere() == self.minted

    @invariant()
    def the_books_are_what_the_chain_says(self) -> None:
        self.do(self.check_books())

    async def check_books(self) -> None:
        for account in self.accounts:
            settled = [
                entry for entry in await self.world.entries(account.party) if entry["status"] == "settled"
            ]
            ledger = sum(
                entry["amount"] if entry["direction"] == "in" else -entry["amount"] for entry in settled
            )
            (row,) = await self.world.rows("accounts", account_id=account.party.account_id)
            # Money in an escrow belongs to the account by its history, and is no longer in its balance.
            assert ledger == row["balance"] + self.set_aside(account)
            # A scan books all of it; transfers from the account scan too.
            own = account.balance + self.set_aside(account)
            assert ledger in (own, own - account.unseen)
            if ledger == own:
                account.unseen = 0
            detail = await self.world.detail(account.party)
            assert detail["spent_usdc"] == usdc(self.spent(account))
            assert detail["reserved_usdc"] == usdc(account.reserved + self.set_aside(account))
            limit = account.policy.get("max_daily_spend")
            left = None if limit is None else usdc(max(limit - self.spent(account), 0))
            assert detail["remaining_usdc"] == left

    def teardown(self) -> None:
        try:
            if self.accounts:
                self.do(self.check_ends())
        finally:
            self.world.chain.clear()
            self.do(self.world.stop())
            self.world.chain.inner.release()
            self.runner.close()

    async def check_ends(self) -> None:
        """Compare what became of everything, in all its life, with the model."""
        ends = {
            "settled": ["transfer.initiated", "transfer.settled"],
            "failed": ["transfer.initiated", "transfer.rejected"],
            "rejected": ["transfer.rejected"],
            "pending_approval": [],
            "submitted": ["transfer.initiated"],
        }
        for transfer in self.made:
            transfer_id = transfer.answer.transfer_id
            assert transfer_id is not None
            assert (await self.world.get_transfer(transfer_id))["status"] == transfer.status
            escalation = ["escalation.required"] if transfer.waits_until_us is not None else []
            assert await self.world.event_types(transfer_id) == escalation + ends[transfer.status]
            landed = self.world.attempts(transfer_id).count("landed")
            assert landed == (transfer.status == "settled")

    async def resolved(self, answer: Answer) -> Answer:
        """Return an answer that came at the end of the caller's patience as it would be a moment later."""
        if answer.status != 503 or answer.transfer_id is None:
            return answer
        await self.world.rest()
        return Answer(200, await self.world.get_transfer(answer.transfer_id), answer.headers)

    # --- Small words --------------------------------------------------------------------------------------

    def terms(self, source: int, recipient: int, amount: int) -> tuple[int, str, int]:
        if recipient == source:
            recipient = 3
        to = self.outsider if recipient == 3 else self.accounts[recipient].party
        return source, to.account_id, amount

    async def sending(self, key: str, terms: tuple[int, str, int]) -> Answer:
        source, to, amount = terms
        return await self.world.transfer(key, self.accounts[source].party, to, usdc(amount))

    def send(self, key: str, terms: tuple[int, str, int]) -> Answer:
        answer: Answer = self.do(self.sending(key, terms))
        return answer


class RestartedMoney(Money):
    """The same in a directory, by one server after another: each is killed, while idle or at work."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        super().__init__()

    def started(self, after: World | None = None) -> Coroutine[Any, Any, World]:
        return worlds.started(data_dir=Path(self.directory.name), after=after)

    @rule()
    def restart(self) -> None:
        self.do(self.world.kill())
        self.start_again()

    def start_again(self) -> None:
        killed = self.world
        self.world = self.do(self.started(after=killed))
        killed.chain.inner.release()
        self.do(self.world.look_back())
        self.meet_strangers()
        self.do(self.world.rest())

    @rule(key=keys, source=sources, recipient=targets, amount=amounts, units=st.integers(0, 8))
    def restart_in_the_middle_of_a_transfer(
        self, key: str, source: int, recipient: int, amount: int, units: int
    ) -> None:
        terms = self.terms(source, recipient, amount)
        self.do(self.world.cut_off(self.sending(key, terms), units))
        self.start_again()
        self.expect(key, terms, self.send(key, terms))

    def teardown(self) -> None:
        try:
            if self.accounts:
                # A chain that was made again from its ledger has an earlier life as well.
                self.do(self.world.look_back())
            super().teardown()
        finally:
            self.directory.cleanup()


def case_of(machine: type[Money], examples: int) -> type[unittest.TestCase]:
    case: type[unittest.TestCase] = machine.TestCase
    case.settings = settings(  # type: ignore[attr-defined]
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        phases=[Phase.generate],  # Shrinking what is as long as this takes minutes.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return case


DEEP_EXAMPLES = int(os.environ.get("AGENTPAY_DEEP_EXAMPLES", "1000"))
