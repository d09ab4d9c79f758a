"""The seller's transactions that open and settle channels, and its reads of them."""

import base64
from collections.abc import Sequence
from typing import Final

from attrs import frozen
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelAccount, OnchainStatus, OnchainTerms, Voucher
from agentpay_server.testkit.facilitator.checking import PENDING, InvalidPaymentError
from agentpay_server.testkit.facilitator.fee_payer import (
    FailedOnChainError,
    FeePayer,
    NotConfirmedError,
    Rpc,
    SimulationFailedError,
)
from agentpay_server.testkit.node.jsonrpc import RpcError
from agentpay_server.testkit.paywall.channel_checking import CheckedOpening

TREASURY: Final = codecs.TREASURIES["devnet"]


@frozen(kw_only=True)
class SellerKeys:
    """The keys of a seller: the payee of its sessions, and the signer of the vouchers of `upto`."""

    fee_payer: Keypair
    payee: Keypair
    authorizer: Keypair


class ChannelChain:
    """The chain, by the node and the keys of one seller."""

    def __init__(self, rpc: Rpc, fee_payer: FeePayer, keys: SellerKeys) -> None:
        self._rpc = rpc
        self._fee_payer = fee_payer
        self._keys = keys

    async def land(self, checked: CheckedOpening) -> str:
        """Co-sign and broadcast an opening; return its signature once the chain shows the channel."""
        payer = str(checked.opening.payer)
        try:
            transaction = self._fee_payer.completed(checked.transaction)
            if not await self._fee_payer.has_landed(transaction):
                await self._fee_payer.simulate(transaction)
                await self._fee_payer.confirmed(await self._fee_payer.broadcast(transaction))
            found = await self.channel(checked.opening.address)
        except (SimulationFailedError, FailedOnChainError, NotConfirmedError, RpcError) as error:
            reason = f"the chain does not accept the opening: {error}"
            raise InvalidPaymentError("transaction_failed", reason, payer) from None
        if found is None or found.status is not OnchainStatus.OPEN or not found.is_of(checked.opening):
            raise InvalidPaymentError("payment_invalid", "the channel is not open on chain", payer)
        return str(transaction.signatures[0])

    async def settle(
        self, opening: OnchainTerms, voucher: Voucher | None, voucher_signature: Signature | None
    ) -> str:
        """Settle a voucher, seal the channel, and pay everyone, in one transaction; return its signature."""
        steps = codecs.close_instructions(
            opening, treasury=TREASURY, voucher=voucher, signature=voucher_signature
        )
        return await self._sent(steps)

    async def _sent(self, steps: Sequence[Instruction]) -> str:
        try:
            return await self._send(steps)
        except FailedOnChainError as error:
            raise InvalidPaymentError("transaction_failed", f"the channel was not settled: {error}") from None
        except (NotConfirmedError, RpcError) as error:
            raise InvalidPaymentError(PENDING, f"the channel may not be settled yet: {error}") from None

    async def _send(self, steps: Sequence[Instruction]) -> str:
        latest = (await self._rpc("getLatestBlockhash"))["value"]["blockhash"]
        signature = await self._fee_payer.broadcast(self._signed(steps, latest))
        await self._fee_payer.confirmed(signature)
        return signature

    def _signed(self, steps: Sequence[Instruction], blockhash: str) -> VersionedTransaction:
        payer = self._keys.fee_payer.pubkey()
        message = MessageV0.try_compile(payer, list(steps), [], Hash.from_string(blockhash))
        owned = {pair.pubkey(): pair for pair in (self._keys.fee_payer, self._keys.payee)}
        signers = message.account_keys[: message.header.num_required_signatures]
        payload = to_bytes_versioned(message)
        return VersionedTransaction.populate(message, [owned[key].sign_message(payload) for key in signers])

    async def channel(self, address: Pubkey) -> ChannelAccount | None:
        """Return a channel as the chain shows it; None if it is gone."""
        options = {"encoding": "base64", "commitment": "confirmed"}
        found = (await self._rpc("getAccountInfo", str(address), options))["value"]
        if found is None or found["owner"] != str(codecs.PROGRAM):
            return None
        return codecs.read_channel(base64.b64decode(found["data"][0]))
