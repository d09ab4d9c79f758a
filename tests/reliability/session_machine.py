"""The machine of money with sessions among its operations, and the model of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from money_machine import (
    ACTS,
    DAY_US,
    Account,
    Money,
    sources,
    usdc,
)
from worlds import Answer, Party

SHOP = 4
payees = st.integers(0, SHOP)
caps = st.integers(1, 60)
charges = st.integers(1, 30)
fates = st.sampled_from([*sorted(ACTS), *3 * ["lost"], "away"])
keys = st.sampled_from("abcde")
askers = st.sampled_from(["operator", "operator", "agent"])
limits = st.none() | st.integers(10, 200)
thresholds = st.none() | st.integers(1, 60)
LIVING = ("open", "closing")


@define
class Session:
    """The model's record of a session."""

    key: str
    terms: tuple[int, str, int]
    session_id: str
    escrow: Party
    status: str
    total: int = 0
    key_expires_us: int | None = None
    dust: int = 0
    charges: dict[str, int] = field(factory=dict)
    # Whether its settlement is signed, and lost on the way.
    is_lost: bool = False

    @property
    def cap(self) -> int:
        return self.terms[2]


class MoneyWithSessions(Money):
    """Sessions between the accounts and with a shop, and strangers who send to escrows."""

    # Their effect on transfers is tested elsewhere, which leaves more room for sessions.
    resubmit = race = transfer_while_the_chain_is_away = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []
        self.shop_holds = 0
        self.is_shop_frozen = False

    @initialize(funds=st.lists(st.integers(40, 200), min_size=3, max_size=3))
    def begin(self, funds: list[int]) -> None:
        super().begin(funds)
        self.shop: Party = self.do(self.world.outside())
        self.agents: dict[str, str] = {}

    # --- The model ----------------------------------------------------------------------------------------

    def of(self, account: Account, *statuses: str) -> list[Session]:
        return [
            session
            for session in self.sessions
            if session.status in statuses and self.accounts[session.terms[0]] is account
        ]

    def set_aside(self, account: Account) -> int:
        return sum(session.cap for session in self.of(account, *LIVING))

    def promised(self, account: Account) -> int:
        """The caps that count against the daily limit: those of the escrows, and what is on its way there."""
        return sum(session.cap for session in self.of(account, "opening", *LIVING))

    def elsewhere(self) -> int:
        return self.shop_holds + sum(self.world.balance(session.escrow) for session in self.living())

    def spent(self, account: Account) -> int:
        return super().spent(account) + self.promised(account)

    def move(self, terms: tuple[int, str, int]) -> None:
        source, to, amount = terms
        if to == self.shop.account_id:
            self.accounts[source].balance -= amount
            self.shop_holds += amount
        else:
            super().move(terms)

    def opening_refusal(self, source: int, to: str, cap: int, asker: str) -> str | None:
        account = self.accounts[source]
        policy, daily = account.policy, account.policy.get("max_daily_spend")
        if policy.get("paused"):
            return "account_paused"
        if to == self.shop.account_id and self.is_shop_frozen:
            return "invalid_recipient"
        if daily is not None and self.spent(account) + cap > daily:
            return "policy_violation"
        if cap > account.balance - account.reserved:
            return "insufficient_balance"
        return "policy_violation" if asker == "agent" and self.escalates(source, cap) else None

    def charge_refusal(self, session: Session, amount: int) -> str | None:
        policy = self.accounts[session.terms[0]].policy
        single = policy.get("max_single_transfer")
        if session.status == "opening":
            return "chain_unavailable"
        if session.status != "open":
            return "session_closed"
        if policy.get("paused"):
            return "account_paused"
        if single is not None and amount > single:
            return "policy_violation"
        return "session_cap_exceeded" if session.total + amount > session.cap else None

    def cannot_be_paid(self, session: Session) -> bool:
        """Whether the payee is an obstacle; one who gets nothing is not."""
        return self.is_shop_frozen and session.terms[1] == self.shop.account_id and session.total > 0

    def is_swallowed(self, session: Session) -> bool:
        return session.session_id in self.world.chain.black_holes

    def book_settled(self, session: Session) -> None:
        session.status, session.is_lost = "settled", False
        source, to, cap = session.terms
        payer = self.accounts[source]
        payer.balance += cap + session.dust
        self.move((source, to, session.total))
        if session.total:
            payer.spends.append((self.now_us, session.total))

    def living(self) -> list[Session]:
        return [session for session in self.sessions if session.status in LIVING]

    # --- What callers do ----------------------------------------------------------------------------------

    verbs = (
        *("open_session", "open_session", "open_again"),
        *("charge", "charge", "charge", "charge"),
        *("close_session", "close_session"),
        *("send_dust", "freeze_or_thaw", "change_policy", "end_trouble"),
    )

    def use_sessions(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            verb = data.draw(st.sampled_from(self.verbs))
            if self.sessions or verb.startswith("open_session"):
                getattr(self, verb)(data)

    # Hypothesis takes one rule as often as another: what is most of all that happens here is several.
    some_session_steps = rule(data=st.data(), count=st.integers(1, 8))(use_sessions)
    other_session_steps = rule(data=st.data(), count=st.integers(1, 8))(use_sessions)
    more_session_steps = rule(data=st.data(), count=st.integers(1, 8))(use_sessions)
    last_session_steps = rule(data=st.data(), count=st.integers(1, 8))(use_sessions)

    # --- Opening ------------------------------------------------------------------------------------------

    def open_session(self, data: st.DataObject) -> None:
        terms = self.terms(data.draw(sources), data.draw(payees), data.draw(caps))
        fate, asker = data.draw(fates), data.draw(askers)
        if fate == "away":
            self.open_while_the_chain_is_away(terms, asker)
        elif fate == "lost":
            self.open_into_a_black_hole(terms, asker)
        else:
            self.open_under(self.new_key(), terms, fate, asker)

    def open_again(self, data: st.DataObject) -> None:
        session, asker = data.draw(st.sampled_from(self.sessions)), data.draw(askers)
        is_free = session.key_expires_us is not None and session.key_expires_us <= self.now_us
        if is_free or session.status == "failed":
            if self.open_under(session.key, session.terms, "none", asker):
                # The key is another's from now on.
                session.key, session.key_expires_us = self.sessions[-1].key + ", lost", 0
            return
        answer = self.opening(session.key, session.terms, asker)
        if session.status == "opening":
            assert (answer.status, answer.error) == (503, "chain_unavailable")
        else:
            assert answer.status == 201
        assert (answer.body["status"], answer.body["session_id"]) == (session.status, session.session_id)

    def open_under(self, key: str, terms: tuple[int, str, int], trouble: str, asker: str) -> bool:
        refusal = self.opening_refusal(*terms, asker)
        answer = self.in_trouble(trouble, lambda: self.opening(key, terms, asker))
        if refusal is not None:
            self.expect_refused_opening(answer, refusal)
            return False
        assert (answer.status, answer.body["status"]) == (201, "open"), answer
        escrow = Party("", answer.body["escrow_token_account"])
        self.sessions.append(Session(key, terms, answer.body["session_id"], escrow, "open"))
        self.accounts[terms[0]].balance -= terms[2]
        self.expire_if_asked()
        return True

    def open_while_the_chain_is_away(self, terms: tuple[int, str, int], asker: str) -> None:
        self.world.chain.is_down = True
        answer = self.opening(self.new_key(), terms, asker)
        self.world.chain.is_down = False
        if self.accounts[terms[0]].policy.get("paused"):
            self.expect_refused_opening(answer, "account_paused")
        else:
            assert (answer.status, answer.error) == (503, "chain_unavailable")
            assert "session_id" not in answer.body

    def open_into_a_black_hole(self, terms: tuple[int, str, int], asker: str) -> None:
        refusal = self.opening_refusal(*terms, asker)
        key = self.new_key()
        self.world.chain.swallow_next_payment()
        answer = self.opening(key, terms, asker)
        self.world.chain.script_ends()
        if refusal is not None:
            self.expect_refused_opening(answer, refusal)
            return
        assert (answer.status, answer.body["status"]) == (503, "opening"), answer
        session_id = answer.body["session_id"]
        shown = self.do(self.world.get_session(session_id))
        escrow = Party("", shown["escrow_token_account"])
        self.sessions.append(Session(key, terms, session_id, escrow, "opening"))
        self.accounts[terms[0]].reserved += terms[2]

    def expect_refused_opening(self, answer: Answer, refusal: str) -> None:
        if refusal == "invalid_recipient":
            assert (answer.status, answer.error) == (422, refusal)
        else:
            assert (answer.status, answer.error, answer.body["session_id"]) == (402, refusal, None)

    # --- Charging -----------------------------------------------------------------------------------------

    def charge(self, data: st.DataObject) -> None:
        self.charge_under(self.any_session(data), data.draw(keys), data.draw(charges), data.draw(askers))

    def charge_under(self, session: Session, key: str, amount: int, asker: str = "operator") -> None:
        with self.asking(session.terms[0], asker):
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

    # --- Closing ------------------------------------------------------------------------------------------

    def close_session(self, data: st.DataObject) -> None:
        session = self.any_session(data)
        fate, asker = data.draw(fates), data.draw(askers)
        if fate not in ACTS and session.status not in LIVING:
            fate = "none"
        if fate == "away":
            self.close_while_the_chain_is_away(session)
        elif fate == "lost":
            if not self.cannot_be_paid(session):
                self.world.chain.black_holes.add(session.session_id)
            self.close(session, asker=asker)
        else:
            self.close(session, fate, asker)
            self.expire_if_asked()

    def close_while_the_chain_is_away(self, session: Session) -> None:
        self.world.chain.is_down = True
        away = self.do(self.world.close_session(session.session_id))
        assert (away.status, away.error, away.body["status"]) == (503, "chain_unavailable", "closing")
        # The charges until then are settled.
        session.status = "closing"
        self.charge_under(session, "late", 1)
        self.world.chain.is_down = False
        self.close(session)

    def close(self, session: Session, trouble: str = "none", asker: str = "operator") -> None:
        """Close a session in any status, and bring the model up to date."""

        def closing() -> Answer:
            with self.asking(session.terms[0], asker):
                answer: Answer = self.do(self.world.close_session(session.session_id))
            return answer

        answer = self.in_trouble(trouble, closing)
        if session.status in ("opening", "failed"):
            refusal = (503, "chain_unavailable") if session.status == "opening" else (409, "session_closed")
            assert (answer.status, answer.error) == refusal
            return
        if session.status in LIVING:
            session.status = "closing"
            session.is_lost = session.is_lost or (
                self.is_swallowed(session) and not self.cannot_be_paid(session)
            )
            if session.is_lost:
                assert (answer.status, answer.body["status"]) == (503, "closing"), answer
                return
            if self.cannot_be_paid(session):
                assert (answer.status, answer.error) == (402, "transfer_failed"), answer
                assert (answer.body["status"], answer.body["session_id"]) == ("closing", session.session_id)
                return
            self.book_settled(session)
        assert (answer.status, answer.body["status"]) == (200, "settled"), answer
        assert answer.body["settled_usdc"] == usdc(session.total)
        assert answer.body["returned_usdc"] == usdc(session.cap - session.total)

    # --- What others do -----------------------------------------------------------------------------------

    def send_dust(self, data: st.DataObject) -> None:
        if not self.living():
            return
        session, micro = data.draw(st.sampled_from(self.living())), data.draw(st.integers(1, 5))
        self.do(self.strangers[0].pay((session.escrow.token_account, micro)))
        self.minted += micro
        session.dust += micro

    def freeze_or_thaw(self, _: st.DataObject) -> None:
        """Freeze what the shop is paid into, or thaw it."""
        is_thawed = self.is_shop_frozen
        self.do(self.world.set_frozen(self.shop, is_frozen=not is_thawed))
        self.is_shop_frozen = not is_thawed
        for session in self.owed_to_the_shop() if is_thawed else ():
            if session.status == "closing" and not session.is_lost:
                # When it would be settled automatically depends on real time.
                self.close(session)

    def owed_to_the_shop(self) -> list[Session]:
        return [s for s in self.living() if s.terms[1] == self.shop.account_id and s.total]

    def change_policy(self, data: st.DataObject) -> None:
        single, daily, threshold = data.draw(limits), data.draw(limits), data.draw(thresholds)
        source = data.draw(st.sampled_from([session.terms[0] for session in self.sessions]))
        self.set_policy(source, single, daily, threshold, paused=data.draw(st.booleans()))

    def end_trouble(self, data: st.DataObject) -> None:
        self.black_holes_end(expired=data.draw(st.booleans()))

    # --- The end of trouble -------------------------------------------------------------------------------

    @rule(expired=st.booleans())
    def black_holes_end(self, expired: bool) -> None:
        super().black_holes_end(expired)
        # A settlement that came late finds what strangers have sent to the escrow since, and is signed again.
        self.do(self.world.advance())
        for session in self.sessions:
            if session.status == "opening":
                session.status = "open"
                payer = self.accounts[session.terms[0]]
                payer.reserved -= session.cap
                payer.balance -= session.cap
            elif session.is_lost and not self.cannot_be_paid(session):
                self.book_settled(session)
            # A settlement that the chain refused waits for the payee.
            session.is_lost = False
            self.expect_status(session)

    def expire_in_flight(self) -> None:
        super().expire_in_flight()
        for session in self.sessions:
            payer = self.accounts[session.terms[0]]
            if session.status == "opening":
                if payer.policy.get("paused"):
                    session.status, session.key_expires_us = "failed", self.now_us + DAY_US
                    payer.reserved -= session.cap
                self.expect_status(session)
            elif session.is_lost:
                # It is signed again, unless the payee cannot be paid.
                session.is_lost = not self.cannot_be_paid(session)
                self.expect_status(session)

    def expect_status(self, session: Session) -> None:
        shown = self.do(self.world.get_session(session.session_id))
        assert shown["status"] == session.status

    # --- What holds after every step ----------------------------------------------------------------------

    @invariant()
    def an_escrow_holds_its_cap_and_what_strangers_sent(self) -> None:
        for session in self.sessions:
            if session.status in LIVING:
                assert self.world.balance(session.escrow) == session.cap + session.dust
            else:
                assert self.world.chain.inner._token_account(session.escrow.token_account) is None
            assert session.total <= session.cap

    @invariant()
    def the_shop_holds_what_it_was_paid(self) -> None:
        if self.accounts:
            assert self.world.balance(self.shop) == self.shop_holds

    async def check_books(self) -> None:
        await super().check_books()
        rows = {row["account_id"]: row for row in await self.world.rows("accounts")}
        for account in self.accounts:
            row = rows[account.party.account_id]
            # Third-party payments since the last scan may or may not be reported.
            assert row["balance"] in (account.balance, account.balance - account.unseen)
            assert row["in_flight"] == account.reserved
            assert row["cap_holds"] == self.promised(account)

    async def check_ends(self) -> None:
        await super().check_ends()
        events = await self.world.events()
        for session in self.sessions:
            types = [e["type"] for e in events if e["data"].get("session_id") == session.session_id]
            was_opened = session.status in (*LIVING, "settled")
            expected = ["session.opened"] * was_opened
            expected += ["session.cap_warning"] * (session.total * 100 > session.cap * 80)
            expected += ["session.cap_reached"] * (session.total == session.cap)
            expected += ["session.settled"] * (session.status == "settled")
            assert types == expected
            landed = self.world.attempts(session.session_id).count("landed")
            assert landed == was_opened + (session.status == "settled")
            charges = await self.world.rows("session_charges", session_id=session.session_id)
            assert {row["idempotency_key"]: row["amount"] for row in charges} == session.charges

    # --- Small words --------------------------------------------------------------------------------------

    def any_session(self, data: st.DataObject) -> Session:
        """Return any session, most often one with an escrow."""
        return data.draw(st.sampled_from(2 * self.living() + self.sessions))

    def new_key(self) -> str:
        return f"session {len(self.sessions)}"

    def terms(self, source: int, recipient: int, amount: int) -> tuple[int, str, int]:
        if recipient == SHOP:
            return source, self.shop.account_id, amount
        return super().terms(source, recipient, amount)

    def opening(self, key: str, terms: tuple[int, str, int], asker: str) -> Answer:
        source, to, cap = terms
        party = self.accounts[source].party
        with self.asking(source, asker):
            answer: Answer = self.do(self.world.open_session(key, party, Party(to, ""), usdc(cap)))
        return answer

    @contextmanager
    def asking(self, source: int, asker: str) -> Iterator[None]:
        """Let requests be those of the account's agent, if it is an agent who asks."""
        headers = self.world.http.headers
        before = headers["Authorization"]
        if asker == "agent":
            headers["Authorization"] = f"Bearer {self.agent_key(self.accounts[source].party.account_id)}"
        try:
            yield
        finally:
            headers["Authorization"] = before

    def agent_key(self, account_id: str) -> str:
        if account_id not in self.agents:
            made = self.do(
                self.world.request("POST", "/ext/v1/console/agent-keys", {"account_id": account_id})
            )
            self.agents[account_id] = made.body["key"]
        return self.agents[account_id]

    def in_trouble(self, trouble: str, work: Callable[[], Answer]) -> Answer:
        self.height = self.world.chain.inner._blocks.height()
        self.world.chain.next_payment(ACTS[trouble])
        answer = work()
        self.world.chain.script_ends()
        return answer

    def expire_if_asked(self) -> None:
        if self.world.chain.inner._blocks.height() > self.height:
            self.expire_in_flight()
