"""The RPC chain on a real validator: landed, failed, unknown and expired transactions."""

import asyncio

import pytest
import rpc_world
from rpc_world import USDC, RpcWorld
from surfpool import Surfpool

from agentpay_server.chain import transactions
from agentpay_server.chain.custody import Custody
from agentpay_server.chain.protocol import Blockhash, ChainUnreachableError, FailureReason, SignedTransaction

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


async def reason_of(world: RpcWorld, signed: SignedTransaction) -> FailureReason:
    status = await world.send(signed)
    assert status.failure is not None
    assert status.failure.detail
    return status.failure.reason


# --- Landing


async def test_a_resent_transaction_lands_once(world: RpcWorld) -> None:
    recipient = await world.account(2)
    await world.account(1, 10)
    signed = await world.transfer(1, recipient, 4)
    await asyncio.gather(*(world.chain.send(signed.raw) for _ in range(5)))
    await world.end(signed)
    await world.land(signed)
    assert await world.balance(recipient) == 4


async def test_a_transaction_has_no_status_while_no_blocks_are_produced(
    world: RpcWorld,
) -> None:
    recipient = await world.account(2)
    await world.account(1, 10)
    signed = await world.transfer(1, recipient, 4)
    with world.surfpool.blocks_paused():
        await world.chain.send(signed.raw)
        assert await world.chain.signature_status(signed.signature) is None
        assert await world.chain.block_height() <= signed.last_valid_block_height
    assert (await world.end(signed)).failure is None
    assert await world.balance(recipient) == 4


async def test_with_finality_finalized_only_irreversible_transactions_are_final(surfpool: Surfpool) -> None:
    async with rpc_world.world(surfpool, finality="finalized") as world:
        signed = await world.provision(1)
        await world.chain.send(signed.raw)
        seen = []
        while not seen or not seen[-1].is_final:
            status = await world.chain.signature_status(signed.signature)
            seen += [status] if status else []
            await asyncio.sleep(0.02)
        assert len(seen) > 1
        assert all(status.is_final == status.is_irreversible for status in seen)


# --- Failing


async def test_a_transfer_above_the_balance_fails_with_insufficient_funds(world: RpcWorld) -> None:
    source, recipient = await world.account(1, 10), await world.account(2)
    signed = await world.transfer(1, recipient, 11)
    assert await reason_of(world, signed) is FailureReason.INSUFFICIENT_FUNDS
    assert (await world.balance(source), await world.balance(recipient)) == (10, 0)


async def test_a_recipient_without_a_token_account_is_account_missing(world: RpcWorld) -> None:
    await world.account(1, 10)
    await world.account(2)
    await world.close_account(2)
    for n, recipient in enumerate((world.token_address(2), world.token_address(3), world.owner(2), USDC)):
        signed = await world.transfer(1, recipient, 1, memo=f"txn_{n}")
        assert await reason_of(world, signed) is FailureReason.ACCOUNT_MISSING


async def test_a_process_that_did_not_send_reads_the_failure_reason(world: RpcWorld) -> None:
    recipient = await world.account(2)
    await world.account(1, 10)
    signed = await world.transfer(1, recipient, 11)
    await world.send(signed)
    async with rpc_world.world(world.surfpool) as other:
        status = await other.end(signed)
    assert status.failure is not None
    assert status.failure.reason is FailureReason.INSUFFICIENT_FUNDS


async def test_a_send_with_a_fee_payer_without_sol_is_unavailable_and_unsent(world: RpcWorld) -> None:
    poor = Custody(bytes(range(64)))
    signed = transactions.create_token_account(
        poor, await world.chain.latest_blockhash(), usdc_mint=USDC, owner=world.owner(1)
    )
    with pytest.raises(ChainUnreachableError):
        await world.chain.send(signed.raw)
    assert await world.chain.signature_status(signed.signature) is None


# --- Expiring


async def test_an_unknown_blockhash_is_not_an_outcome(world: RpcWorld) -> None:
    await world.account(1, 10)
    signed = transactions.create_token_account(
        world.custody,
        Blockhash(value=USDC, last_valid_block_height=2**40),
        usdc_mint=USDC,
        owner=world.owner(1),
    )
    with pytest.raises(ChainUnreachableError, match="Blockhash not found"):
        await world.chain.send(signed.raw)
    assert await world.chain.signature_status(signed.signature) is None
