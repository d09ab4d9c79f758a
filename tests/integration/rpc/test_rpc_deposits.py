"""Deposits on a real validator: everything that came in, once, in order, and nothing else."""

import pytest
from rpc_world import USDC, RpcWorld
from solders.pubkey import Pubkey

from agentpay_server.chain import instructions, transactions
from agentpay_server.chain.custody import TREASURY
from agentpay_server.chain.protocol import Deposit
from agentpay_server.plugins.cluster import history

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


async def read(world: RpcWorld, address: str, after: str | None = None) -> tuple[list[Deposit], str | None]:
    """Return all deposits since a cursor, and the cursor of the last batch."""
    deposits: list[Deposit] = []
    async for batch in world.chain.deposits(address, after=after):
        deposits += batch.deposits
        after = batch.cursor
    return deposits, after


async def test_deposits_are_reported_once_oldest_first_with_their_sender(world: RpcWorld) -> None:
    address, other = await world.account(1), await world.account(2, 50)
    minted = await world.mint(address, 7)
    paid = await world.transfer(2, address, 20)
    await world.land(paid)
    await world.irreversible(paid)
    deposits, cursor = await read(world, address)
    assert deposits == [
        Deposit(signature=minted.signature, token_account=address, amount_micro=7, senders=()),
        Deposit(signature=paid.signature, token_account=address, amount_micro=20, senders=(other,)),
    ]
    assert await read(world, address, cursor) == ([], cursor)

    again = await world.transfer(2, address, 1)
    await world.land(again)
    await world.irreversible(again)
    deposits, cursor = await read(world, address, cursor)
    assert [(deposit.signature, deposit.amount_micro) for deposit in deposits] == [(again.signature, 1)]
    assert cursor == again.signature


async def test_failed_outgoing_and_foreign_transactions_are_no_deposits(world: RpcWorld) -> None:
    source, address = await world.account(1, 50), await world.account(2)
    failing = await world.transfer(1, address, 51)
    assert (await world.send(failing)).failure is not None
    await world.land_instruction(
        instructions.transfer_lamports(world.pubkey(TREASURY), Pubkey.from_string(address), 5)
    )
    last = await world.transfer(1, address, 3)
    await world.land(last)
    await world.irreversible(last)
    deposits, _ = await read(world, address)
    assert [deposit.signature for deposit in deposits] == [last.signature]
    deposits, _ = await read(world, source)
    assert [deposit.amount_micro for deposit in deposits] == [50]


async def test_a_long_history_is_read_in_resumable_batches(
    world: RpcWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_MAX_LINES", 3)
    monkeypatch.setattr(history, "_DEPOSIT_BATCH", 2)
    address = await world.account(1)
    signed = [
        transactions.mint(
            world.custody,
            await world.chain.latest_blockhash(),
            usdc_mint=USDC,
            token_account=address,
            amount_micro=n,
            memo=f"n {n}",
        )
        for n in range(1, 11)
    ]
    for minting in signed:
        await world.land(minting)
    await world.irreversible(signed[-1])
    batches = [batch async for batch in world.chain.deposits(address, after=None)]
    amounts = [deposit.amount_micro for batch in batches for deposit in batch.deposits]
    assert amounts == list(range(1, 11))
    assert all(len(batch.deposits) <= 2 for batch in batches)
    for at, batch in enumerate(batches):
        rest, _ = await read(world, address, batch.cursor)
        assert rest == [deposit for later in batches[at + 1 :] for deposit in later.deposits]
