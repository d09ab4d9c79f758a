"""Where a settlement pays, and payouts of escrows that the books do not explain (interface O4).

The payee is paid at the token account that the session was opened for. If that no longer exists, its owner is
paid at the owner's associated token account, which the settlement creates if needed.

A session's escrow is paid out by a settlement that the service has stored, a channel's seller can settle at
most the vouchers that the service has stored, and what it does not settle returns. If the chain shows
anything else, the database is an older copy, someone else has the account's key, or the account could not
receive. The account is suspended, and an operator must review it.

A missing escrow proves nothing, because a node may lag; the escrow's own history does.
"""

import logging
from contextlib import suppress
from typing import Final, TypeVar

from attrs import evolve, frozen

from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.sessions import ClosingReason, SessionStatus
from agentpay_server.chain.custody import escrow_authority
from agentpay_server.chain.instructions import TOKEN_ACCOUNT_BYTES, associated_token_address
from agentpay_server.chain.protocol import ChainUnreachableError, Debit, TokenAccount
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, SessionRecord
from agentpay_server.engine import unknown_debits
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger import accounts, audit, transactions
from agentpay_server.ledger.apply import Outcome, Posting, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.platform.logs import log
from agentpay_server.sessions import outcomes, store
from agentpay_server.sessions.outcomes import Escrow
from agentpay_server.sessions.rules import MAX_PAYEES_CREATED, SettlementSplit


@frozen(kw_only=True)
class PayoutState:
    """The on-chain data for a settlement.

    Attributes:
        escrow: the session's token account; it holds at least the cap.
        payee: where the payee is paid.
        source: the account's token account; None if it does not exist.
    """

    escrow: TokenAccount
    payee: "Payee"
    source: TokenAccount | None


@frozen(kw_only=True)
class Payee:
    """Where a payee is paid.

    Attributes:
        is_frozen: whether the token account cannot receive now.
        is_missing: whether it does not exist, and its owner cannot be paid elsewhere.
        new_owner: the owner for whom the settlement creates an associated token account; None if it exists.
        rent: lamports of rent for the new token account.
    """

    token_account: str
    is_frozen: bool = False
    is_missing: bool = False
    new_owner: str | None = None
    rent: int = 0


@frozen(kw_only=True)
class Obstacle:
    """An obstacle to settling a session.

    Attributes:
        reason: the session's closing reason.
        refusal: the error for a caller that closes it.
    """

    reason: ClosingReason
    refusal: Refusal


async def read_payout(context: Context, session: SessionRecord) -> PayoutState:
    """Read the data for a settlement from the chain.

    Raises:
        ChainUnreachableError: the chain did not respond or does not show the whole cap in the escrow, or
            signing is suspended for the account.
    """
    account = await context.database.read(accounts.ACCOUNTS.existing, session.account_id)
    if account.suspended_us is not None:
        raise ChainUnreachableError("the account is blocked: nothing is signed for it")
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
        # A node lags, or in a restored database a settlement that it does not know has paid out the escrow.
        with suppress(ChainUnreachableError):
            await _compare(context, session, account)
        raise ChainUnreachableError(f"the chain does not show the escrow of {session.session_id}")
    paid = _payee(session, payee, fallback, others[0] if others else None)
    if paid.new_owner is not None:
        paid = evolve(paid, rent=await chain.rent_exemption(TOKEN_ACCOUNT_BYTES))
    return PayoutState(escrow=held, payee=paid, source=source)


def obstacle(session: SessionRecord, legs: SettlementSplit, state: PayoutState) -> Obstacle | None:
    """Return an obstacle to settling, if any. A side that receives nothing cannot be one."""
    if state.escrow.is_frozen:
        address = session.escrow_token_account
        return _obstacle(ClosingReason.ESCROW_FROZEN, f"The escrow's token account {address} is frozen")
    if legs.settled_micro:
        whose = f"The payee's token account {state.payee.token_account}"
        if state.payee.is_missing:
            gone = f"{whose} does not exist, and none can be created for its owner"
            return _obstacle(ClosingReason.PAYEE_MISSING, gone)
        if state.payee.is_frozen:
            return _obstacle(ClosingReason.PAYEE_FROZEN, f"{whose} is frozen")
    if legs.account_leg_micro:
        if state.source is None:
            return _obstacle(ClosingReason.ACCOUNT_MISSING, "The account's own token account is missing")
        if state.source.is_frozen:
            return _obstacle(ClosingReason.ACCOUNT_FROZEN, "The account's own token account is frozen")
    return None


