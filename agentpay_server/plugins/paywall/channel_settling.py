"""Openings, vouchers and settlements of channels, as the seller checks and sends them.

The checks are pure functions. `ChannelChain` broadcasts openings, settles, and reads channels.
"""

import base64
from collections.abc import Sequence
from typing import Final

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message, MessageV0, MessageV1, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import (
    ChannelAccount,
    ChannelError,
    OnchainStatus,
    OnchainTerms,
    Voucher,
)
from agentpay_server.chain.instructions import COMPUTE_BUDGET_PROGRAM, MEMO_PROGRAM
from agentpay_server.plugins.facilitator.settling import (
    PENDING,
    FailedOnChainError,
    FeePayer,
    InvalidPaymentError,
    Rpc,
    check_budget,
    decoded,
)
from agentpay_server.plugins.node.jsonrpc import RpcError
from agentpay_server.plugins.pay402.challenges import mpp, x402
from agentpay_server.plugins.pay402.challenges.terms import Presented
from agentpay_server.plugins.paywall.products import ChannelProduct, SellerKeys

TREASURY: Final = codecs.TREASURIES["devnet"]
EXPIRY_MARGIN_SECONDS: Final = 60

_MAX_UNITS: Final = 400_000
_INVALID: Final = "payment_invalid"


Opening = tuple[VersionedTransaction, OnchainTerms]
"""A transaction, which the fee payer may still have to sign, and the channel that it opens on chain."""

SignedVoucher = tuple[Voucher, Signature]


def check_opening(raw: bytes, *, fee_payer: str, allows_memo: bool) -> Opening:
    """Return the transaction in `raw` and its only opening; the caller compares the terms.

    Besides the opening, it may only set a modest compute budget, and have a memo if `allows_memo`. The fee
    payer is the rent payer, and nothing else. Only a simulation shows whether the signatures are valid.
    """
    transaction = decoded(raw, undecodable=_INVALID, unreadable=_INVALID)
    message = transaction.message
    if [str(key) for key in message.account_keys[:1]] != [fee_payer]:
        raise _refused(f"the fee payer must be {fee_payer}")
    try:
        openings = _openings(message, allows_memo=allows_memo)
    except IndexError:
        raise _refused("an instruction names an account that is missing") from None
    except ChannelError as error:
        raise _refused(f"the opening is invalid: {error}") from None
    if len(openings) != 1:
        raise _refused("the transaction must have exactly one opening")
    (opening,) = openings
    if opening.rent_payer != Pubkey.from_string(fee_payer):
        raise _refused("the rent payer must be the fee payer")
    if opening.payer == opening.rent_payer:
        raise _refused("the fee payer takes part in the payment")
    return transaction, opening


def _openings(message: Message | MessageV0 | MessageV1, *, allows_memo: bool) -> list[OnchainTerms]:
    keys, kinds, openings = message.account_keys, [], []
    for step in message.instructions:
        program, data = keys[step.program_id_index], bytes(step.data)
        if program == COMPUTE_BUDGET_PROGRAM:
            check_budget(data, max_units=_MAX_UNITS)
            kinds.append(0)
        elif program == codecs.PROGRAM:
            openings.append(codecs.read_opening([keys[index] for index in step.accounts], data))
            kinds.append(1)
        elif program == MEMO_PROGRAM and allows_memo and not step.accounts:
            kinds.append(2)
        else:
            raise _refused(f"unexpected instruction of {program}")
    if kinds != sorted(kinds) or kinds.count(2) > 1:
        raise _refused("the order is compute budget, opening, and at most one memo")
    return openings


