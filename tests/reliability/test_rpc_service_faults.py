"""The whole service behind a faulty network, at every call: never twice, never lost, and known (P8)."""

import asyncio
from contextlib import suppress
from typing import Any

import httpx
import pytest
import rpc_proxy
import rpc_service
from attrs import fields
from rpc_proxy import RpcProxy
from rpc_service import Party, Service
from rpc_trouble import ACCOUNT_CALLS, FAULTS, TRANSFER_CALLS, arm, combinations
from surfpool import Surfpool

from agentpay_server import RpcSettings, Settings
from agentpay_server.chain.protocol import ChainUnreachableError

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured, pytest.mark.plugin("cluster")]


@pytest.fixture
def anyio_backend() -> str:
    """Real sockets need real time."""
    return "asyncio"


async def settled(service: Service, source: Party, to: Party, seen: list[httpx.Response]) -> dict[str, Any]:
    """Send one key until its outcome is known."""
    async with asyncio.timeout(rpc_service.PATIENCE_SECONDS):
        while True:
            answer = await service.transfer("key", source, to, "7")
            seen.append(answer)
            if answer.status_code != 503:
                assert answer.status_code == 200, answer.text
                return dict(answer.json())
            assert answer.headers["retry-after"].isdecimal()
            await asyncio.sleep(0.05)


async def assert_moved_once(
    service: Service, source: Party, to: Party, told: dict[str, Any], seen: list[httpx.Response]
) -> None:
    names = {answer.json().get("transfer_id") for answer in seen}
    assert names <= {None, told["transfer_id"]}
    await rpc_service.eventually(lambda: shows(service, source, 93_000_000))
    assert await service.held(to) == 7_000_000
    (transfer,) = await service.rows("transfers")
    assert (transfer["status"], transfer["transfer_id"]) == ("settled", told["transfer_id"])
    answer = await service.http.get(f"/ext/v1/console/accounts/{source.account_id}")
    assert (answer.json()["spent_usdc"], answer.json()["reserved_usdc"]) == ("7.000000", "0.000000")


async def shows(service: Service, party: Party, amount_micro: int) -> bool:
    answer = await service.http.get(f"/v1/accounts/{party.account_id}/balance")
    return answer.status_code == 200 and await service.held(party) == amount_micro


@pytest.mark.parametrize(("call", "fault"), combinations(TRANSFER_CALLS))
async def test_one_fault_at_any_call_of_a_transfer_moves_the_money_once(
    service: Service, proxy: RpcProxy, call: str, fault: str
) -> None:
    source, to = await service.account("100"), await service.account()
    before = proxy.requests[call]
    arm(proxy, call, FAULTS[fault])
    seen: list[httpx.Response] = []
    told = await settled(service, source, to, seen)
    if call == "getEpochInfo":
        # A height is used again for as long as a block takes, and a transfer may need no newer one.
        await rpc_service.eventually(lambda: is_height_asked_for(service, proxy, before))
    assert proxy.requests[call] > before
    await assert_moved_once(service, source, to, told, seen)


async def is_height_asked_for(service: Service, proxy: RpcProxy, before: int) -> bool:
    with suppress(ChainUnreachableError):
        await service.runtime.context.chain.block_height()
    return proxy.requests["getEpochInfo"] > before


@pytest.mark.parametrize(("call", "fault"), combinations(ACCOUNT_CALLS))
async def test_one_fault_at_any_call_of_an_account_creation_leaves_one_account_or_none(
    service: Service, proxy: RpcProxy, call: str, fault: str
) -> None:
    arm(proxy, call, FAULTS[fault])
    answer = await service.http.post("/v1/accounts", json={"name": "a"})
    proxy.clear()
    listed = await service.until_read("/v1/accounts")
    if answer.status_code == 201:
        assert [account["account_id"] for account in listed["data"]] == [answer.json()["account_id"]]
        assert (await service.until_read(f"/v1/accounts/{answer.json()['account_id']}/balance"))[
            "balance_usdc"
        ] == "0.000000"
    else:
        assert (answer.status_code, answer.json()["error"]) == (503, "chain_unavailable")
        assert listed["data"] == []
        await service.account("1")


@pytest.mark.validator
async def test_any_two_network_faults_move_the_money_once(service: Service, proxy: RpcProxy) -> None:
    sends = ("request lost", "reply lost", "delivered twice", "crashed", "unhealthy")
    for first in sends:
        for second in ("reply lost", "silent", "garbled"):
            source, to = await service.account("10"), await service.account()
            proxy.next("sendTransaction", FAULTS[first], FAULTS[second])
            proxy.next("getSignatureStatuses", FAULTS[second], FAULTS["reply lost"])
            async with asyncio.timeout(rpc_service.PATIENCE_SECONDS):
                answer = await service.transfer(to.account_id, source, to, "7")
                while answer.status_code == 503:
                    await asyncio.sleep(0.05)
                    answer = await service.transfer(to.account_id, source, to, "7")
            proxy.clear()
            await rpc_service.eventually(lambda source=source: shows(service, source, 3_000_000))
            assert await service.held(to) == 7_000_000


