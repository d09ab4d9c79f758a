"""Preflight: the on-chain data for a decision about a spend: the balance, the recipient, a blockhash.

It is read before the unit of work, which cannot wait for the chain. Amounts put in flight since then count as
already spent. Nothing here decides.
"""

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay_server.chain.protocol import Blockhash, Chain, TokenAccount
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine.policy import Recipient, Refusal
from agentpay_server.ledger import transactions
from agentpay_server.platform.errors import Problem, quote

_NO_OTHERS: Final[Mapping[str, AccountRecord | None]] = {}


class Contended(Exception):  # noqa: N818 - a signal, not an error
    """The balance may or may not include amounts in flight: it must be read again.

    Args:
        is_payments_only: whether only payments are in flight, which their sellers may never broadcast.
    """

    def __init__(self, *, is_payments_only: bool = False) -> None:
        super().__init__()
        self.is_payments_only = is_payments_only


@frozen(kw_only=True)
class Preflight:
    """The on-chain data for a request, and the reservations just before it was read.

    Attributes:
        balance_micro: micro-USDC that the source's token account holds.
        blockhash: a recent one, to sign with.
        in_flight_micro: micro-USDC that may or may not have left that balance already.
        in_flight_total_micro: running total of all amounts ever in flight.
        others: further recipients.
        newest_signature: the source's newest transaction; None if this service broadcasts.
    """

    balance_micro: int
    recipient: Recipient
    blockhash: Blockhash
    in_flight_micro: int
    in_flight_total_micro: int
    others: tuple[Recipient, ...] = ()
    newest_signature: str | None = None

    def available_micro(self, source: AccountRecord) -> int:
        """Return the micro-USDC that can certainly be spent; `source` is the current row, locked."""
        return self.balance_micro - self._uncertain_micro(source)

    def confirmed(
        self, connection: Connection, refusal: Refusal | None, source: AccountRecord, *, is_last_try: bool
    ) -> Refusal | None:
        """Return `refusal`, unless reading the balance again could change it.

        Raises:
            Contended: the balance may be sufficient.
        """
        is_short = refusal is not None and refusal.code == ErrorCode.INSUFFICIENT_BALANCE
        if is_short and not is_last_try and (uncertain := self._uncertain_micro(source)):
            payments = transactions.payments_of(connection, source.account_id)
            raise Contended(is_payments_only=uncertain == sum(tx.hold for tx in payments))
        return refusal

    def _uncertain_micro(self, source: AccountRecord) -> int:
        return uncertain_micro(source, self.in_flight_micro, self.in_flight_total_micro)


def uncertain_micro(source: AccountRecord, in_flight_micro: int, in_flight_total_micro: int) -> int:
    """Return the micro-USDC that may or may not have left a balance that was read on chain.

    Every amount in flight when the balance was read, or accepted since, may or may not be missing from it.
    Counting all of them can refuse too much, but never allow too much.

    Args:
        source: the account's current row.
        in_flight_micro: `in_flight` of its row just before the balance was read.
        in_flight_total_micro: `in_flight_total` of that row.
    """
    return in_flight_micro + source.in_flight_total - in_flight_total_micro


async def read_preflight(
    chain: Chain,
    to: str,
    *,
    source: AccountRecord,
    recipient: AccountRecord | None,
    others: Mapping[str, AccountRecord | None] = _NO_OTHERS,
    is_broadcast_by_us: bool = True,
) -> Preflight:
    """Read from the chain the data for a decision about a spend.

    Args:
        chain: the chain.
        to: the recipient, as the caller named it.
        source: the paying account, read just before.
        recipient: the account that `to` names, if this service holds it.
        others: see `Parties`.
        is_broadcast_by_us: see `Parties`.

    Raises:
        Problem: `invalid_recipient`.
        ChainUnreachableError: the chain could not be read.
    """
    address = to if recipient is None else recipient.usdc_token_account
    if to.startswith(identifiers.ACCOUNT) and recipient is None:
        raise invalid_recipient(to, "is not an account of this service")
    if recipient is None and not identifiers.is_public_key(address):
        raise invalid_recipient(to, "is neither an account_id nor an on-chain address")
    if source.usdc_token_account in (address, *others):
        raise invalid_recipient(to, "is the source account itself")
    newest = None if is_broadcast_by_us else await chain.newest_signature(source.usdc_token_account)
    held, target, *more = await chain.token_accounts([source.usdc_token_account, address, *others])
    return Preflight(
        balance_micro=spendable_micro(held),
        recipient=_recipient(to, target, recipient),
        others=tuple(
            _recipient(token_account, found, account)
            for (token_account, account), found in zip(others.items(), more, strict=True)
        ),
        newest_signature=newest,
        blockhash=await chain.latest_blockhash(),
        in_flight_micro=source.in_flight,
        in_flight_total_micro=source.in_flight_total,
    )


def _recipient(to: str, found: TokenAccount | None, account: AccountRecord | None) -> Recipient:
    if found is None:
        raise invalid_recipient(to, "is not an existing USDC token account")
    if found.is_frozen:
        raise invalid_recipient(to, "is a frozen token account")
    return Recipient(
        account_id=None if account is None else account.account_id,
        token_account=found.address,
        owner=found.owner,
    )


def spendable_micro(held: TokenAccount | None) -> int:
    """Return the micro-USDC that can leave a token account: 0 while it is frozen."""
    return 0 if held is None or held.is_frozen else held.amount_micro


def invalid_recipient(to: str, reason: str) -> Problem:
    """Return the error for a recipient that cannot be paid."""
    return Problem(
        ErrorCode.INVALID_RECIPIENT,
        f"to {quote(to)!r} {reason}.",
    )
