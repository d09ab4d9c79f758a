"""Two `agentpay-server serve` on one PostgreSQL and one validator: what one begins, the other knows and ends.

Nothing tells them of each other but the database (P4, P5, P9). They are started at the same moment, on a
database without tables.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import json_rpc_server
import pytest
import rpc_processes
import rpc_service
import stores
from rpc_processes import Server
from surfpool import Surfpool

pytestmark = [pytest.mark.anyio, pytest.mark.validator, pytest.mark.unmeasured, pytest.mark.plugin("cluster")]

CALLS = 60


@pytest.fixture
def anyio_backend() -> str:
    """Processes take real time."""
    return "asyncio"


def order(source: dict[str, Any], to: dict[str, Any], key: str, amount: str = "1") -> dict[str, str]:
    """Return the body of a transfer."""
    parties = {"from": source["account_id"], "to": to["account_id"]}
    return {**parties, "amount": amount, "idempotency_key": key}


@pytest.fixture
async def database_url() -> str:
    return await stores.bare_url()


@pytest.fixture
async def servers(surfpool: Surfpool, database_url: str) -> AsyncIterator[tuple[Server, Server]]:
    async with AsyncExitStack() as opened:
        entering = [
            opened.enter_async_context(rpc_processes.started(surfpool, database_url)) for _ in range(2)
        ]
        first, second = await asyncio.gather(*entering)
        yield first, second


async def at_once(
    servers: tuple[Server, Server], source: dict[str, Any], to: dict[str, Any], key: str
) -> list[httpx.Response]:
    """Send transfers of 1 USDC, every second one to the other server."""
    calls = (
        servers[number % 2].post("/v1/transfers", order(source, to, key.format(number)))
        for number in range(CALLS)
    )
    return await asyncio.gather(*calls)


async def test_one_key_sent_to_both_servers_pays_once_and_a_limit_holds_for_both(
    servers: tuple[Server, Server],
) -> None:
    first, second = servers
    source, to = await asyncio.gather(first.account("100"), second.account())
    answers = await at_once(servers, source, to, "one")
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert await second.balance(to) == "1.000000"

    policy = await first.http.put(
        f"/v1/accounts/{source['account_id']}/policy", json={"max_daily_spend": 20.999999}
    )
    assert policy.is_success
    answers = await at_once(servers, source, to, "key-{}")
    told = Counter((answer.status_code, answer.json().get("error")) for answer in answers)
    assert told == {(200, None): 19, (402, "policy_violation"): CALLS - 19}
    assert await first.balance(to) == "20.000000"
    settled = {answer.json()["tx_signature"] for answer in answers if answer.status_code == 200}
    assert len(settled) == 19


async def test_two_running_servers_deliver_each_event_once(servers: tuple[Server, Server]) -> None:
    first, second = servers
    source, to = await asyncio.gather(first.account("100"), second.account())
    received: Counter[str] = Counter()
    types: dict[str, str] = {}

    async def receive(body: bytes) -> json_rpc_server.Answer:
        event = json.loads(body)
        received[event["id"]] += 1
        types[event["id"]] = event["type"]
        # Slow enough for the other to see the transfers in flight here.
        await asyncio.sleep(0.05)
        return json_rpc_server.ok(b"{}")

    async with json_rpc_server.serving(receive) as url:
        events = ["transfer.initiated", "transfer.settled", "transfer.rejected"]
        registered = await first.post("/v1/webhooks", {"url": url, "events": events})
        assert registered.status_code == 201, registered.text
        answers = await at_once(servers, source, to, "key-{}")
        assert {answer.status_code for answer in answers} == {200}
        refused = await second.post("/v1/transfers", order(source, to, "too much", "1000"))
        assert refused.status_code == 402

        async def are_all_delivered() -> bool:
            answer = await second.http.get("/ext/v1/console/deliveries?status=delivered&limit=100")
            more = await first.http.get("/ext/v1/console/deliveries?status=pending")
            return len(received) == 2 * CALLS + 1 and bool(answer.json()["data"]) and not more.json()["data"]

        await rpc_service.eventually(are_all_delivered)
        # Another server would post again at its next check.
        await asyncio.sleep(2)
    assert set(received.values()) == {1}
    assert Counter(types.values()) == {
        "transfer.initiated": CALLS,
        "transfer.settled": CALLS,
        "transfer.rejected": 1,
    }


async def test_transfers_of_a_killed_server_are_completed_by_the_other(
    surfpool: Surfpool, servers: tuple[Server, Server], database_url: str
) -> None:
    dying, other = servers
    source, to = await asyncio.gather(dying.account("100"), dying.account())
    with surfpool.blocks_paused():
        asked = [
            asyncio.create_task(dying.post("/v1/transfers", order(source, to, key, "7")))
            for key in ("asked again", "not retried")
        ]
        await rpc_service.eventually(lambda: are_submitted(database_url, 2))
        dying.process.kill()
        await dying.process.wait()
        await asyncio.gather(*asked, return_exceptions=True)
    again = await other.post("/v1/transfers", order(source, to, "asked again", "7"))
    assert (again.status_code, again.json()["status"]) == (200, "settled")
    # The other one is free once its lease has expired.
    await rpc_service.eventually(lambda: are_submitted(database_url, 0))
    assert await other.balance(to) == "14.000000"
    assert await other.balance(source) == "86.000000"
    history = (await other.http.get(f"/v1/accounts/{to['account_id']}/transactions")).json()["data"]
    assert len({entry["tx_signature"] for entry in history}) == len(history) == 2


async def are_submitted(database_url: str, count: int) -> bool:
    """Return whether so many transfers are in flight."""
    connection = await stores.connect(database_url)
    try:
        found = await connection.fetchval("SELECT count(*) FROM transfers WHERE status = 'submitted'")
    finally:
        await connection.close()
    return bool(found == count)
