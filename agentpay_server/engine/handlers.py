"""The interface between the settlement engine (`settlement.py`) and the handlers of its transactions.

The engine decides when a transaction has ended; the handler of its kind books the outcome.
"""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

from attrs import field, frozen

from agentpay_server.chain.protocol import Blockhash, Chain, Failure, SignatureStatus, SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine.broadcast import absence
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import ChainTransaction, Kind, State
from agentpay_server.platform.clock import SECOND_US, real_now_us
from agentpay_server.platform.crash_points import Operation

S = TypeVar("S")

LEASE_US: Final = 30 * SECOND_US
"""How long, in real time, a process keeps a transaction's lease without renewing it."""


@frozen
class Unit:
    """A running unit of work.

    Attributes:
        afterwards: actions to run after its commit.
    """

    connection: Connection
    context: Context
    now_us: int
    afterwards: list[Callable[[], Awaitable[None]]] = field(factory=list)


@frozen(kw_only=True)
class Replacement:
    """The replacement of an expired transaction.

    Attributes:
        detail: the handler's, for the row.
        rent: lamports of rent that it pays.
    """

    signed: SignedTransaction
    detail: str | None = None
    rent: int = 0


@frozen(kw_only=True)
class SigningInputs:
    """The inputs for signing a replacement.

    Attributes:
        source: the signing account, locked.
        prepared: the result of `Handler.prepare`.
    """

    source: AccountRecord
    blockhash: Blockhash
    prepared: Any


class Handler(Generic[S]):
    """Books the outcomes of one kind of transaction. Stateless.

    The methods run in the engine's unit of work, after it has changed the row's state. So each outcome is
    booked once, however many processes drive the transaction.
    """

    kind: ClassVar[Kind]

    must_be_irreversible: ClassVar[bool] = False
    """Whether an outcome must be irreversible before the subject's next transaction is signed."""

    is_broadcast_by_us: ClassVar[bool] = True
    """Whether this service sends the transaction. Otherwise it is looked up on chain, and never replaced."""

    announces: ClassVar[bool] = False
    """Whether to emit an event that the transaction was sent, if it is not final at once."""

    supersedes: ClassVar[bool] = True
    """Whether a late landing ends the replacement transaction. Otherwise both continue."""

    def operation(self, subject: S) -> Operation:
        """Return the transaction's purpose, for fault points."""
        raise NotImplementedError

    def load(self, connection: Connection, subject_id: str) -> S:
        """Return the stored subject."""
        raise NotImplementedError

    def announced(self, unit: Unit, tx: ChainTransaction, subject: S) -> None:
        """Record that the transaction was sent and is not final yet."""

    def settled(self, unit: Unit, tx: ChainTransaction, subject: S) -> S:
        """Book that the transaction has landed."""
        raise NotImplementedError

    def failed(self, unit: Unit, tx: ChainTransaction, subject: S, failure: Failure) -> S:
        """Book that the chain rejected the transaction: it moved nothing."""
        raise NotImplementedError

    async def find(
        self, chain: Chain, tx: ChainTransaction, *, proof_height: int | None
    ) -> SignatureStatus | None:
        """Look a transaction up on chain; None if it is not there (yet).

        With `proof_height`, None proves that no block up to this height contains it.

        Raises:
            ChainUnavailableError: the result is unknown.
        """
        return await chain.signature_status(
            tx.signature, absence=absence(tx.debits, tx.last_valid_block_height, proof_height)
        )

    async def prepare(self, context: Context, subject: S) -> object:
        """Read from the chain what signing a replacement needs besides a blockhash.

        Raises:
            ChainUnavailableError: nothing is signed for now.
        """

    def sign_replacement(
        self, unit: Unit, tx: ChainTransaction, subject: S, means: SigningInputs
    ) -> Replacement | Any:  # noqa: ANN401 - the reason for `dropped`
        """Sign a replacement of an expired transaction, or return a reason for `dropped`."""
        raise NotImplementedError

    def dropped(self, unit: Unit, tx: ChainTransaction, subject: S, reason: Any) -> S:  # noqa: ANN401
        """Book that the transaction has expired and is not replaced."""
        raise NotImplementedError

    def landed_late(self, unit: Unit, tx: ChainTransaction) -> str | None:
        """Book a transaction that landed after it was considered expired.

        Returns:
            The signature of its replacement, if any.
        """
        raise NotImplementedError

    def report(self, context: Context, tx: ChainTransaction, subject: S, detail: str | None) -> None:
        """Count and log an outcome after its commit; `detail` is the chain's reason for a failure."""


def pending_transaction(
    signed: SignedTransaction,
    *,
    kind: Kind,
    subject_id: str,
    account_id: str,
    now_us: int,
    held: int = 0,
    credits_account_id: str | None = None,
    spent_us: int | None = None,
    spent_total: int | None = None,
    detail: str | None = None,
    rent: int = 0,
) -> ChainTransaction:
    """Return the row of a new signed transaction, leased by this process."""
    return ChainTransaction(
        signature=signed.signature,
        kind=kind,
        subject_id=subject_id,
        account_id=account_id,
        held=held,
        credits_account_id=credits_account_id,
        spent_us=spent_us,
        spent_total=spent_total,
        raw=signed.raw,
        last_valid_block_height=signed.last_valid_block_height,
        detail=detail,
        created_us=now_us,
        leased_until_us=real_now_us() + LEASE_US,
        fee=signed.fee_lamports,
        rent=rent,
    )


def watched_transaction(
    signed: SignedTransaction, *, kind: Kind, account_id: str, now_us: int
) -> ChainTransaction:
    """Return the row of a landed transaction that can still be undone. It holds no amount."""
    return ChainTransaction(
        signature=signed.signature,
        kind=kind,
        subject_id=account_id,
        account_id=account_id,
        state=State.CONFIRMED,
        raw=signed.raw,
        last_valid_block_height=signed.last_valid_block_height,
        created_us=now_us,
        ended_us=now_us,
    )
