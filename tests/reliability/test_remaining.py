"""What the console says of a daily limit, against what the next transfer is allowed to do (D24, D27; P9).

At random moments of random histories, and at the exact moment at which something falls out of the window: a
transfer of exactly `remaining_usdc` is allowed, and one of a unit more is not.
"""

from datetime import datetime, timedelta
from typing import Any

import chains
import worlds
from attrs import define, field
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from worlds import START, Party, World, micro

DAY_US = 24 * 3600 * 10**6
LIMIT = 100

JUMPS = st.sampled_from([0, 1, 999, 1000, 7_000_001, DAY_US // 5, DAY_US // 3, DAY_US - 1, DAY_US])
STEPS = st.tuples(
    JUMPS,
    st.integers(1, 60),
    st.sampled_from(["settles", "settles", "is approved", "fails", "hangs", "is lost"]),
)


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

    @property
    def room(self) -> int:
        return LIMIT - sum(amount for at_us, amount in self.spends if at_us > self.now_us - DAY_US)

    async def ask(self, amount: int) -> Any:
        self.asked += 1
        text = f"{amount / 10**6:.6f}"
        return await self.world.transfer(f"key-{self.asked}", self.source, self.to, text)

    async def advance(self, jump_us: int) -> None:
        await self.world.advance(jump_us / 10**6)
        self.now_us += jump_us

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
            chain.next("send", chains.before(lambda: self.world.freeze(self.to)))
            assert (await self.ask(amount)).error == "transfer_failed"
            self.world.thaw(self.to)
            return
        elif fate == "settles":
            assert (await self.ask(amount)).status == 200
        else:
            chain.next("send", chains.goes_down)
            assert (await self.ask(amount)).status == 503
            self.reserved += amount
            self.spends.append((self.now_us, amount))
            # The chain answers again, and nobody has asked it yet.
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

    async def check_shown(self) -> dict[str, Any]:
        """Compare what is shown with the list of spends."""
        detail = await self.world.detail(self.source)
        assert micro(detail["spent_usdc"]) == LIMIT - self.room
        assert micro(detail["reserved_usdc"]) == self.reserved
        assert micro(detail["remaining_usdc"]) == self.room
        live = [spend for spend in self.spends if spend[0] > self.now_us - DAY_US]
        if not live:
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
        await self.check_shown()

    async def take_what_remains(self) -> None:
        """Ask for exactly what remains, which must pass and leave nothing."""
        remaining = micro((await self.check_shown())["remaining_usdc"])
        assert (await self.ask(remaining)).status == 200
        self.spends.append((self.now_us, remaining))
        assert self.room == 0
        await self.check()


async def play(world: World, steps: list[tuple[int, int, str]]) -> None:
    source, to = await world.account("1"), await world.account()
    await world.policy(source, max_daily_spend=LIMIT / 10**6)
    game = Game(world, source, to)
    for jump_us, wanted, fate in steps:
        await game.advance(jump_us)
        await game.check()
        if game.room:
            await game.spend(min(wanted, game.room), fate)
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
        if number % 2 == 0:
            await game.take_what_remains()


# Shrinking what is as long as this takes minutes.
@settings(max_examples=20, deadline=None, phases=[Phase.generate])
@given(steps=st.lists(STEPS, min_size=3, max_size=15))
def test_exactly_what_remains_is_allowed_and_one_unit_more_is_not(steps: list[tuple[int, int, str]]) -> None:
    async def test() -> None:
        async with worlds.world() as world:
            await play(world, steps)

    worlds.run(test)
