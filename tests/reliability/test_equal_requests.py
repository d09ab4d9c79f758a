"""Equal requests at once where there is room for one purchase: all get it, and none is judged against it.

On SQLite every unit of work lets others in; on PostgreSQL, two servers share a database.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import worlds
from attrs import field, frozen
from sellers import ORIGIN, Seller
from session_sellers import SessionSeller
from two_servers import both
from worlds import Answer, Party, World

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

FEE = 10_000
"""Lamports of a transfer."""

CYCLE = 25_000
"""Lamports of a session's two transactions."""

AMOUNT = 1_000_000

Served = Callable[..., AbstractAsyncContextManager[tuple[World, ...]]]


def budget(lamports: int) -> dict[str, str]:
    return {"fee_budget_sol": f"{lamports / 10**9:.9f}"}


@frozen
class Room:
    """A limit with room for one purchase of 1 USDC.

    Attributes:
        policy: of the paying account.
        funds: of the paying account.
        settings: of the servers.
        waiting: transfers of the same key that wait for an approval already.
    """

    policy: dict[str, float] = field(factory=dict)
    funds: str = "10"
    settings: dict[str, Any] = field(factory=dict)
    waiting: int = 0


DAY, BALANCE = Room(policy={"max_daily_spend": 1}), Room(funds="1")
APPROVALS = Room(policy={"escalation_threshold": 0.5}, waiting=19)
ROOMS = {
    "transfer in the daily limit": DAY,
    "transfer in the balance": BALANCE,
    "transfer in the fee budget": Room(settings=budget(FEE)),
    "transfer that waits": APPROVALS,
    "session in the daily limit": DAY,
    "session in the balance": BALANCE,
    "session in the fee budget": Room(settings=budget(CYCLE)),
    "session of the most": Room(settings={"max_open_sessions": 1}),
    "payment in the daily limit": DAY,
    "payment in the balance": BALANCE,
    "payment that waits": APPROVALS,
    "channel in the daily limit": DAY,
    "channel of the most": Room(settings={"max_open_sessions": 1}),
}


@pytest.fixture
def anyio_backend() -> str:
    """A loop whose time is real: two servers wait for PostgreSQL."""
    return "asyncio"


@asynccontextmanager
async def one(**settings: Any) -> AsyncIterator[tuple[World, ...]]:
    async with worlds.world(store="file", interrupted=1, **settings) as world:
        yield (world,)


async def keys_of(world: World, account: Party, who: str) -> list[dict[str, str]]:
    """Return two API keys: requests with one key, of one server, may share their work."""
    if who == "agent":
        return [await world.agent_of(account) for _ in range(2)]
    path = "/ext/v1/console/operator-keys"
    made = [await world.request("POST", path, {"name": f"{number}"}) for number in range(2)]
    return [{"Authorization": f"Bearer {each.body['key']}"} for each in made]


async def asked_at_once(
    servers: tuple[World, ...], keys: list[dict[str, str]], path: str, body: dict[str, Any]
) -> list[Answer]:
    """Send a request twelve times: by each key to each server."""
    return await asyncio.gather(
        *(
            servers[number % len(servers)].request("POST", path, body, keys[number // 2 % len(keys)])
            for number in range(12)
        )
    )


@pytest.mark.parametrize("served", [one, both], ids=["file", "postgres"])
@pytest.mark.parametrize("who", ["agent", "operator"])
@pytest.mark.parametrize("what", ROOMS)
async def test_equal_requests_get_the_one_purchase_that_has_room(what: str, who: str, served: Served) -> None:
    room, kind = ROOMS[what], what.partition(" ")[0]
    async with served(**room.settings) as servers:
        first = servers[0]
        source, to = await first.account(room.funds), await first.account()
        keys = await keys_of(first, source, who)
        if room.policy:
            await first.policy(source, **room.policy)
        for number in range(room.waiting):
            body = {"from": source.account_id, "to": to.account_id, "amount": "0.6"}
            waits = {**body, "idempotency_key": f"waits {number}"}
            assert (await first.request("POST", "/v1/transfers", waits, keys[0])).status in (200, 202)

        path, name, body = await wanted(first, kind, source, to)
        answers = await asked_at_once(servers, keys[:1] if room.waiting else keys, path, body)

        assert {answer.error for answer in answers} == {None}
        assert len({answer.body[name] for answer in answers}) == 1


async def wanted(world: World, kind: str, source: Party, to: Party) -> tuple[str, str, dict[str, Any]]:
    """Return what to ask for 1 USDC: the path, the name of what identifies the purchase, and the body."""
    if kind == "transfer":
        body = {"from": source.account_id, "to": to.account_id, "amount": "1"}
        return "/v1/transfers", "transfer_id", {**body, "idempotency_key": "key"}
    body = {"account_id": source.account_id, "idempotency_key": "key"}
    if kind == "session":
        return "/ext/v1/sessions", "session_id", {**body, "to": to.account_id, "cap_usdc": "1"}
    body["origin"] = ORIGIN
    if kind == "payment":
        return (
            "/ext/v1/payments",
            "transfer_id",
            {**body, **(await seller_in(world, Seller)).ask(amount=AMOUNT)},
        )
    challenge = await asked(await seller_in(world, SessionSeller))
    return "/ext/v1/payments", "session_id", {**body, **challenge, "session_cap": "1"}


async def seller_in(world: World, kind: type[Any]) -> Any:
    loop = asyncio.get_running_loop()
    seller = kind(
        world.chain,
        world.runtime.context.signer,
        lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(),
    )
    await seller._open()
    return seller


async def asked(seller: SessionSeller) -> dict[str, Any]:
    return await asyncio.to_thread(seller.ask_session, 10_000)


@pytest.mark.parametrize("served", [one, both], ids=["file", "postgres"])
@pytest.mark.parametrize("who", ["agent", "operator"])
@pytest.mark.parametrize("cap", ["0.02", "1"], ids=["to the cap", "within the cap"])
async def test_equal_requests_within_a_session_get_one_voucher(cap: str, who: str, served: Served) -> None:
    async with served() as servers:
        first, path = servers[0], "/ext/v1/payments"
        source = await first.account("10")
        keys = await keys_of(first, source, who)
        seller = await seller_in(first, SessionSeller)
        body = {"account_id": source.account_id, "origin": ORIGIN, "session_cap": cap, **await asked(seller)}
        opening = await first.request("POST", path, {**body, "idempotency_key": "one"}, keys[0])
        assert opening.status == 201, opening
        await asyncio.to_thread(seller.accept_opening, opening.body["header"])
        voucher = await first.request("POST", path, {**body, "idempotency_key": "one"}, keys[0])
        charge_id = voucher.body["charge_id"]
        reported = await first.request("POST", f"{path}/{charge_id}/outcome", {"status_code": 200}, keys[0])
        assert reported.status == 200, reported

        again = {**body, **await asked(seller), "idempotency_key": "two"}
        answers = await asked_at_once(servers, keys, path, again)

        assert {answer.error for answer in answers} == {None}
        assert {answer.body["running_total_usdc"] for answer in answers} == {"0.020000"}
        assert len({answer.body["charge_id"] for answer in answers} - {charge_id}) == 1