def check_offered(presented: Presented, product: ChannelProduct, keys: SellerKeys, *, now: int) -> Opening:
    """Return the opening that a payment presents, if it is on the terms of the product."""
    asked, is_upto, payload = product.terms(keys), product.channel == "upto", presented.payload
    transaction, opening = check_opening(
        presented.transaction, fee_payer=str(keys.fee_payer.pubkey()), allows_memo=is_upto
    )
    wanted: dict[str, object] = {"payee": Pubkey.from_string(asked.payee)}
    wanted["mint"] = Pubkey.from_string(keys.mint)
    if asked.signer is not None:
        wanted |= {"signer": Pubkey.from_string(asked.signer), "deposit_micro": product.amount_micro}
    wanted |= {"grace_seconds": asked.grace_seconds, "shares": mpp.shares_of(asked.shares)}
    for name, value in wanted.items():
        if getattr(opening, name) != value:
            raise _refused(f"{name} of the opening differs from the offer")
    if is_upto:
        _check_upto(presented, opening, now)
        return transaction, opening
    if "bump" in payload or "authentication" in payload:
        raise InvalidPaymentError("invalid_payload", "bump and authentication are not supported")
    claimed = mpp.open_payload(opening, presented.transaction)
    for name in (*claimed, "distributionSplits"):
        if (payload.get(name) or None) != claimed.get(name):
            raise _refused(f"{name} is not that of the transaction")
    if opening.deposit_micro < asked.minimum_micro:
        raise _refused("the deposit is below minimumDeposit")
    return transaction, opening


def _check_upto(presented: Presented, opening: OnchainTerms, now: int) -> None:
    expires_at, valid_after = presented.payload["expiresAt"], presented.payload["validAfter"]
    if presented.payload != x402.upto_payload(
        opening, presented.transaction, expires_at=expires_at, valid_after=valid_after
    ):
        raise _refused("the payload is not that of the transaction")
    if not now < expires_at <= now + x402.TIMEOUT_SECONDS:
        raise InvalidPaymentError("payment_expired", "expiresAt is not within maxTimeoutSeconds")
    if valid_after > now:
        raise _refused("validAfter is in the future")


def check_voucher(presented: Presented, opening: OnchainTerms, *, now: int) -> SignedVoucher:
    """Return the voucher of an action, if the channel's signer signed it and it can be settled."""
    voucher, signature = presented.voucher, presented.signature
    if voucher is None or signature is None:
        raise InvalidPaymentError("invalid_payload", "the voucher is missing")
    if voucher.channel != opening.address or presented.payload["voucher"]["signer"] != str(opening.signer):
        raise _refused("the voucher is of another channel or signer")
    if not voucher.is_signed_by(opening.signer, signature):
        raise _refused("the signature of the voucher is invalid")
    if voucher.cumulative_micro > opening.deposit_micro:
        raise InvalidPaymentError("exceeds-deposit", f"the deposit is {opening.deposit_micro}")
    latest = now + opening.grace_seconds + EXPIRY_MARGIN_SECONDS
    if voucher.expires_at and voucher.expires_at < latest:
        raise InvalidPaymentError("voucher-expires-soon", "the voucher expires within the grace period")
    return voucher, signature


def _refused(message: str) -> InvalidPaymentError:
    return InvalidPaymentError(_INVALID, message)


# --- The chain


class ChannelChain:
    """The chain, by the node and the keys of one seller."""

    def __init__(self, rpc: Rpc, fee_payer: FeePayer, keys: SellerKeys) -> None:
        self._rpc = rpc
        self._fee_payer = fee_payer
        self._keys = keys

    async def land(self, checked: Opening) -> str:
        """Co-sign and broadcast an opening; return its signature once the chain shows the channel."""
        transaction, opening = self._fee_payer.completed(checked[0]), checked[1]
        payer = str(opening.payer)
        try:
            if not await self._fee_payer.has_landed(transaction):
                await self._fee_payer.simulate(transaction)
                await self._fee_payer.confirmed(await self._fee_payer.broadcast(transaction))
            found = await self.channel(opening.address)
        except RpcError as error:
            reason = f"the chain does not accept the opening: {error}"
            raise InvalidPaymentError("transaction_failed", reason, payer) from None
        if found is None or found.status is not OnchainStatus.OPEN or not found.is_of(opening):
            raise InvalidPaymentError(_INVALID, "the channel is not open on chain", payer)
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
        except RpcError as error:
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
