"""What a settlement needs to know of the chain, whom it pays where, and what keeps it from paying.

Nothing here signs, stores or sends. The payee is paid at the token account that the session was opened for.
Once that is gone its owner is paid, at the owner's associated token account, which the settlement creates if
need be.
"""

from typing import Final

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay.contract.sessions import ClosingReason
from agentpay_server.accounts.store import AccountRecord
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.chain.protocol import ChainUnavailableError, TokenAccount
from agentpay_server.context import Context
from agentpay_server.money.policy import Refusal
from agentpay_server.sessions.rules import MOST_PAYEES_CREATED, Settlement
from agentpay_server.sessions.store import SessionRecord


@frozen(kw_only=True)
class Scene:
    """What a settlement needs to know of the chain.

    Attributes:
        escrow: the session's token account, with the cap in it at least.
        payee: where the payee is paid.
        source: the account's token account; None when it is gone.
    """

    escrow: TokenAccount
    payee: "Payee"
    source: TokenAccount | None


@frozen(kw_only=True)
class Payee:
    """Where a payee is paid.

    Attributes:
        token_account: address of the token account.
        is_frozen: whether it can receive nothing now.
        is_missing: whether it is gone, and its owner cannot be paid elsewhere.
        new_owner: for whom the settlement creates it, as an associated token account; None where it exists.
    """

    token_account: str
    is_frozen: bool = False
    is_missing: bool = False
    new_owner: str | None = None


@frozen(kw_only=True)
class Obstacle:
    """What keeps a session from being settled.

    Attributes:
        reason: what the session says of it.
        refusal: what whoever closes it is told.
    """

    reason: ClosingReason
    refusal: Refusal


async def look(context: Context, session: SessionRecord, account: AccountRecord) -> Scene:
    """Read from the chain what a settlement needs.

    Raises:
        ChainUnavailableError: it did not answer, or does not show the escrow with the whole cap in it: a node
            that lags, or a settlement that has landed. Neither is settled (again) on such a look. Or nothing
            is signed for the account now.
    """
    if account.stopped_us is not None:
        raise ChainUnavailableError("nothing is signed for the account")
    chain, owner = context.chain, session.recipient_owner
    fallback = None if owner is None else associated_token_address(owner, chain.usdc_mint)
    addresses = [
        session.escrow_token_account,
        account.usdc_token_account,
        session.recipient_token_account,
        *(() if fallback in (None, session.recipient_token_account) else (fallback,)),
    ]
    held, source, payee, *others = await chain.token_accounts(addresses)
    if held is None or held.amount_micro < session.cap:
        raise ChainUnavailableError(f"the chain does not show the escrow of {session.session_id}")
    return Scene(
        escrow=held,
        payee=_payee(session, payee, fallback, others[0] if others else None),
        source=source,
    )


def obstacle(session: SessionRecord, legs: Settlement, scene: Scene) -> Obstacle | None:
    """Return what keeps the chain from settling, as far as a look tells; a side that gets nothing cannot."""
    if scene.escrow.is_frozen:
        address = session.escrow_token_account
        return _obstacle(ClosingReason.ESCROW_FROZEN, f"The escrow's token account {address} is frozen")
    if legs.settled_micro:
        whose = f"The payee's token account {scene.payee.token_account}"
        if scene.payee.is_missing:
            gone = f"{whose} is gone, and its owner cannot be given another"
            return _obstacle(ClosingReason.PAYEE_MISSING, gone)
        if scene.payee.is_frozen:
            return _obstacle(ClosingReason.PAYEE_FROZEN, f"{whose} is frozen")
    if legs.account_leg_micro:
        if scene.source is None:
            return _obstacle(ClosingReason.ACCOUNT_MISSING, "The account's own token account is gone")
        if scene.source.is_frozen:
            return _obstacle(ClosingReason.ACCOUNT_FROZEN, "The account's own token account is frozen")
    return None


def _payee(
    session: SessionRecord, held: TokenAccount | None, fallback: str | None, found: TokenAccount | None
) -> Payee:
    """Return where a payee is paid.

    Args:
        session: the session.
        held: the token account that it was opened for; None when it is gone.
        fallback: the associated token account of that one's owner; None when the owner is not known.
        found: what is there, unless it is the same; None when there is nothing.
    """
    address = session.recipient_token_account
    if held is not None:
        return Payee(token_account=address, is_frozen=held.is_frozen)
    if fallback is None:
        return Payee(token_account=address, is_missing=True)
    if found is None:
        return Payee(token_account=fallback, new_owner=session.recipient_owner)
    # An associated token account can be handed over to somebody else, who is not the payee.
    is_theirs = found.owner == session.recipient_owner
    return Payee(token_account=fallback, is_frozen=found.is_frozen, is_missing=not is_theirs)


def _obstacle(reason: ClosingReason, fact: str) -> Obstacle:
    return Obstacle(
        reason=reason,
        refusal=Refusal(
            code=ErrorCode.TRANSFER_FAILED,
            message=f"{fact}, so the session cannot be settled. Nothing moved, and the money is safe in the "
            "escrow; close the session again once this is resolved.",
        ),
    )


REFUSED_BY_CHAIN: Final = Obstacle(
    reason=ClosingReason.SETTLEMENT_REFUSED,
    refusal=Refusal(
        code=ErrorCode.TRANSFER_FAILED,
        message="The chain refused the settlement. Nothing moved, and the money is safe in the escrow; close "
        "the session again to retry.",
    ),
)
TOO_MANY_CREATED: Final = _obstacle(
    ClosingReason.PAYEE_MISSING,
    f"The payee's token account is gone, and within a day {MOST_PAYEES_CREATED} were created for payees of "
    "this account",
)
