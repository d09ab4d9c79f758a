"""What is bought, and judgments about it: by the pin of its origin, by what the chain shows, by the policy.

They judge an offer for one account. The pure judgments of `challenges/offers.py` come first. What is read
here may have changed when the payment is authorized, which judges again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen
from solders.hash import Hash
from solders.pubkey import Pubkey

from agentpay.contract import identifiers
from agentpay.contract.choices import RefusalRule
from agentpay.contract.ext.payments import AuthorizePayment
from agentpay_server.chain.custody import (
    POLICY_AUTHORITY,
    TEST_MINT_AUTHORITY,
    TREASURY,
    TransactionTooLargeError,
    spending_key,
)
from agentpay_server.chain.instructions import (
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    associated_token_address,
)
from agentpay_server.chain.protocol import AccountData, Chain, ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, PaymentRow, PinRecord, TransferRecord
from agentpay_server.engine.authorization import Parties, Preflight, invalid_recipient
from agentpay_server.engine.policy import Purpose, Recipient, Refusal, Spend, refused_by, usdc_text
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import RequestedKey, Verdict
from agentpay_server.platform.errors import chain_unavailable, quote
from agentpay_server.plugins.channels.signing import OpeningBlockhash
from agentpay_server.plugins.channels.store import Channel, KeyUse
from agentpay_server.plugins.pay402 import store
from agentpay_server.plugins.pay402.building import FeePayerRefusedError, payment_message
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Offer, Protocol
from agentpay_server.transfers.rules import Split, TransferTerms

Shown = Mapping[str, AccountData | None]
"""The accounts on chain at the addresses that offers name; None where no account exists."""

_MAX_ADDRESSES: Final = 100
"""How many accounts a node returns at once: those of all offers, unless they have many splits."""

_TOKEN_PROGRAMS: Final = {str(TOKEN_PROGRAM), str(TOKEN_2022_PROGRAM)}
_ANY_TRANSFER_ID: Final = identifiers.TRANSFER + 26 * "0"

UNBUILDABLE: Final = (FeePayerRefusedError, TransactionTooLargeError)

_MULTISIG_BYTES: Final = 355
"""The size of the only account of a token program that can own token accounts."""


def pin_refusal(pin: PinRecord | None, terms: ChallengeTerms, recipients: Collection[str]) -> Refusal | None:
    """Return why a pin forbids a payment to these recipients, or None."""
    if pin is None:
        return None
    addresses = store.addresses_of(pin)
    strange = next((each for each in recipients if addresses is not None and each not in addresses), None)
    if pin.blocked:
        rule: RefusalRule = "seller_blocked"
        message = f"The origin {pin.origin} is blocked: an operator has forbidden payments to it."
    elif pin.max_amount is not None and terms.amount_micro > pin.max_amount:
        rule = "seller_max_amount"
        message = (
            f"max_amount of the pin of {pin.origin} is {usdc_text(pin.max_amount)} USDC and this payment "
            f"requests {usdc_text(terms.amount_micro)} USDC."
        )
    elif strange is not None:
        rule = "seller_recipients"
        message = (
            f"recipients of the pin of {pin.origin} does not include {quote(strange)}, a recipient "
            "of the challenge."
        )
    else:
        return None
    limit = pin.max_amount if rule == "seller_max_amount" else None
    return refused_by(rule, terms.amount_micro, message, limit_micro=limit)


def category_of(offer: Offer, pin: PinRecord | None) -> str | None:
    """Return the category of a purchase: the pin's, else the seller's; never the caller's."""
    return offer.category if pin is None or pin.category is None else pin.category


def _unsponsored(terms: ChallengeTerms, pin: PinRecord | None) -> str | None:
    """Return why an offer of x402 that names no fee payer is not paid; None if it is.

    Sellers of x402 pay the fee. Otherwise this service's treasury would pay it, for a transaction that the
    seller may let fail.
    """
    is_ours = terms.protocol is not Protocol.MPP and terms.fee_payer is None
    if not is_ours or (pin is not None and pin.sponsor_fees):
        return None
    return (
        "feePayer is missing, so this service would pay the network fee; an operator can allow that with "
        "sponsor_fees in the pin of the origin"
    )


def token_accounts_of(offer: Offer, usdc_mint: str) -> Sequence[str]:
    """Return the token accounts that an offer pays, the primary recipient's first."""
    return [associated_token_address(owner, usdc_mint) for owner in offer.owners]


