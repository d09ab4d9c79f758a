"""Any sequence of operations with sessions among them, against the model of money (P3, P9, P10).

Beside what the money machine asserts: an escrow holds its cap and what strangers sent; a session is charged
what was answered, never past its cap; settled and returned are its cap to the unit; every event fires once.
"""

from typing import Any

from attrs import define, field
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from test_money_machine import ACTS, DAY_US, Account, Money, sources, targets, usdc
from worlds import Answer, Party

from agentpay_server.store import tables

STRANGERS_MICRO = 10**6


@define
class Session:
    """What the model knows of a session."""

    key: str
    terms: tuple[int, str, int]
    session_id: str
    escrow: Party
    status: str = "open"
    total: int = 0
    key_expires_us: int | None = None
    dust: int = 0
    charges: dict[str, int] = field(factory=dict)

    @property
    def cap(self) -> int:
        return self.terms[2]


class MoneyWithSessions(Money):
    """Sessions between the accounts, and a stranger who sends to escrows."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []

    @initialize()
    def let_a_stranger_in(self) -> None:
        self.stranger: Party = self.do(self.world.account(usdc(STRANGERS_MICRO)))
        self.minted += STRANGERS_MICRO

    # --- The model ----------------------------------------------------------------------------------------

    def set_aside(self, account: Account) -> int:
        unsettled = [session for session in self.sessions if session.status == "open"]
        return sum(session.cap for session in unsettled if self.accounts[session.terms[0]] is account)

    def elsewhere(self) -> int:
        if not hasattr(self, "stranger"):
            return 0
        escrows = [session.escrow for session in self.sessions if session.status == "open"]
        return sum(self.world.balance(party) for party in (self.stranger, *escrows))

    def spent(self, account: Account) -> int:
        return super().spent(account) + self.set_aside(account)

    def opening_refusal(self, source: int, cap: int) -> str | None:
        account = self.accounts[source]
        policy, daily = account.policy, account.policy.get("max_daily_spend")
        if policy.get("paused"):
            return "account_paused"
        if daily is not None and self.spent(account) + cap > daily:
            return "policy_violation"
        return "insufficient_balance" if cap > account.balance - account.reserved else None

    def charge_refusal(self, session: Session, amount: int) -> str | None:
        policy = self.accounts[session.terms[0]].policy
        single = policy.get("max_single_transfer")
        if session.status != "open":
            return "session_closed"
        if policy.get("paused"):
            return "account_paused"
        if single is not None and amount > single:
            return "policy_violation"
        return "session_cap_exceeded" if session.total + amount > session.cap else None

    # --- The operations -----------------------------------------------------------------------------------

    @rule(source=sources, recipient=targets, cap=st.integers(1, 60), trouble=st.sampled_from(sorted(ACTS)))
    def open_session(self, source: int, recipient: int, cap: int, trouble: str) -> None:
        self.open_under(f"session {len(self.sessions)}", self.terms(source, recipient, cap), trouble)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def open_again(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        expires_us = session.key_expires_us
        if expires_us is None or expires_us > self.now_us:
            answer = self.opening(session.key, session.terms)
            assert (answer.status, answer.body["status"]) == (201, session.status)
            assert answer.body["session_id"] == session.session_id
        elif self.open_under(session.key, session.terms, "none"):
            # The key is another's from now on.
            session.key = self.sessions[-1].key + ", lost"
            session.key_expires_us = 0

    def open_under(self, key: str, terms: tuple[int, str, int], trouble: str) -> bool:
        source, _, cap = terms
        refusal = self.opening_refusal(source, cap)
        answer = self.in_trouble(trouble, lambda: self.opening(key, terms))
        if refusal is not None:
            assert (answer.status, answer.error, answer.body["session_id"]) == (402, refusal, None)
            return False
        assert (answer.status, answer.body["status"]) == (201, "open"), answer
        escrow = Party("", answer.body["escrow_token_account"])
        self.sessions.append(Session(key, terms, answer.body["session_id"], escrow))
        self.accounts[source].balance -= cap
        self.expire_if_asked()
        return True

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), key=st.sampled_from("abc"), amount=st.integers(1, 40))
    def charge(self, data: st.DataObject, key: str, amount: int) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        answer: Answer = self.do(self.world.charge(key, session.session_id, usdc(amount)))
        made = session.charges.get(key)
        if made is not None:
            expected = (200, None) if made == amount else (409, "idempotency_conflict")
            assert (answer.status, answer.error) == expected
            return
        refusal = self.charge_refusal(session, amount)
        assert answer.error == refusal
        if refusal is None:
            session.total += amount
            session.charges[key] = amount
            assert answer.body["running_total_usdc"] == usdc(session.total)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), micro=st.integers(1, 5))
    def send_dust(self, data: st.DataObject, micro: int) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        if session.status == "open":
            self.world.drain(self.stranger, session.escrow, usdc(micro))
            session.dust += micro

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), trouble=st.sampled_from(sorted(ACTS)))
    def close_session(self, data: st.DataObject, trouble: str) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        closed = self.in_trouble(trouble, lambda: self.do(self.world.close_session(session.session_id)))
        assert (closed.status, closed.body["status"]) == (200, "settled"), closed
        assert closed.body["settled_usdc"] == usdc(session.total)
        assert closed.body["returned_usdc"] == usdc(session.cap - session.total)
        if session.status == "open":
            session.status = "settled"
            session.key_expires_us = self.now_us + DAY_US
            source, to, cap = session.terms
            payer = self.accounts[source]
            payer.balance += cap + session.dust
            self.move((source, to, session.total))
            if session.total:
                payer.spends.append((self.now_us, session.total))
            self.expire_if_asked()

    # --- What holds after every step ----------------------------------------------------------------------

    @invariant()
    def an_escrow_holds_its_cap_and_what_strangers_sent(self) -> None:
        for session in self.sessions:
            if session.status == "open":
                assert self.world.balance(session.escrow) == session.cap + session.dust
            assert session.total <= session.cap

    async def check_books(self) -> None:
        await super().check_books()
        rows = {row["account_id"]: row for row in await self.world.rows(tables.accounts)}
        for account in self.accounts:
            row = rows[account.party.account_id]
            assert row["balance"] in (account.balance, account.balance - account.unseen)
            assert row["in_flight"] == account.reserved
            assert row["session_reserved"] == self.set_aside(account)

    def teardown(self) -> None:
        if self.accounts:
            self.do(self.check_sessions())
        super().teardown()

    async def check_sessions(self) -> None:
        events = await self.world.events()
        for session in self.sessions:
            types = [e["type"] for e in events if e["data"].get("session_id") == session.session_id]
            expected = ["session.opened"]
            expected += ["session.cap_warning"] * (session.total * 100 > session.cap * 80)
            expected += ["session.cap_reached"] * (session.total == session.cap)
            expected += ["session.settled"] * (session.status == "settled")
            assert types == expected
            landed = self.world.attempts(session.session_id).count("landed")
            assert landed == (2 if session.status == "settled" else 1)
            charges = await self.world.rows(tables.session_charges, session_id=session.session_id)
            assert {row["idempotency_key"]: row["amount"] for row in charges} == session.charges

    # --- Small words --------------------------------------------------------------------------------------

    def opening(self, key: str, terms: tuple[int, str, int]) -> Answer:
        source, to, cap = terms
        party = self.accounts[source].party
        answer: Answer = self.do(self.world.open_session(key, party, Party(to, ""), usdc(cap)))
        return answer

    def in_trouble(self, trouble: str, work: Any) -> Answer:
        self.height = self.world.chain.inner._height
        self.world.chain.next("send", ACTS[trouble])
        answer: Answer = work()
        self.world.chain.script_ends()
        return answer

    def expire_if_asked(self) -> None:
        if self.world.chain.inner._height > self.height:
            self.expire_in_flight()


class InterruptedMoneyWithSessions(MoneyWithSessions):
    """The same, where every call of the chain and the database lets others in."""

    interrupted = 13


SETTINGS = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.generate],  # Shrinking what is as long as this takes minutes.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestMoneyWithSessions = MoneyWithSessions.TestCase
TestMoneyWithSessions.settings = SETTINGS
TestInterruptedMoneyWithSessions = InterruptedMoneyWithSessions.TestCase
TestInterruptedMoneyWithSessions.settings = SETTINGS
