"""Revocation against units of work in progress, on one server and on two (security rule 04)."""

import asyncio

import another
import pytest
import stores
import worlds
from sqlalchemy.util import await_only
from two_servers import started
from worlds import World

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """A loop whose time is real: PostgreSQL responds in it."""
    return "asyncio"


async def key_of(world: World, headers: dict[str, str]) -> str:
    """Return the identifier of a key."""
    return str((await world.request("GET", "/ext/v1/whoami", headers=headers)).body["key_id"])


async def test_a_duplicate_does_not_end_with_the_key_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async with worlds.world(store="memory") as world:
        source, to = await world.account("5"), await world.account()
        made = (await world.request("POST", "/ext/v1/console/operator-keys", {"name": "dying"})).body
        dying = {"Authorization": f"Bearer {made['key']}"}
        body = {"from": source.account_id, "to": to.account_id, "amount": "1", "idempotency_key": "key"}
        begun, may_continue = another.pause_decisions(monkeypatch)
        first = asyncio.ensure_future(world.request("POST", "/v1/transfers", body, dying))
        await begun.wait()
        second = asyncio.ensure_future(world.request("POST", "/v1/transfers", body))
        revoked = await world.request("DELETE", f"/ext/v1/console/operator-keys/{made['key_id']}")
        assert revoked.status == 204
        may_continue.set()
        assert ((await first).status, (await second).status) == (401, 200)
        assert world.balance(to) == 1_000_000


async def test_a_revocation_waits_for_running_units_but_no_later_one_delays_it() -> None:
    url = await stores.fresh_url()
    first = await started(url, None, None)
    second = await started(url, first.chain, first.runtime.operator.key)
    source, to = await first.account("5"), await first.account()
    agent = await first.agent_of(source)
    key_id = await key_of(first, agent)
    begun, may_commit = asyncio.Event(), asyncio.Event()

    def wait() -> None:
        begun.set()
        await_only(may_commit.wait())

    running = asyncio.ensure_future(another.audited(first, key_id, source.account_id, wait))
    await begun.wait()
    revoking = asyncio.ensure_future(second.request("DELETE", f"/ext/v1/console/agent-keys/{key_id}"))
    while not [row for row in await first.rows("api_keys", key_id=key_id) if row["revoked_us"]]:
        assert not revoking.done()

    body = {"from": source.account_id, "to": to.account_id, "amount": "1", "idempotency_key": "key"}
    for world in (first, second) * 5:
        assert (await world.request("POST", "/v1/transfers", body, agent)).status == 401
    assert not revoking.done(), "a unit that found the key alive is not committed yet"
    may_commit.set()
    await running
    assert (await revoking).status == 204
    assert len(await first.rows("audit", subject="running")) == 1

    await second.stop()
    await first.stop()
    stores.run.free.append(url)
