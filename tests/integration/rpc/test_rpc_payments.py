"""Payments whose fee their seller pays, on a real validator: found by what was signed, or proved absent."""

import asyncio

import pytest
import rpc_world
import surfpool as validators
from outsiders import Wallet
from rpc_world import USDC, RpcWorld
from solders.message import to_bytes_versioned
from solders.transaction import VersionedTransaction

from agentpay_server.chain.custody import spending_key
from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    ChainUnreachableError,
    Cosigned,
    SignedTransaction,
)
from agentpay_server.plugins.pay402.building import PreparedPayment, build_payment
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Leg, Network, Protocol

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


class Purchase:
    """A payment of account 1 to account 2, as it is handed out.

    Args:
        world: where.
        sponsor: pays the fee.
        payment: what account 1 has signed.
        after: the newest transaction of its token account before.
    """

    def __init__(self, world: RpcWorld, sponsor: Wallet, payment: PreparedPayment, after: str | None) -> None:
        self.cosigned = Cosigned(
            token_account=world.token_address(1),
            signature=payment.signature,
            message_hash=payment.message_hash,
            after=after,
        )
        handed_out = VersionedTransaction.from_bytes(payment.raw)
        message, signatures = handed_out.message, list(handed_out.signatures)
        signatures[0] = sponsor._keypair.sign_message(to_bytes_versioned(message))
        self.signed = SignedTransaction(
            signature=str(signatures[0]),
            raw=bytes(VersionedTransaction.populate(message, signatures)),
            last_valid_block_height=payment.last_valid_block_height,
        )


async def bought(world: RpcWorld, amount_micro: int = 4, nonce: int = 0) -> Purchase:
    source, _ = await world.account(1, 10), await world.account(2)
    sponsor = Wallet(world.chain, world.custody)
    opened = await sponsor.open(0)
    while (status := await world.chain.signature_status(opened)) is None or not status.is_final:
        await world.chain.wait_for_notice(opened, 0.05)
    after = await world.chain.newest_signature(source)
    payment = build_payment(
        world.custody,
        await world.chain.latest_blockhash(),
        ChallengeTerms(
            protocol=Protocol.MPP,
            network=Network.LOCALNET,
            mint=USDC,
            legs=(Leg(recipient=world.owner(2), amount_micro=amount_micro),),
            fee_payer=sponsor.address,
        ),
        payer_key=spending_key(1),
        usdc_mint=USDC,
        own_addresses={world.owner(1)},
        nonce=nonce,
        nonce_memo="txn_1",
    )
    return Purchase(world, sponsor, payment, after)


@pytest.mark.whole
async def test_after_its_expiry_a_transaction_or_payment_is_found_or_can_never_land() -> None:
    with validators.running(slot_ms=5) as fast:
        async with rpc_world.world(fast) as world:
            landed, held_back = await bought(world), await bought(world, nonce=1)
            await world.land(landed.signed)
            made, unsent = await world.provision(11), await world.provision(12)
            await world.land(made)
            # All at once: expiring takes many seconds.
            for signed in (held_back.signed, landed.signed, made, unsent):
                await world.expired(signed)

            assert (await world.end(made)).is_irreversible
            earliest = unsent.last_valid_block_height - BLOCKHASH_LIFE_BLOCKS
            assert await world.chain.knows_blocks(earliest, unsent.last_valid_block_height)
            assert await world.chain.signature_status(unsent.signature) is None
            with pytest.raises(ChainUnreachableError):
                await world.chain.send(unsent.raw)
            await asyncio.sleep(0.1)
            assert await world.chain.signature_status(unsent.signature) is None
            assert await world.chain.token_accounts([world.token_address(12)]) == [None]

            await world.transfer(1, world.token_address(2), 1)

            last = landed.signed.last_valid_block_height
            status = await world.chain.find_cosigned(landed.cosigned, proof_height=last)
            assert status is not None
            assert status.chain_signature == landed.signed.signature
            last = held_back.signed.last_valid_block_height
            assert await world.chain.find_cosigned(held_back.cosigned, proof_height=last) is None
            assert await world.chain.knows_blocks(last - BLOCKHASH_LIFE_BLOCKS, last)
            with pytest.raises(ChainUnreachableError):
                await world.chain.send(held_back.signed.raw)
