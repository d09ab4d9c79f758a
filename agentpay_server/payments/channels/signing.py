"""Signs the opening of a channel, for a session over HTTP 402 and for a payment up to a maximum.

The seller broadcasts the transaction: until that can no longer land, its amount stays reserved.
"""

import json
from typing import Final

import attrs
from attrs import frozen

from agentpay.contract.sessions import SessionStatus
from agentpay_server.chain.channels.codecs import ChannelError
from agentpay_server.chain.custody import voucher_key
from agentpay_server.chain.protocol import Chain, ChainUnreachableError, Cosigned, SignedTransaction
from agentpay_server.chain.signing import TransactionTooLargeError
from agentpay_server.database.tables import ChannelRecord, SessionRecord
from agentpay_server.engine.authorization import Gate
from agentpay_server.engine.movement import pending_transaction
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import Kind, StoredTransaction
from agentpay_server.payments.challenges.terms import ChannelTerms, Offer
from agentpay_server.payments.channels.building import build_opening, closing_fee, opening_of
from agentpay_server.payments.channels.rules import MAX_SLOT_DISTANCE
from agentpay_server.payments.channels.store import CHANNELS, Channel
from agentpay_server.payments.responses import nothing_payable
from agentpay_server.payments.settling import detail_of
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import chain_unavailable
from agentpay_server.sessions.rules import check_transition
from agentpay_server.sessions.store import SESSIONS

_LATER_BLOCKS: Final = 32
"""How many blocks a seller's blockhash may be newer than the newest one that this service knows."""


@frozen(kw_only=True)
class OpeningBlockhash:
    """Where an opening can land: the chain's slot, at which a blockhash was valid."""

    blockhash: str
    slot: int


@frozen(kw_only=True)
class ChannelDeposit:
    """A channel to sign: an offer's, and what its rows say besides.

    Attributes:
        subject_id: the session, or the payment up to a maximum.
        position: the position of the offer in its 402.
        token_account: of the primary recipient.
        terms_digest: what vouchers of the channel have in common.
        idempotency_key: the key of the request.
        expires_us: until when the seller may use the opening, if it says.
        memo: a memo in the transaction.
    """

    subject_id: str
    operator_id: str
    account_id: str
    key_id: str
    protocol: str
    origin: str
    url: str | None
    category: str | None
    deposit_micro: int
    offer: Offer
    position: int
    token_account: str
    landing: OpeningBlockhash
    terms_digest: str
    idempotency_key: str
    expires_us: int | None = None
    memo: str | None = None

    @property
    def terms(self) -> ChannelTerms:
        """The channel's terms in the offer."""
        assert self.offer.channel is not None  # noqa: S101 - the offer sells through a channel
        return self.offer.channel


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


def sign_channel(unit: Gate, deposit: ChannelDeposit) -> tuple[Channel, StoredTransaction]:
    """Sign a channel's opening and store the channel; return it, and the transaction to hold its amount with.

    Raises:
        Problem: `nothing_payable`.
    """
    connection, context = unit.connection, unit.context
    channel = _rows(unit, deposit)
    opening = opening_of(context, channel, unit.source)
    try:
        prepared = build_opening(
            context.signer,
            opening,
            account_index=unit.source.key_index,
            blockhash=deposit.landing.blockhash,
            last_valid_height=_last_valid_height(unit, deposit.landing.blockhash),
            text=deposit.memo,
        )
    except (ChannelError, TransactionTooLargeError) as error:
        raise nothing_payable({deposit.position: str(error)}) from None
    check_transition(None, SessionStatus.OPENING)
    channel = Channel(
        session=attrs.evolve(
            channel.session, channel=str(opening.address), escrow_token_account=str(opening.escrow)
        ),
        record=attrs.evolve(channel.record, raw=prepared.raw),
    )
    SESSIONS.insert(connection, channel.session)
    CHANNELS.insert(connection, channel.record)
    found_by = Cosigned(
        token_account=unit.source.usdc_token_account,
        signature=prepared.signature,
        message_hash=prepared.message_hash,
        after=unit.preflight.newest_signature,
    )
    tx = pending_transaction(
        SignedTransaction(
            signature=prepared.signature,
            raw=prepared.raw,
            last_valid_block_height=prepared.last_valid_block_height,
        ),
        kind=Kind.CHANNEL_OPEN,
        subject_id=deposit.subject_id,
        account_id=deposit.account_id,
        detail=detail_of(found_by),
        now_us=unit.now_us,
    )
    return channel, attrs.evolve(tx, announced_us=unit.now_us, leased_until_us=0)


def opening_expires_us(context: Context, now_us: int) -> int:
    """Return about when an opening that is signed now can no longer land."""
    return now_us + round(context.chain.usual_life_seconds * SECOND_US)


def _last_valid_height(unit: Gate, blockhash: str) -> int:
    """Return the last height at which the opening can land, or a higher one, which only takes longer."""
    newest = unit.preflight.blockhash
    is_newest = newest.value == blockhash or not unit.context.is_cluster
    return newest.last_valid_block_height + (0 if is_newest else _LATER_BLOCKS)


def _rows(unit: Gate, deposit: ChannelDeposit) -> Channel:
    """Return the rows to store; the addresses that follow from them are still missing."""
    context, terms = unit.context, deposit.terms
    assert terms.rent_payer is not None  # noqa: S101 - only sponsored openings are payable
    challenge = json.dumps(deposit.offer.echo)
    record = ChannelRecord(
        session_id=deposit.subject_id,
        operator_id=deposit.operator_id,
        account_id=deposit.account_id,
        terms_digest=deposit.terms_digest,
        origin=deposit.origin,
        payee=terms.payee,
        rent_payer=terms.rent_payer,
        signer=terms.signer or context.signer.address(voucher_key(unit.source.key_index)),
        salt=int.from_bytes(context.randomness.randbytes(8), "big") >> 1,
        open_slot=deposit.landing.slot,
        grace_seconds=terms.grace_seconds,
        shares=json.dumps(terms.shares),
        challenge=challenge,
        challenge_expires_us=deposit.expires_us,
        newest_challenge=challenge,
        raw=b"",
        expires_us=opening_expires_us(context, unit.now_us),
        created_us=unit.now_us,
    )
    session = SessionRecord(
        seq=0,
        session_id=deposit.subject_id,
        operator_id=deposit.operator_id,
        account_id=deposit.account_id,
        key_id=deposit.key_id,
        to=deposit.token_account,
        # If this service holds the payee, the deposit watcher posts the arrival.
        recipient_account_id=None,
        recipient_token_account=unit.preflight.recipient.token_account,
        category=deposit.category,
        cap=deposit.deposit_micro,
        running_total=0,
        idempotency_key=deposit.idempotency_key,
        key_expires_us=None,
        status=SessionStatus.OPENING.value,
        error=None,
        message=None,
        escrow_token_account="",
        tx_signature=None,
        settlement_tx_signature=None,
        settlements=0,
        postponements=0,
        opened_us=None,
        settled_us=None,
        closes_us=None,
        created_us=unit.now_us,
        recipient_owner=terms.payee,
        closed_by=None,
        stuck_reason=None,
        payee_created_us=None,
        opening_fee=0,
        closing_fee=closing_fee(unit.preflight.blockhash),
        protocol=deposit.protocol,
        origin=deposit.origin,
        url=deposit.url,
        by_operator=unit.by_operator,
    )
    return Channel(session=session, record=record)
