"""A database that goes away in the middle: a 503 that says so, and the same key finds out what became."""

import asyncio

import chains
import httpx
import pytest
import stores
import two_servers
import worlds
from away import SECRET, world_on
from calls import example_of
from server_world import path_of
from worlds import START, InterruptedDatabase, Party, World

from agentpay import OutcomeUnknownError, TransferOutcomeUnknownError
from agentpay.contract.endpoints import Scope
from agentpay_server import Settings
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

pytestmark = pytest.mark.anyio

CALLS_OF_A_TRANSFER = 5
"""Of the first one of an account: later ones do not look for channels to compare."""
RECEIVER = "http://receiver.invalid/"


async def assert_paid_once(world: World, source: Party, to: Party, key: str) -> None:
    """Send the key again, and judge."""
    answer = await world.transfer(key, source, to, "7")
    assert (answer.status, answer.body["status"]) == (200, "settled"), answer
    assert [row["status"] for row in await world.rows("transfers")] == ["settled"]
    assert world.balance(to) == 7_000_000
    assert world.attempts(answer.transfer_id).count("landed") == 1
    detail = await world.detail(source)
    assert (detail["spent_usdc"], detail["reserved_usdc"]) == ("7.000000", "0.000000")
    assert await world.event_types(answer.body["transfer_id"]) == ["transfer.initiated", "transfer.settled"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, CALLS_OF_A_TRANSFER + 1))
async def test_a_transfer_interrupted_by_a_database_outage_at_any_call_pays_once(
    number: int, when: str
) -> None:
    async with world_on(START) as (world, database):
        source, to = await world.account("100"), await world.account()
        database.breaks(number, when)
        away = await world.transfer("key", source, to, "7")
        await world.rest()
        if database.is_away:
            assert away.status == 503
            assert away.headers["retry-after"] == "1"
            assert SECRET not in str(away.body)
            if away.transfer_id is None:
                assert away.error == "service_unavailable"
                assert "may or may not have been processed" in away.body["message"]
            else:
                assert (away.error, away.body["status"]) == ("chain_unavailable", "submitted")
        database.comes_back()
        await assert_paid_once(world, source, to, "key")


async def test_an_undisturbed_transfer_makes_the_expected_number_of_database_calls() -> None:
    async with world_on(START) as (world, database):
        source, to = await world.account("100"), await world.account()
        database.calls = 0
        assert (await world.transfer("key", source, to, "7")).status == 200
        # The steps of the test above, one by one.
        assert database.calls == CALLS_OF_A_TRANSFER


async def test_every_endpoint_returns_503_while_the_database_is_away() -> None:
    async with world_on(START) as (world, database):
        source = await world.account("100")
        database.is_away = True
        for endpoint in BOUND_ENDPOINTS:
            if endpoint.scope is Scope.NO_KEY:
                continue
            body = (
                None if endpoint.method == "GET" or endpoint.request is None else example_of(endpoint.request)
            )
            path = path_of(endpoint, account_id=source.account_id)
            answer = await world.request(endpoint.method, path, body)
            assert (answer.status, answer.error) == (503, "service_unavailable"), path
            assert answer.body["request_id"] == answer.headers["x-request-id"]
            assert SECRET not in str(answer.body)
        assert (await world.http.get("/healthz")).status_code == 200
        assert (await world.http.get("/readyz")).json()["not_ready"][0] == "database"


async def test_the_client_retries_a_payment_and_reports_its_key_when_retries_run_out() -> None:
    async with world_on(START) as (world, database):
        source, to = await world.account("100"), await world.account()
        client = world.sdk()
        database.is_away = True
        with pytest.raises(TransferOutcomeUnknownError) as unknown:
            await client.transfers.create(from_=source.account_id, to=to.account_id, amount=7)
        with pytest.raises(OutcomeUnknownError, match="may or may not"):
            await client.accounts.create(name="b")
        database.comes_back()
        await assert_paid_once(world, source, to, unknown.value.idempotency_key)


async def test_drivers_and_workers_continue_when_the_database_is_back() -> None:
    async with world_on() as (world, database):
        source, to = await world.account("100"), await world.account()
        # The chain has the transaction, and the database cannot be told of its end.
        world.chain.not_final(3)
        asking = asyncio.ensure_future(world.transfer("key", source, to, "7"))
        await asyncio.sleep(0.001)
        database.is_away = True
        away = await asking
        assert (away.status, away.body["status"]) == (503, "submitted")
        await world.rest()
        assert world.balance(to) == 7_000_000
        database.comes_back()
        await world.rest()
        # No request was repeated: its driver has posted it, and the workers look for due work as before.
        (transfer,) = await world.rows("transfers")
        assert (transfer["status"], transfer["transfer_id"]) == ("settled", away.transfer_id)
        assert world.runtime.services.schedule.lag_seconds() == 0
        assert (await world.http.get("/readyz")).status_code == 200
        await assert_paid_once(world, source, to, "key")


# --- Leases of others


class Shared(InterruptedDatabase):
    """A database that stays when a server that shares it is gone."""

    async def close(self) -> None:
        """Stay."""


class Hanging(httpx.AsyncBaseTransport):
    """A receiver that never responds."""

    def __init__(self) -> None:
        self.posts = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.posts += 1
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


@pytest.mark.parametrize("is_alone", [True, False])
async def test_startup_voids_leases_only_on_a_database_with_a_single_server(is_alone: bool) -> None:
    with worlds._real_time():
        inner = await stores.new_database()
    shared = Shared(inner, None)
    receiver = Hanging()

    async def started(*, is_alone: bool) -> World:
        settings = Settings(encryption_key=stores.KEY, settlement_wait_seconds=0.01)
        return await two_servers.started_on(
            shared, settings=settings, is_alone=is_alone, mounts={RECEIVER: receiver}, temporary_key=True
        )

    first = await started(is_alone=True)
    source, to = await first.account("100"), await first.account()
    webhook = {"url": RECEIVER, "events": ["transfer.rejected"]}
    assert (await first.request("POST", "/v1/webhooks", webhook)).status == 201
    assert (await first.transfer("refused", source, to, "101")).status == 402
    first.chain.next("send", chains.goes_down)
    under_way = await first.transfer("key", source, to, "7")
    assert under_way.body["status"] == "submitted"
    await asyncio.sleep(1)
    assert receiver.posts == 1

    # The first is alive, drives its transfer and waits for the receiver.
    second = await started(is_alone=is_alone)
    taken_up = set(second.runtime.services.settlement.driven)
    await asyncio.sleep(1)
    assert taken_up == ({under_way.transfer_id} if is_alone else set())
    assert receiver.posts == (2 if is_alone else 1)

    for world in (second, first):
        await world.http.aclose()
        await world.runtime.stop(within_seconds=0)
    with worlds._real_time():
        await inner.close()