async def read_shown(chain: Chain, offers: Iterable[Offer]) -> Shown:
    """Read from the chain what `settling_fault` needs to judge some offers.

    Raises:
        Problem: `chain_unavailable`.
    """
    wanted: set[str] = set()
    for offer in offers:
        sponsor = offer.terms.fee_payer
        wanted.update(
            offer.owners, token_accounts_of(offer, chain.usdc_mint), () if sponsor is None else (sponsor,)
        )
    addresses, found = sorted(wanted), []
    try:
        for start in range(0, len(addresses), _MAX_ADDRESSES):
            found += await chain.account_data(addresses[start : start + _MAX_ADDRESSES])
    except ChainUnreachableError:
        raise chain_unavailable() from None
    return dict(zip(addresses, found, strict=True))


def settling_fault(offer: Offer, shown: Shown, source: AccountRecord, usdc_mint: str) -> str | None:
    """Return why the chain could never settle a payment of an offer from an account; None if it could.

    A fee payer that the chain does not show may exist when it pays.
    """
    faults = (
        _recipient_fault(owner, token_account, shown, source)
        for owner, token_account in zip(offer.owners, token_accounts_of(offer, usdc_mint), strict=True)
    )
    return _sponsor_fault(offer.terms.fee_payer, shown) or next(filter(None, faults), None)


def _sponsor_fault(sponsor: str | None, shown: Shown) -> str | None:
    if sponsor is None:
        return None
    if not Pubkey.from_string(sponsor).is_on_curve():
        return f"its fee payer {sponsor} is not a key that can sign"
    account = shown[sponsor]
    if account is not None and account.program != str(SYSTEM_PROGRAM):
        return f"its fee payer {sponsor} belongs to a program, so it cannot pay fees"
    return None


def _recipient_fault(owner: str, token_account: str, shown: Shown, source: AccountRecord) -> str | None:
    if token_account == source.usdc_token_account:
        return "its recipient is the paying account itself"
    account, receiving = shown[owner], shown[token_account]
    if account is not None and account.program in _TOKEN_PROGRAMS and len(account.data) != _MULTISIG_BYTES:
        return f"its recipient {owner} is a token account, and must be the owner of one"
    held = None if receiving is None else receiving.usdc
    if held is None:
        return f"its recipient {owner} has no USDC token account"
    if held.is_frozen:
        return f"the USDC token account of its recipient {owner} is frozen"
    return None if held.owner == owner else f"its recipient {owner} no longer owns its USDC token account"


def spend_on(
    offer: Offer,
    recipients: Sequence[Recipient],
    *,
    pin: PinRecord | None,
    memo: str | None = None,
    cap_micro: int | None = None,
) -> Spend:
    """Return the spend that a policy judges for an offer.

    Args:
        offer: the offer.
        recipients: those of the offer, the primary one first.
        pin: the operator's pin of the origin, if any.
        memo: what meets `require_memo`; sessions have none.
        cap_micro: the cap of a session to open; None for a payment, and for a voucher.
    """
    price_micro = offer.terms.amount_micro
    return Spend(
        amount_micro=price_micro if cap_micro is None else cap_micro,
        to=recipients[0].token_account,
        recipient=recipients[0],
        others=tuple(recipients[1:]),
        memo=memo,
        category=category_of(offer, pin),
        purpose=Purpose.SESSION_OVER_402 if offer.is_session else Purpose.PAYMENT,
        first_charge_micro=None if cap_micro is None else price_micro,
    )


# --- What is signed


def signing_fault(
    connection: Connection, context: Context, source: AccountRecord, offer: Offer, pin: PinRecord | None
) -> str | None:
    """Return why the transaction that pays an offer is never signed for an account; None if it may be."""
    payer, channel = context.signer.address(spending_key(source.key_index)), offer.channel
    if channel is not None:
        fee_payer = "feePayerKey" if channel.signer is None else "feePayer"
        for name, key in ((fee_payer, channel.rent_payer), ("receiverAuthorizer", channel.signer)):
            if key is not None and (key == payer or key in own_addresses(connection, context, key)):
                return f"its {name} is an address of this service"
        return None
    reason = _unsponsored(offer.terms, pin)
    if reason is not None:
        return reason
    try:
        payment_message(
            context.signer,
            Hash.default(),
            offer.terms,
            payer=payer,
            usdc_mint=context.chain.usdc_mint,
            own_addresses=own_addresses(connection, context, offer.terms.fee_payer),
            nonce=0,
            nonce_memo=_ANY_TRANSFER_ID,
        )
    except UNBUILDABLE as error:
        return str(error)
    return None


