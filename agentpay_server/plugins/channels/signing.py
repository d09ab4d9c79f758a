"""Builds and signs what a channel needs: its opening, its vouchers, and both transactions of a forced close.

The seller pays for the opening, signs it first and broadcasts it: until that can no longer land, its amount
stays reserved. The treasury pays for the rest.
"""

import json
from typing import Final

import attrs
from attrs import frozen
from solders.hash import Hash
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay.contract.ext.sessions import SessionStatus
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import TREASURIES, ChannelError, OnchainTerms, Voucher
from agentpay_server.chain.custody import (
    Signer,
    TransactionTooLargeError,
    fee_lamports,
    sign_transaction,
    spending_key,
    voucher_key,
    with_units_for,
)
from agentpay_server.chain.instructions import memo, set_compute_unit_limit, set_compute_unit_price
from agentpay_server.chain.protocol import Blockhash, Chain, ChainUnreachableError, SignedTransaction
from agentpay_server.database.tables import AccountRecord, ChannelRecord
from agentpay_server.engine.authorization import Gate
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.errors import chain_unavailable
from agentpay_server.platform.failpoints import Operation
from agentpay_server.plugins.channels.on_chain import MAX_SLOT_DISTANCE
from agentpay_server.plugins.channels.store import CHANNELS
from agentpay_server.plugins.pay402.building import UNITS_PER_MEMO_BYTE, PreparedPayment, check_size, cosigned
from agentpay_server.plugins.pay402.challenges import mpp
from agentpay_server.plugins.pay402.challenges.terms import Offer
from agentpay_server.plugins.pay402.responses import nothing_payable
from agentpay_server.plugins.pay402.settling import handed_out

OPEN_UNITS: Final = 90_000
"""Compute units of an opening; it needs about half of them."""

_UNIT_PRICE: Final = 1
_REQUEST_SIGNATURES: Final = 2
_PAYOUT_SIGNATURES: Final = 1
_PAYOUT_UNITS: Final = 2
"""How many times the usual compute limit a payout may need."""


def opening_of(context: Context, channel: ChannelRecord, account: AccountRecord) -> OnchainTerms:
    """Return the terms of an account's stored channel, as the chain has them."""
    return OnchainTerms(
        payer=Pubkey.from_string(context.signer.address(spending_key(account.key_index))),
        rent_payer=Pubkey.from_string(channel.rent_payer),
        payee=Pubkey.from_string(channel.payee),
        mint=Pubkey.from_string(context.chain.usdc_mint),
        signer=Pubkey.from_string(channel.signer),
        salt=channel.salt,
        open_slot=channel.open_slot,
        deposit_micro=channel.deposit,
        grace_seconds=channel.grace_seconds,
        shares=mpp.shares_of([(owner, bps) for owner, bps in json.loads(channel.shares)]),
    )


def build_opening(
    signer: Signer,
    opening: OnchainTerms,
    *,
    account_index: int,
    blockhash: str,
    last_valid_height: int,
    text: str | None = None,
) -> PreparedPayment:
    """Return the transaction that opens a channel, with the payer's signature; `text` is its memo.

    Raises:
        ChannelError: the program would refuse the terms.
        TransactionTooLargeError: the transaction does not fit into a packet.
    """
    steps = [
        set_compute_unit_limit(OPEN_UNITS + (UNITS_PER_MEMO_BYTE * len(text.encode("utf-8")) if text else 0)),
        set_compute_unit_price(_UNIT_PRICE),
        codecs.open_channel(opening),
        *([memo(text)] if text else []),
    ]
    message = MessageV0.try_compile(opening.rent_payer, steps, [], Hash.from_string(blockhash))
    check_size(message)
    return cosigned(
        signer,
        message,
        {str(opening.payer): spending_key(account_index)},
        payer=str(opening.payer),
        last_valid_height=last_valid_height,
    )


def voucher_header(
    signer: Signer,
    channel: ChannelRecord,
    account: AccountRecord,
    cumulative_micro: int,
    *,
    is_closing: bool = False,
    challenge: dict[str, object] | None = None,
) -> tuple[str, str]:
    """Sign a stored voucher; return name and value of the header that presents it, the same each time.

    Args:
        signer: it has the accounts' keys.
        channel: the channel.
        account: the paying account.
        cumulative_micro: the stored amount of the voucher.
        is_closing: whether the voucher closes the channel.
        challenge: the challenge to answer; None for the newest one.
    """
    voucher = Voucher(channel=Pubkey.from_string(channel.address), cumulative_micro=cumulative_micro)
    signature = Signature.from_bytes(signer.sign_voucher(voucher_key(account.key_index), voucher.message()))
    payload = mpp.voucher_payload(
        voucher, signer=channel.signer, signature=str(signature), is_closing=is_closing
    )
    return mpp.credential(challenge or json.loads(channel.newest_challenge), payload)


def closing_fee(blockhash: Blockhash) -> int:
    """Return the most lamports that the fees of a forced close can be."""
    return fee_lamports(_REQUEST_SIGNATURES, blockhash.compute_budget) + fee_lamports(
        _PAYOUT_SIGNATURES, with_units_for(blockhash, _PAYOUT_UNITS).compute_budget
    )


