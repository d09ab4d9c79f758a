"""Sessions behind a faulty network, at every call: one escrow, paid out once, and its end known (P8, P10)."""

import asyncio
from typing import Any

import outsiders
import pytest
import rpc_service
from outsiders import Wallet
from rpc_proxy import Act, RpcProxy
from rpc_service import Party, Service
from rpc_trouble import FAULTS, TRANSFER_CALLS, arm, combinations
from surfpool import Surfpool

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured, pytest.mark.plugin("cluster")]


@pytest.fixture
def anyio_backend() -> str:
    """Real sockets need real time."""
    return "asyncio"


async def until_settled(service: Service, session_id: str) -> dict[str, Any]:
    """Close until the session is settled."""
    found: dict[str, Any] = {}

    async def is_settled() -> bool:
        found.update(await service.until_answered(f"/ext/v1/sessions/{session_id}/close", {}))
        return found["status"] == "settled"

    await rpc_service.eventually(is_settled)
    return found


async def assert_whole_session(
    service: Service,
    proxy: RpcProxy,
    *,
    opening: tuple[str, Act] | None = None,
    closing: tuple[str, Act] | None = None,
) -> None:
    """Open a session of 10, charge 4 and close it, with a fault on the way, and judge."""
    payer, payee = await service.account("100"), await service.account()
    terms = {"account_id": payer.account_id, "to": payee.account_id, "cap_usdc": "10"}
    if opening is not None:
        arm(proxy, *opening)
    session = await service.until_answered("/ext/v1/sessions", {**terms, "idempotency_key": "open"})
    session_id = session["session_id"]
    proxy.clear()
    charge = {"amount": "4", "idempotency_key": "charge"}
    await service.until_answered(f"/ext/v1/sessions/{session_id}/charges", charge)
    if closing is not None:
        arm(proxy, *closing)
    settled = await until_settled(service, session_id)
    assert (settled["settled_usdc"], settled["returned_usdc"]) == ("4.000000", "6.000000")

    async def is_paid_out() -> bool:
        return await shows(service, payer) == "96.000000" and await shows(service, payee) == "4.000000"

    await rpc_service.eventually(is_paid_out)
    listed = await service.until_read(f"/ext/v1/sessions?account_id={payer.account_id}")
    assert [each["session_id"] for each in listed["data"]] == [session_id]
    (escrow,) = await service.runtime.context.chain.token_accounts([session["escrow_token_account"]])
    assert escrow is None


async def shows(service: Service, party: Party) -> str:
    told = await service.until_read(f"/v1/accounts/{party.account_id}/balance")
    return str(told["balance_usdc"])


@pytest.mark.parametrize("step", ["opening", "closing"])
@pytest.mark.parametrize(("call", "fault"), combinations(TRANSFER_CALLS))
async def test_one_fault_at_any_call_of_a_session_funds_one_escrow_and_pays_once(
    service: Service, proxy: RpcProxy, call: str, fault: str, step: str
) -> None:
    before = proxy.requests[call]
    await assert_whole_session(service, proxy, **{step: (call, FAULTS[fault])})
    assert proxy.requests[call] > before


@pytest.mark.validator
@pytest.mark.parametrize("fees", [{}, {"priority_fee_micro_lamports": 1_000}], ids=["no fee", "priority fee"])
async def test_a_settlement_recreates_a_closed_payee_token_account_and_pays(
    surfpool: Surfpool, fees: dict[str, Any]
) -> None:
    async with rpc_service.serving(surfpool, **fees) as service:
        chain = service.runtime.context.chain
        wallet = Wallet(chain, service.runtime.context.signer, 1 + len(fees))
        assert await outsiders.landed(chain, await wallet.open(0))
        payer = await service.account("100")
        terms = {"account_id": payer.account_id, "to": wallet.token_account, "cap_usdc": "10"}
        session = await service.until_answered("/ext/v1/sessions", {**terms, "idempotency_key": "open"})
        charge = {"amount": "4", "idempotency_key": "charge"}
        await service.until_answered(f"/ext/v1/sessions/{session['session_id']}/charges", charge)
        assert await outsiders.landed(chain, await wallet.close())
        closed = await until_settled(service, session["session_id"])
        assert (closed["settled_usdc"], closed["closing_reason"]) == ("4.000000", None)
        (paid,) = await chain.token_accounts([wallet.token_account])
        assert paid is not None
        assert (paid.owner, paid.amount_micro) == (wallet.address, 4_000_000)
        assert await service.held(payer) == 96_000_000


@pytest.mark.validator
async def test_a_session_opened_and_closed_while_blocks_are_paused_settles_when_they_resume(
    surfpool: Surfpool, service: Service, proxy: RpcProxy
) -> None:
    payer, payee = await service.account("100"), await service.account()
    terms = {"account_id": payer.account_id, "to": payee.account_id, "cap_usdc": "10"}

    async def during_pause(path: str, body: dict[str, Any]) -> dict[str, Any]:
        with surfpool.blocks_paused():
            before = proxy.forwarded["sendTransaction"]
            asked = asyncio.create_task(service.until_answered(path, body))

            async def is_sent() -> bool:
                return proxy.forwarded["sendTransaction"] > before

            await rpc_service.eventually(is_sent)
            await asyncio.sleep(0.3)
            assert not asked.done()
        return await asked

    session = await during_pause("/ext/v1/sessions", {**terms, "idempotency_key": "open"})
    assert session["status"] == "open"
    closed = await during_pause(f"/ext/v1/sessions/{session['session_id']}/close", {})
    assert (closed["status"], closed["returned_usdc"]) == ("settled", "10.000000")
    assert await service.held(payer) == 100_000_000