def own_addresses(connection: Connection, context: Context, fee_payer: str | None) -> set[str]:
    """Return the addresses of this service that a challenge might name as its fee payer."""
    own = {context.signer.address(key) for key in (TREASURY, POLICY_AUTHORITY, TEST_MINT_AUTHORITY)}
    if fee_payer is not None:
        theirs = associated_token_address(fee_payer, context.chain.usdc_mint)
        if account_store.account_at(connection, theirs) is not None:
            own.add(fee_payer)
    return own


def pin_is_as_seen(connection: Connection, operator_id: str, origin: str, seen: PinRecord | None) -> bool:
    """Return whether an operator's pin of an origin is as it was read."""
    return store.PINS.get(connection, (operator_id, origin)) == seen


def purchase_objection(
    pin: PinRecord | None, terms: ChallengeTerms, recipients: Collection[str], preflight: Preflight
) -> Refusal | None:
    """Return a refusal by the pin of a seller's origin.

    Raises:
        Problem: `invalid_recipient`.
    """
    owners = {paid.owner for paid in (preflight.recipient, *preflight.others)}
    for recipient in recipients:
        if recipient not in owners:
            raise invalid_recipient(recipient, "no longer owns its USDC token account")
    return pin_refusal(pin, terms, recipients)


# --- What is bought


def digest_of(offer: Offer, request: AuthorizePayment) -> str:
    """Return the digest of the terms of a purchase."""
    return offer.terms.digest(origin=request.origin, memo=request.memo or None)


@frozen(kw_only=True)
class Purchase:
    """A request, the offer to pay, and what is stored about both.

    Attributes:
        key: the idempotency key.
        use: what the key was used for.
        source: the paying account.
        transfer: the payment that holds the key, if any.
        judged: how to treat the request. With `REPLAY` and `RESUME` there is a payment.
        position: the position of the offer in the 402.
        pin: the operator's pin of the origin, if any.
        token_accounts: what it pays, the primary recipient's first; each with its account if this service
            holds it.
        channel_digest: of the terms that all vouchers of a session's channel share.
        channel: the channel to use, if the offer sells by session; None to open one.
        landing: where the opening of a channel can land; None if none is opened.
    """

    request: AuthorizePayment
    key: RequestedKey
    use: KeyUse
    source: AccountRecord
    transfer: TransferRecord | None
    judged: Verdict
    offer: Offer
    position: int
    pin: PinRecord | None
    token_accounts: Mapping[str, AccountRecord | None]
    channel_digest: str = ""
    channel: Channel | None = None
    landing: OpeningBlockhash | None = None

    @property
    def digest(self) -> str:
        """Digest of the terms, equal for one purchase."""
        return digest_of(self.offer, self.request)

    @property
    def opens_channel(self) -> bool:
        """Whether the payment opens a channel, which the chain must be able to land."""
        is_signed = not self.source.paused and self.judged is not Verdict.REPLAY
        return self.offer.channel is not None and self.channel is None and is_signed

    @property
    def category(self) -> str | None:
        """The category that the policy judges."""
        return category_of(self.offer, self.pin)

    @property
    def terms(self) -> TransferTerms:
        """The terms of the purchase, as a transfer's terms."""
        return TransferTerms(
            account_id=self.source.account_id,
            to=next(iter(self.token_accounts)),
            amount_micro=self.offer.terms.amount_micro,
            memo=self.request.memo or None,
            category=self.category,
            payment_digest=self.digest,
            splits=tuple(Split(leg.recipient, leg.amount_micro) for leg in self.offer.terms.legs[1:]),
        )

    @property
    def parties(self) -> Parties:
        """The account that pays, and those that are paid."""
        first, *others = self.token_accounts
        return Parties(
            source=self.source,
            to=first,
            recipient=self.token_accounts[first],
            others={each: self.token_accounts[each] for each in others},
            is_broadcast_by_us=False,
        )

    def is_pin_as_seen(self, connection: Connection) -> bool:
        """Return whether the operator's pin of the origin is as it was read."""
        return pin_is_as_seen(connection, self.source.operator_id, self.request.origin, self.pin)

    def row(self, transfer_id: str) -> PaymentRow:
        """Return the payment's own row, not signed yet."""
        terms = self.offer.terms
        return PaymentRow(
            transfer_id=transfer_id,
            operator_id=self.source.operator_id,
            account_id=self.source.account_id,
            protocol=terms.protocol.value,
            origin=self.request.origin,
            url=self.request.url,
            recipient=terms.recipient,
            fee_payer=terms.fee_payer,
            raw=None,
            blockhash=None,
            nonce=None,
            expires_us=None,
        )
