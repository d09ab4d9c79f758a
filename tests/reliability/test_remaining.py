"""The displayed daily limit, compared with the next transfer that is accepted.

See interface PO9, AP1 to AP5, S1 to S18; P9.

At random moments of random histories, and at the exact moment at which something falls out of the window: a
transfer of exactly `remaining_usdc` is allowed, and so is a session with that cap; one of a unit more is not.
A session counts with its whole cap until it is settled, and with what it was charged from then on.
"""

from datetime import datetime, timedelta
from typing import Any

import chains
import pytest
import worlds
from attrs import define, field
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from worlds import START, Party, World, micro

pytestmark = pytest.mark.unmeasured

DAY_US = 24 * 3600 * 10**6
LIMIT = 100

JUMPS = st.sampled_from([0, 1, 999, 1000, 7_000_001, DAY_US // 5, DAY_US // 3, DAY_US - 1, DAY_US])
STEPS = st.tuples(
    JUMPS,
    st.integers(1, 60),
    st.sampled_from(
        [
            *("settles", "settles", "is approved", "fails", "hangs", "is lost"),
            *("session opens", "session opens", "opening hangs", "opening is lost"),
            *("session is charged", "session is charged", "session closes", "closing hangs"),
        ]
    ),
)


def usdc(amount: int) -> str:
    return f"{amount / 10**6:.6f}"


@define
class Session:
    """An open session of the payer."""

    session_id: str
    cap: int
    total: int = 0


@define
class Game:
    """A payer with a daily limit of 100 units, and all that was spent of it, without anything clever."""

    world: World
    source: Party
    to: Party
    now_us: int = 0
    asked: int = 0
    spends: list[tuple[int, int]] = field(factory=list)
    reserved: int = 0
    sessions: list[Session] = field(factory=list)

    @property
    def promised(self) -> int:
        """The caps of all sessions that are not settled."""
        return sum(session.cap for session in self.sessions)

    @property
    def room(self) -> int:
        spent = sum(amount for at_us, amount in self.spends if at_us > self.now_us - DAY_US)
        return LIMIT - spent - self.promised

    async def ask(self, amount: int) -> Any:
        self.asked += 1
        return await self.world.transfer(f"key-{self.asked}", self.source, self.to, usdc(amount))

    async def ask_to_open(self, cap: int) -> Any:
        self.asked += 1
        return await self.world.open_session(f"key-{self.asked}", self.source, self.to, usdc(cap))

    async def advance(self, jump_us: int) -> None:
        await self.world.advance(jump_us / 10**6)
        self.now_us += jump_us

    async def play(self, wanted: int, fate: str) -> None:
        """Have something happen, if there is what it needs."""
        session = self.sessions[wanted % len(self.sessions)] if self.sessions else None
        if fate == "session is charged":
            if session is not None and session.total < session.cap:
                await self.charge(session, min(wanted, session.cap - session.total))
        elif fate in ("session closes", "closing hangs"):
            if session is not None:
                await self.close(session, fate)
        elif self.room and fate in ("session opens", "opening hangs", "opening is lost"):
            await self.open(min(wanted, self.room), fate)
        elif self.room:
            await self.spend(min(wanted, self.room), fate)

    async def spend(self, amount: int, fate: str) -> None:
        """Ask for a transfer that fits, and have it come to the end that is wanted."""
        chain = self.world.chain
        if fate == "is approved":
            await self.world.policy(self.source, escalation_threshold=amount / 10**6)
            waiting = await self.ask(amount)
            assert waiting.status == 202
            await self.world.policy(self.source, escalation_threshold=None)
            await self.check()
            assert (await self.world.approve(waiting.transfer_id)).status == 200
        elif fate == "fails":
            chain.next_payment(chains.before(lambda: self.world.freeze(self.to)))
            assert (await self.ask(amount)).error == "transfer_failed"
            self.world.thaw(self.to)
            return
        elif fate == "settles":
            assert (await self.ask(amount)).status == 200
        else:
            chain.next_payment(chains.goes_down)
            assert (await self.ask(amount)).status == 503
            self.reserved += amount
            self.spends.append((self.now_us, amount))
            # The chain responds again, and no call has been made yet.
            chain.clear()
            await self.check_shown()
            if fate == "is lost":
                await self.world.policy(self.source, paused=True)
                chain.inner.expire_blockhash()
                self.spends.pop()
            await self.world.rest()
            await self.world.policy(self.source, paused=False)
            self.reserved -= amount
            return
        self.spends.append((self.now_us, amount))

    async def open(self, cap: int, fate: str) -> None:
        """Ask for a session that fits, and have its opening come to the end that is wanted."""
        chain = self.world.chain
        if fate == "session opens":
            answer = await self.ask_to_open(cap)
            assert (answer.status, answer.body["status"]) == (201, "open")
            self.sessions.append(Session(answer.body["session_id"], cap))
            return
        chain.next_payment(chains.goes_down)
        answer = await self.ask_to_open(cap)
        assert (answer.status, answer.body["status"]) == (503, "opening")
        self.sessions.append(Session(answer.body["session_id"], cap))
        # The chain responds again, and no call has been made yet.
        chain.clear()
        await self.check_shown()
        if fate == "opening is lost":
            await self.world.policy(self.source, paused=True)
            chain.inner.expire_blockhash()
            self.sessions.pop()
        await self.world.rest()
        await self.world.policy(self.source, paused=False)

    async def charge(self, session: Session, amount: int) -> None:
        """Charge a session: what it was charged is no more than was promised."""
        self.asked += 1
        answer = await self.world.charge(f"key-{self.asked}", session.session_id, usdc(amount))
        assert answer.status == 200
        session.total += amount

    async def close(self, session: Session, fate: str) -> None:
        """Close a session, and have it settled at once or later."""
        if fate == "closing hangs":
            self.world.chain.next_payment(chains.goes_down)
            answer = await self.world.close_session(session.session_id)
            assert (answer.status, answer.body["status"]) == (503, "closing")
            self.world.chain.clear()
            await self.check_shown()
            await self.world.rest()
        answer = await self.world.close_session(session.session_id)
        assert (answer.status, answer.body["settled_usdc"]) == (200, usdc(session.total))
        self.sessions.remove(session)
        if session.total:
            self.spends.append((self.now_us, session.total))

    async def check_shown(self) -> dict[str, Any]:
        """Compare what is shown with the list of spends."""
        detail = await self.world.detail(self.source)
        assert micro(detail["spent_usdc"]) == LIMIT - self.room
        assert micro(detail["reserved_usdc"]) == self.reserved + self.promised
        assert micro(detail["remaining_usdc"]) == self.room
        live = [spend for spend in self.spends if spend[0] > self.now_us - DAY_US]
        if not live:
            # The time of a settlement is not known in advance.
            assert (detail["next_release_at"], detail["next_release_usdc"]) == (None, None)
            return detail
        first_us = min(at_us for at_us, _ in live)
        assert micro(detail["next_release_usdc"]) == sum(
            amount for at_us, amount in live if at_us == first_us
        )
        told = datetime.fromisoformat(detail["next_release_at"]) - START
        # Never too early, and less than a millisecond late.
        assert 0 <= told / timedelta(microseconds=1) - (first_us + DAY_US) < 1000
        return detail

    async def check(self) -> None:
        """Compare what is shown, and ask for one unit more than remains, which must be refused."""
        detail = await self.check_shown()
        remaining = micro(detail["remaining_usdc"])
        assert (await self.ask(remaining + 1)).error == "policy_violation"
        assert (await self.ask_to_open(remaining + 1)).error == "policy_violation"
        await self.check_shown()

    async def take_what_remains(self, fate: str) -> None:
        """Ask for exactly what remains, which must pass and leave nothing."""
        remaining = micro((await self.check_shown())["remaining_usdc"])
        if fate == "session opens":
            await self.open(remaining, fate)
        else:
            await self.spend(remaining, fate)
        assert self.room == 0
        await self.check()


async def play(world: World, steps: list[tuple[int, int, str]]) -> None:
    source, to = await world.account("1"), await world.account()
    await world.policy(source, max_daily_spend=LIMIT / 10**6)
    game = Game(world, source, to)
    for jump_us, wanted, fate in steps:
        await game.advance(jump_us)
        await game.check()
        await game.play(wanted, fate)
        await game.check()
    # To the last microsecond before each release, and to the release itself.
    moments = sorted({at_us + DAY_US for at_us, _ in game.spends if at_us > game.now_us - DAY_US})
    for number, moment_us in enumerate(moments):
        await game.advance(moment_us - game.now_us - 1)
        before = game.room
        await game.check()
        await game.advance(1)
        assert game.room > before
        await game.check()
        if number % 3:
            await game.take_what_remains("settles" if number % 3 == 1 else "session opens")
    for session in [*game.sessions]:
        await game.close(session, "session closes")
        await game.check()


# Shrinking what is as long as this takes minutes.
@settings(max_examples=20, deadline=None, phases=[Phase.generate])
@given(steps=st.lists(STEPS, min_size=3, max_size=15))
def test_a_transfer_of_the_remaining_limit_is_accepted_and_one_unit_more_is_refused(
    steps: list[tuple[int, int, str]],
) -> None:
    async def test() -> None:
        async with worlds.world() as world:
            await play(world, steps)

    worlds.run(test)
