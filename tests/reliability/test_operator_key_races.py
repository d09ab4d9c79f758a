"""Revocations at once never leave an operator without a key (interface K8, K9)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import worlds
from two_servers import both
from worlds import Answer, World

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

PATH = "/ext/v1/console/operator-keys"


async def revoke_all_at_once(*servers: World) -> None:
    """Make keys until there are four; have each revoke itself, and all others, at once: one is left."""
    first = servers[0]
    keys: list[dict[str, str]] = []
    while len(keys) < 4:
        keys.append((await first.request("POST", PATH, {"name": "raced"})).body)
    own = await only_key(first, {key["key_id"] for key in keys})
    bearer = {key["key_id"]: {"Authorization": f"Bearer {key['key']}"} for key in keys}

    async def revoke(number: int, revoked: str, by: str) -> Answer:
        return await servers[number % len(servers)].request("DELETE", f"{PATH}/{revoked}", headers=bearer[by])

    ids = [*bearer]
    pairs = [(revoked, by) for revoked in [*ids, own] for by in ids]
    answers = await asyncio.gather(*(revoke(number, *pair) for number, pair in enumerate(pairs)))
    left = [row for row in await first.rows("api_keys", revoked_us=None) if row["account_id"] is None]
    assert len(left) >= 1
    counted = Counter(answer.status for answer in answers)
    assert counted[204] == len(keys) + 1 - len(left)
    assert set(counted) <= {204, 401, 404, 409}
    # The remaining operator can continue.
    survivor = left[0]["key_id"]
    headers = bearer.get(survivor)
    for server in servers:
        if headers is not None:
            server.http.headers.update(headers)
        assert (await server.request("GET", PATH)).status == 200


async def only_key(world: World, others: set[str]) -> str:
    (own,) = (
        row["key_id"]
        for row in await world.rows("api_keys", revoked_us=None)
        if row["account_id"] is None and row["key_id"] not in others
    )
    return str(own)


async def revoke_the_last_two_at_once(*servers: World) -> None:
    """Have the last two keys of an operator revoke each other at once, again and again."""
    for _ in range(10):
        mine = str(servers[0].http.headers["Authorization"])
        new = (await servers[0].request("POST", PATH, {"name": "raced"})).body
        own = await only_key(servers[0], {new["key_id"]})
        theirs = f"Bearer {new['key']}"
        answers = await asyncio.gather(
            servers[0].request("DELETE", f"{PATH}/{own}", headers={"Authorization": theirs}),
            servers[-1].request("DELETE", f"{PATH}/{new['key_id']}", headers={"Authorization": mine}),
        )
        # The other finds itself the last one, or revoked.
        assert sorted(answer.status for answer in answers) in ([204, 401], [204, 409])
        left = await only_key(servers[0], set())
        for server in servers:
            server.http.headers["Authorization"] = mine if left == own else theirs
            assert (await server.request("GET", PATH)).status == 200


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("store", ["file", "postgres"])
async def test_concurrent_revocations_of_the_last_two_keys_leave_one(store: str, seed: int) -> None:
    async with worlds.world(store=store, interrupted=seed) as world:
        await revoke_the_last_two_at_once(world)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("store", ["file", "postgres"])
async def test_concurrent_revocations_of_all_keys_leave_one(store: str, seed: int) -> None:
    async with worlds.world(store=store, interrupted=seed) as world:
        await revoke_all_at_once(world)


class TestTwoServers:
    """Two servers on one PostgreSQL, each with separate connections."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """A loop whose time is real: both wait for PostgreSQL."""
        return "asyncio"

    @pytest.fixture
    async def servers(self) -> AsyncIterator[tuple[World, World]]:
        async with both() as servers:
            yield servers

    async def test_concurrent_revocations_of_the_last_two_keys_leave_one(
        self, servers: tuple[World, World]
    ) -> None:
        await revoke_the_last_two_at_once(*servers)

    async def test_concurrent_revocations_of_all_keys_leave_one(self, servers: tuple[World, World]) -> None:
        await revoke_all_at_once(*servers)
