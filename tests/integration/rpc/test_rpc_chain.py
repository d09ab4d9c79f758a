"""The RPC chain on a real validator: landed, failed, unknown and expired transactions."""

import asyncio
import time

import pytest
import rpc_world
from rpc_world import USDC, RpcWorld
from solders.keypair import Keypair
from surfpool import Surfpool

from agentpay_server import RpcSettings
from agentpay_server.chain import instructions, transactions
from agentpay_server.chain.custody import POLICY_AUTHORITY, TREASURY, Custody, record_key
from agentpay_server.chain.protocol import Blockhash, ChainUnreachableError, FailureReason, SignedTransaction
from agentpay_server.chain.transactions import MAX_MEMO_BYTES, PolicyRecord

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


async def test_a_notice_of_the_websocket_ends_the_wait_early(surfpool: Surfpool) -> None:
    async with rpc_world.world(surfpool, websocket_url=surfpool.websocket_url) as world:
        await world.chain.wait_for_notice("", 2)  # Time to connect.
        signed = await world.provision(1)
        await world.chain.send(signed.raw)
        started = time.monotonic()
        await world.chain.wait_for_notice(signed.signature, 300)
        assert time.monotonic() - started < 150


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


# --- Reading


async def test_only_usdc_token_accounts_are_token_accounts(world: RpcWorld) -> None:
    address = await world.account(1, 25)
    other_mint = str(Keypair().pubkey())
    rpc_world.put_mint(world.surfpool, world.custody.address(TREASURY), address=other_mint)
    await world.land(
        transactions.create_token_account(
            world.custody, await world.chain.latest_blockhash(), usdc_mint=other_mint, owner=world.owner(1)
        )
    )
    foreign = instructions.associated_token_address(world.owner(1), other_mint)
    asked = [address, foreign, world.owner(1), world.token_address(9), USDC, "no address", address]
    found = await world.chain.token_accounts(asked)
    assert found[1:6] == [None] * 5
    assert found[0] == found[6]
    assert found[0] is not None
    assert (found[0].address, found[0].owner, found[0].amount_micro) == (address, world.owner(1), 25)
    assert not found[0].is_frozen
    await world.freeze(address)
    (frozen,) = await world.chain.token_accounts([address])
    assert frozen is not None
    assert frozen.is_frozen


async def test_account_sizes_and_rents_are_returned(world: RpcWorld) -> None:
    address = await world.account(1)
    assert await world.chain.account_size(address) == (await world.chain.rent_exemption(165), 165)
    assert await world.chain.account_size(world.owner(1)) == (await world.chain.rent_exemption(0), 0)
    assert await world.chain.account_size(world.owner(2)) is None
    assert await world.chain.account_size("no address") is None


# --- Priority fees


async def test_a_priority_fee_is_paid_and_the_limit_suffices_for_every_kind_of_transaction(
    surfpool: Surfpool,
) -> None:
    async with rpc_world.world(surfpool, priority_fee_micro_lamports=10_000) as world:
        chain, custody = world.chain, world.custody
        rpc_world.put_lamports(surfpool, custody.address(POLICY_AUTHORITY), 10**9)
        half_limit = RpcSettings(url=surfpool.url).compute_unit_limit // 2

        async def lands_within_half_the_limit(signed: SignedTransaction) -> None:
            units = await chain.simulate(signed.raw)
            assert units is not None
            assert 0 < units < half_limit
            await world.land(signed)

        for index in (1, 2):
            await lands_within_half_the_limit(await world.provision(index))
        await world.mint(world.token_address(1), 10)
        before = await chain.account_size(custody.address(TREASURY))
        await lands_within_half_the_limit(
            await world.transfer(1, world.token_address(2), 1, memo="é" * (MAX_MEMO_BYTES // 2))
        )
        after = await chain.account_size(custody.address(TREASURY))
        assert before is not None
        assert after is not None
        assert before[0] - after[0] > 10_000  # Two signatures.
        record = PolicyRecord(
            account_id="acct_" + "0" * 26, policy_version=1, policy_sha256="0" * 64, policy="p" * 700
        )
        for version in (1, 2):
            address = custody.address(record_key(1))
            await lands_within_half_the_limit(
                transactions.write_policy_record(
                    custody,
                    await chain.latest_blockhash(),
                    account_index=1,
                    record=PolicyRecord(
                        account_id=record.account_id,
                        policy_version=version,
                        policy_sha256=record.policy_sha256,
                        policy=record.policy,
                    ),
                    present=await chain.account_size(address),
                    rent_exempt_lamports=await chain.rent_exemption(record.size),
                )
            )
