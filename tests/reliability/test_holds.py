"""What holds add up to, against sums over all purchases by kind and status, over random histories.

Whoever reads the rows of accounts compares them (`held_sums`): here after every step, kills included.
"""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import chains
import pytest
import worlds
from worlds import World

pytestmark = pytest.mark.unmeasured

STEPS = 80
DAY_SECONDS = 24 * 3600


class History:
    """What may happen to an account with an agent whose total is limited, and one whose is not."""

    def __init__(self, directory: Path | None, chance: random.Random) -> None:
        self.directory = directory
        self.chance = chance
        self.agents: list[dict[str, str]] = []
        self.sessions: list[str] = []
        self.waiting: list[str] = []
        self.number = 0

    async def begin(self) -> None:
        self.world = await self.started(None)
        self.source, self.to = await self.world.account("50"), await self.world.account()
        self.agents = [
            await self.world.agent_of(self.source, max_total_usdc="40"),
            await self.world.agent_of(self.source),
            {},
        ]
        await self.world.policy(self.source, max_daily_spend=30, escalation_threshold=3)

    async def started(self, after: World | None) -> World:
        return await worlds.started(data_dir=self.directory, after=after, fee_budget_sol="0.01")

    @property
    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        steps = [self.pay, self.pay, self.open, self.charge, self.close, self.decide, self.pass_time]
        return steps if self.directory is None else [*steps, self.killed]

    async def asked(self, path: str, **body: Any) -> worlds.Answer:
        self.number += 1
        body["idempotency_key"] = f"key {self.number}"
        return await self.world.request("POST", path, body, headers=self.chance.choice(self.agents))

    def amount(self) -> str:
        return f"{self.chance.choice([1, 10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6]) / 10**6:.6f}"

    def paying(self) -> Awaitable[worlds.Answer]:
        return self.asked(
            "/v1/transfers",
            **{"from": self.source.account_id, "to": self.to.account_id, "amount": self.amount()},
        )

    async def troubled(self, work: Awaitable[worlds.Answer]) -> worlds.Answer:
        """Let the next transaction land, be refused, expire, or stay unknown, and then never land."""
        chain, world = self.world.chain, self.world
        fate = self.chance.choice(["lands", "lands", "lands", "refused", "expires", "unknown"])
        was_frozen: list[bool] = []

        def freeze() -> None:
            world.freeze(self.source)
            was_frozen.append(True)

        # A chain in a file takes time to freeze an account.
        if fate == "refused" and self.directory is None:
            chain.next_payment(chains.before(freeze))
        elif fate == "expires":
            chain.next_payment(chains.expiring)
        elif fate == "unknown":
            chain.next_payment(chains.goes_down)
        answer = await work
        chain.clear()
        if was_frozen:
            world.thaw(self.source)
        if fate == "unknown" and self.chance.random() < 0.5:
            # Counted while it is in flight; nothing follows it on a paused account.
            await self.compared()
            await world.policy(self.source, paused=True)
            chain.inner.expire_blockhash()
            await world.rest()
            await world.policy(self.source, paused=False)
        return answer

    async def pay(self) -> None:
        answer = await self.troubled(self.paying())
        if answer.status == 202:
            self.waiting.append(answer.body["transfer_id"])

    async def open(self) -> None:
        party, cap = self.source.account_id, self.amount()
        opening = self.asked("/ext/v1/sessions", account_id=party, to=self.to.account_id, cap_usdc=cap)
        answer = await self.troubled(opening)
        if answer.body.get("session_id"):
            self.sessions.append(answer.body["session_id"])

    async def charge(self) -> None:
        if self.sessions:
            session_id = self.chance.choice(self.sessions)
            await self.asked(f"/ext/v1/sessions/{session_id}/charges", amount=self.amount())

    async def close(self) -> None:
        if self.sessions:
            await self.troubled(self.world.close_session(self.chance.choice(self.sessions)))

    async def decide(self) -> None:
        if self.waiting:
            transfer_id = self.waiting.pop(self.chance.randrange(len(self.waiting)))
            decide = self.chance.choice([self.world.approve, self.world.reject])
            await self.troubled(decide(transfer_id))

    async def pass_time(self) -> None:
        await self.world.advance(self.chance.choice([1, 60, DAY_SECONDS / 2, DAY_SECONDS]))

    async def killed(self) -> None:
        await self.world.cut_off(self.paying(), self.chance.randrange(9))
        before, self.world = self.world, await self.started(self.world)
        before.chain.inner.release()

    async def compared(self) -> dict[str, Any]:
        (row,) = await self.world.rows("accounts", account_id=self.source.account_id)
        return row

    async def run(self) -> None:
        await self.begin()
        try:
            for _ in range(STEPS):
                await self.chance.choice(self.steps)()
                row = await self.compared()
                detail = await self.world.detail(self.source)
                opening = [
                    each["cap"]
                    for each in await self.world.rows("sessions", account_id=self.source.account_id)
                    if each["status"] == "opening"
                ]
                reserved = row["in_flight"] - sum(opening) + row["cap_holds"]
                assert detail["reserved_usdc"] == f"{reserved / 10**6:.6f}"
                await self.world.rest()
                await self.compared()
        finally:
            await self.world.stop()


@pytest.mark.parametrize("with_kills", [False, True])
def test_holds_add_up_to_what_all_purchases_hold(tmp_path: Path, with_kills: bool) -> None:
    seed = random.SystemRandom().getrandbits(32)
    try:
        worlds.run(History(tmp_path if with_kills else None, random.Random(seed)).run)
    except BaseException as error:
        error.add_note(f"random.Random({seed})")
        raise
