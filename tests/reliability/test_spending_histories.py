"""The rolling window against brute force, over a random history through the whole service.

See interface PO9; P9.
"""

import random
from datetime import UTC, datetime, timedelta

import chains
import pytest
import worlds
from worlds import World

pytestmark = pytest.mark.unmeasured

DAY_US = 24 * 3600 * 10**6
START_US = 1_767_225_600_000_000
LIMIT = 100

JUMPS = [0, 0, 0, 1, 1_000_000, DAY_US // 8, DAY_US // 3, DAY_US // 2, DAY_US - 1, DAY_US, DAY_US + 1]


class Ledger:
    """Every spend with its time, and nothing clever."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.spends: list[tuple[int, int]] = []

    def spent(self) -> int:
        return sum(amount for at_us, amount in self.spends if at_us > self.now_us - DAY_US)

    def wire_time_with_room_for(self, amount: int) -> str | None:
        """Return from when the window has room for an amount, by looking at each time it could be."""
        if amount > LIMIT:
            return None
        leaving = sorted(at_us + DAY_US for at_us, _ in self.spends if at_us + DAY_US > self.now_us)
        now_us = self.now_us
        try:
            for self.now_us in leaving:
                if self.spent() + amount <= LIMIT:
                    return wire_time(self.now_us)
        finally:
            self.now_us = now_us
        raise AssertionError("the window empties")


def wire_time(moment_us: int) -> str:
    """Return a time as responses have it, rounded up to the millisecond."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=-(-moment_us // 1000))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def play(world: World, steps: list[tuple[int, int | None, str]]) -> None:
    source, to = await world.account("1"), await world.account()
    await world.policy(source, max_daily_spend=LIMIT / 10**6)
    ledger = Ledger()
    for number, (jump_us, wanted, fate) in enumerate(steps):
        await world.advance(jump_us / 10**6)
        ledger.now_us += jump_us
        # None asks for exactly what the limit still allows, which must pass, and then for one unit more.
        room = LIMIT - ledger.spent()
        amount = wanted or max(room, 1)
        if fate == "expires":
            world.chain.next_payment(chains.expiring)
        elif fate == "fails":
            world.chain.next_payment(chains.before(lambda: world.freeze(to)))
        elif fate == "hangs":
            world.chain.next_payment(chains.goes_down)
        answer = await world.transfer(f"key-{number}", source, to, f"{amount / 10**6:.6f}")
        if amount > room:
            assert (answer.status, answer.error) == (402, "policy_violation"), (room, amount)
            world.chain.clear()
        elif fate == "fails":
            assert (answer.status, answer.error) == (402, "transfer_failed")
            world.thaw(to)
        elif fate == "hangs":
            assert answer.status == 503
            # In flight it counts; proved lost on a paused account, it counts no more.
            world.chain.clear()
            reserved = await world.detail(source)
            assert reserved["reserved_usdc"] == f"{amount / 10**6:.6f}"
            assert reserved["spent_usdc"] == f"{(ledger.spent() + amount) / 10**6:.6f}"
            await world.policy(source, paused=True)
            world.chain.inner.expire_blockhash()
            await world.rest()
            assert (await world.get_transfer(answer.body["transfer_id"]))["status"] == "failed"
            await world.policy(source, paused=False)
        else:
            assert answer.status == 200, answer
            ledger.spends.append((ledger.now_us, amount))
        detail = await world.detail(source)
        assert detail["spent_usdc"] == f"{ledger.spent() / 10**6:.6f}"
        assert detail["reserved_usdc"] == "0.000000"
        over = await world.transfer(
            f"over-{number}", source, to, f"{(LIMIT - ledger.spent() + 1) / 10**6:.6f}"
        )
        assert over.error == "policy_violation"
        refusal = over.body["refusal"]
        assert refusal["rule"] == "max_daily_spend"
        assert refusal["available_at"] == ledger.wire_time_with_room_for(LIMIT - ledger.spent() + 1)
    assert world.balance(to) == sum(amount for _, amount in ledger.spends)


def steps_of(seed: int) -> list[tuple[int, int | None, str]]:
    chance = random.Random(seed)
    return [
        (
            chance.choice(JUMPS),
            chance.choice([None, chance.randint(1, 60)]),
            chance.choice(["settles", "settles", "fails", "expires", "hangs"]),
        )
        for _ in range(300)
    ]


def test_the_rolling_window_equals_brute_force_over_a_long_history() -> None:
    """One account, 300 steps: totals that began long before the window, and days that are full."""
    seed = random.SystemRandom().getrandbits(32)

    async def test() -> None:
        async with worlds.world() as world:
            await play(world, steps_of(seed))

    try:
        worlds.run(test)
    except BaseException as error:
        error.add_note(f"steps_of({seed})")
        raise