def _payee(
    session: SessionRecord, held: TokenAccount | None, fallback: str | None, found: TokenAccount | None
) -> Payee:
    """Return where a payee is paid.

    Args:
        session: the session.
        held: the token account that it was opened for; None if it does not exist.
        fallback: the associated token account of its owner; None if the owner is unknown.
        found: the content of `fallback`, unless it is the same account; None if it does not exist.
    """
    address = session.recipient_token_account
    if held is not None:
        return Payee(token_account=address, is_frozen=held.is_frozen)
    if fallback is None:
        return Payee(token_account=address, is_missing=True)
    if found is None:
        return Payee(token_account=fallback, new_owner=session.recipient_owner)
    # The ownership of an associated token account may have been transferred away from the payee.
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
    f"The payee's token account no longer exists, and the limit of {MAX_PAYEES_CREATED} new ones in 24 "
    "hours for payees of this account is reached",
)


S = TypeVar("S")

logger: logging.Logger = logging.getLogger(__name__)


async def _compare(context: Context, session: SessionRecord, account: AccountRecord) -> None:
    """Suspend the account of a session whose escrow was paid out by a transaction that the books do not know.

    Raises:
        ChainUnreachableError: the escrow's history cannot be read at the moment.
    """
    owner = context.signer.address(escrow_authority(account.key_index))
    async for batch in context.chain.deposits(session.escrow_token_account, after=None):
        for debit in batch.debits:
            if not await unknown_debits.is_proved(context, debit, session.account_id, owner=owner):
                raise ChainUnreachableError("a node reports a payout that the escrow's key has not signed")
            if await context.database.run(_suspend, context, session.session_id, debit):
                report(session.session_id, session.account_id, debit.signature)


def suspending(
    outcome: Outcome[S],
    escrow: Escrow,
    tx_signature: str | None,
    *,
    handed_out_micro: int,
    settled_micro: int,
) -> Outcome[S]:
    """Return an outcome with an unknown payout, which also suspends the account.

    Args:
        outcome: the outcome without that.
        escrow: what was paid out.
        tx_signature: of the payout; None while a channel only records what its seller has settled.
        handed_out_micro: the most that the books let the payee settle.
        settled_micro: what the escrow has paid, or what a channel records as settled.
    """
    record = audit.Record(
        actor=audit.ServerActor(outcome.operator_id),
        action=audit.UNKNOWN_PAYOUT,
        subject=escrow.owner_id,
        after=audit.given(
            account_id=escrow.account_id,
            tx_signature=tx_signature,
            escrow_token_account=escrow.token_account,
            running_total_usdc=audit.usdc(handed_out_micro),
            settled_usdc=audit.usdc(settled_micro),
        ),
    )
    return outcome.also(Posting(account_id=escrow.account_id, suspends=True), audit=(record,))


def report(owner_id: str, account_id: str, tx_signature: str | None) -> None:
    """Log an unknown payout, after the commit that suspended its account."""
    log(
        logger,
        logging.ERROR,
        "session.unknown_payout",
        session_id=owner_id,
        account_id=account_id,
        tx_signature=tx_signature,
    )


def _suspend(connection: Connection, context: Context, session_id: str, debit: Debit) -> bool:
    """Suspend the account, unless the books explain the payout; return whether it was suspended for it."""
    # The account first, then the session, as in every unit of work.
    account_id = store.SESSIONS.existing(connection, session_id).account_id
    accounts.ACCOUNTS.existing(connection, account_id, lock=True)
    session = store.SESSIONS.existing(connection, session_id, lock=True)
    if session.status != SessionStatus.CLOSING:
        # Another server was faster: its settlement has landed.
        return False
    # A settlement in flight is stored before it is sent, so it explains its payout.
    if unknown_debits.is_explained(connection, debit, session.account_id):
        return False
    unit = Unit.begin(connection, context)
    transactions.insert_landed(
        connection,
        unit.now_us,
        signature=debit.signature,
        kind=unknown_debits.UNKNOWN,
        subject_id=session_id,
        account_id=session.account_id,
    )
    outcome = suspending(
        outcomes.outcome_of(session),
        outcomes.escrow_of(session),
        debit.signature,
        handed_out_micro=session.running_total,
        settled_micro=debit.amount_micro,
    )
    apply(unit, outcome)
    return True