@pytest.mark.validator
async def test_an_expired_transfer_is_signed_again_and_pays_once(service: Service, proxy: RpcProxy) -> None:
    source, to = await service.account("100"), await service.account()
    proxy.always("sendTransaction", rpc_proxy.request_lost)
    asked = asyncio.create_task(settled(service, source, to, seen := []))
    first = await signature_of_the_transfer(service)
    await rpc_service.eventually(lambda: is_signed_again(service, first))
    proxy.clear()
    told = await asked
    assert told["tx_signature"] != first
    await assert_moved_once(service, source, to, told, seen)


async def is_signed_again(service: Service, first: str) -> bool:
    return await signature_of_the_transfer(service) != first


async def signature_of_the_transfer(service: Service) -> str:
    """Return the signature of the only transfer, once it is signed."""
    found: list[str] = []

    async def is_signed() -> bool:
        found[:] = [transfer["tx_signature"] for transfer in await service.rows("transfers")]
        return bool(found)

    await rpc_service.eventually(is_signed)
    return found[0]


@pytest.mark.validator
@pytest.mark.parametrize("call", ["getSignatureStatuses", "getEpochInfo", "both"])
async def test_a_lagging_node_delays_a_transfer_that_still_pays_once(
    service: Service, proxy: RpcProxy, call: str
) -> None:
    source, to = await service.account("100"), await service.account()
    acts = {"getSignatureStatuses": rpc_proxy.unknown, "getEpochInfo": rpc_proxy.lagging(100)}
    for name in acts if call == "both" else [call]:
        proxy.always(name, acts[name])
    proxy.next("sendTransaction", rpc_proxy.reply_lost)
    asked = asyncio.create_task(settled(service, source, to, seen := []))
    signature = await signature_of_the_transfer(service)
    await asyncio.sleep(1)
    # It has landed long ago; a lagging node cannot cause another signature.
    assert await signature_of_the_transfer(service) == signature
    proxy.clear()
    told = await asked
    assert told["tx_signature"] == signature
    await assert_moved_once(service, source, to, told, seen)


@pytest.mark.validator
async def test_a_transfer_is_submitted_while_blocks_are_paused_and_lands_when_they_resume(
    surfpool: Surfpool, proxy: RpcProxy
) -> None:
    async with rpc_service.serving(
        surfpool, url=proxy.url, websocket_url=None, settings=Settings(settlement_wait_seconds=1)
    ) as service:
        source, to = await service.account("100"), await service.account()
        with surfpool.blocks_paused():
            seen = [await service.transfer("key", source, to, "7") for _ in range(2)]
            assert [answer.status_code for answer in seen] == [503, 503]
            assert [answer.json()["status"] for answer in seen] == ["submitted", "submitted"]
            shown = await service.until_read(f"/v1/transfers/{seen[0].json()['transfer_id']}")
            assert shown["status"] == "submitted"
        told = await settled(service, source, to, seen)
        assert told["tx_signature"] == shown["tx_signature"]
        await assert_moved_once(service, source, to, told, seen)


# --- How many calls it takes, with scans for deposits as seldom as by default
_SCANS = {"deposit_interval_seconds": fields(RpcSettings).deposit_interval_seconds.default}


async def test_a_single_transfer_takes_at_most_five_rpc_calls(surfpool: Surfpool, proxy: RpcProxy) -> None:
    async with rpc_service.serving(surfpool, url=proxy.url, **_SCANS) as service:
        source, to = await service.account("100"), await service.account()
        before = proxy.requests.total()
        for number in range(20):
            assert (await service.transfer(f"{number}", source, to, "1")).status_code == 200
        assert (proxy.requests.total() - before) / 20 <= 5


async def test_64_concurrent_transfers_take_at_most_three_rpc_calls_each(
    surfpool: Surfpool, proxy: RpcProxy
) -> None:
    async with rpc_service.serving(surfpool, url=proxy.url, **_SCANS) as service:
        source, to = await service.account("100"), await service.account()
        before = proxy.requests.total()
        answers = await asyncio.gather(
            *(service.transfer(f"{number}", source, to, "1") for number in range(64))
        )
        assert {answer.status_code for answer in answers} == {200}
        assert (proxy.requests.total() - before) / 64 <= 3