def request_close(
    signer: Signer, blockhash: Blockhash, opening: OnchainTerms, *, account_index: int
) -> SignedTransaction:
    """Build the transaction that begins to close a channel by force."""
    step = codecs.request_close(payer=opening.payer, channel=opening.address)
    return sign_transaction(signer, blockhash, [step], spending_key(account_index))


def pay_out(
    signer: Signer, blockhash: Blockhash, opening: OnchainTerms, *, cluster: str, seals: bool
) -> SignedTransaction:
    """Build the transaction that pays out a channel; with `seals`, after its grace period."""
    treasury = TREASURIES.get(cluster, TREASURIES["devnet"])
    steps = [codecs.seal(opening.address)] if seals else []
    steps.append(codecs.distribute_opened(opening, treasury=treasury))
    return sign_transaction(signer, with_units_for(blockhash, _PAYOUT_UNITS), steps)


_LATER_BLOCKS: Final = 32
"""How many blocks a seller's blockhash may be newer than the newest one that this service knows."""


@frozen(kw_only=True)
class OpeningBlockhash:
    """Where an opening can land: the chain's slot, at which a blockhash was valid."""

    blockhash: str
    slot: int


async def landing_of(chain: Chain, offer: Offer) -> OpeningBlockhash | str:
    """Return where an opening on an offer's terms can land now, or why it cannot.

    Raises:
        Problem: `chain_unavailable`.
    """
    channel = offer.channel
    assert channel is not None  # noqa: S101 - the offer sells through a channel
    if offer.is_session and (channel.blockhash is None or channel.slot is None):
        return "it has no recentBlockhash or no recentSlot, and no channel is open on its terms"
    try:
        blockhash = channel.blockhash or (await chain.latest_blockhash()).value
        slot = await chain.blockhash_slot(blockhash)
    except ChainUnreachableError:
        raise chain_unavailable() from None
    named = slot if channel.slot is None else channel.slot
    if slot is None or named is None:
        return "its recentBlockhash is not valid at this service's node: request it again"
    if abs(slot - named) > MAX_SLOT_DISTANCE:
        return f"its recentSlot is over {MAX_SLOT_DISTANCE} slots from that of this service's node"
    return OpeningBlockhash(blockhash=blockhash, slot=min(slot, named))


def sign_channel(
    gate: Gate,
    offer: Offer,
    landing: OpeningBlockhash,
    *,
    owner_id: str,
    origin: str,
    deposit_micro: int,
    terms_digest: str,
    position: int,
    expires_us: int | None = None,
    text: str | None = None,
) -> tuple[ChannelRecord, StoredTransaction]:
    """Sign the opening of a channel on an offer's terms, and store the channel.

    Args:
        gate: the decision.
        offer: the offer.
        landing: where the opening can land.
        owner_id: the session, or the payment up to a maximum.
        origin: the seller.
        deposit_micro: what to pay into it.
        terms_digest: what its vouchers have in common.
        position: the position of the offer in its 402.
        expires_us: until when the seller may use the opening, if it says.
        text: a memo in the transaction.

    Returns:
        The channel, and the transaction to hold its amount with.

    Raises:
        Problem: `nothing_payable`.
    """
    context, source, terms = gate.context, gate.source, offer.channel
    assert terms is not None and terms.rent_payer is not None  # noqa: PT018, S101 - else it is not payable
    challenge = json.dumps(offer.echo)
    channel = ChannelRecord(
        owner_id=owner_id,
        is_payment=not offer.is_session,
        operator_id=source.operator_id,
        account_id=source.account_id,
        terms_digest=terms_digest,
        origin=origin,
        # What follows from the rest comes below.
        address="",
        escrow_token_account="",
        raw=b"",
        payee=terms.payee,
        rent_payer=terms.rent_payer,
        signer=terms.signer or context.signer.address(voucher_key(source.key_index)),
        salt=int.from_bytes(context.randomness.randbytes(8), "big") >> 1,
        open_slot=landing.slot,
        grace_seconds=terms.grace_seconds,
        shares=json.dumps(terms.shares),
        deposit=deposit_micro,
        cumulative=0 if offer.is_session else deposit_micro,
        status=SessionStatus.OPENING.value,
        by_operator=gate.by_operator,
        challenge=challenge,
        challenge_expires_us=expires_us,
        newest_challenge=challenge,
        created_us=gate.now_us,
    )
    opening = opening_of(context, channel, source)
    try:
        prepared = build_opening(
            context.signer,
            opening,
            account_index=source.key_index,
            blockhash=landing.blockhash,
            last_valid_height=_last_valid_height(gate, landing.blockhash),
            text=text,
        )
    except (ChannelError, TransactionTooLargeError) as error:
        raise nothing_payable({position: str(error)}) from None
    channel = attrs.evolve(
        channel,
        address=str(opening.address),
        escrow_token_account=str(opening.escrow),
        raw=prepared.raw,
    )
    CHANNELS.insert(gate.connection, channel)
    return channel, handed_out(gate, prepared, kind=Operation.CHANNEL_OPEN, subject_id=owner_id)


def _last_valid_height(gate: Gate, blockhash: str) -> int:
    """Return the last height at which the opening can land, or a higher one, which only takes longer."""
    newest = gate.preflight.blockhash
    is_newest = newest.value == blockhash or not gate.context.is_cluster
    return newest.last_valid_block_height + (0 if is_newest else _LATER_BLOCKS)
