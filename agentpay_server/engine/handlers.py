"""The interface between the settlement engine (`settlement.py`) and the handlers of its transactions.

The engine decides when a transaction has ended; the handler of its kind says what that changes, and
`ledger/apply.py` writes it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from attrs import field, frozen

from agentpay_server.chain.protocol import Blockhash, Chain, ChainFailure, SignatureStatus, SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine.broadcast import absence
from agentpay_server.ledger.apply import Outcome, Unit
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import Kind, State, StoredTransaction
from agentpay_server.platform.clock import SECOND_US, real_now_us

S = TypeVar("S")

LEASE_US: Final = 30 * SECOND_US
"""How long, in real time, a process keeps a transaction's lease without renewing it."""


@frozen(kw_only=True)
class Ending(Generic[S]):
    """The end of a transaction, for the handler of its kind.

    Attributes:
        tx: the transaction, in its final state.
        subject: its subject, before the outcome.
        failure: why the chain rejected it; None otherwise.
        reason: what `Handler.sign_replacement` returned instead of a replacement of an expired one.
        accounts: the locked rows of `Handler.accounts`, by identifier; empty unless the handler needs them.
        received_by: for a late landing, the recipients whose history already has it as a deposit.
    """

    tx: StoredTransaction
    subject: S
    now_us: int
    failure: ChainFailure | None = None
    reason: Any = None
    accounts: Mapping[str, AccountRecord] = field(factory=dict)
    received_by: frozenset[str] = frozenset()


@frozen(kw_only=True)
class Resigning(Generic[S]):
    """What is needed to sign a replacement.

    Attributes:
        unit: the unit of work that stores it.
        tx: the expired transaction.
        source: the signing account, locked.
        prepared: the result of `Handler.prepare`.
    """

    unit: Unit
    tx: StoredTransaction
    subject: S
    source: AccountRecord
    blockhash: Blockhash
    prepared: Any


@frozen(kw_only=True)
class Replacement:
    """The replacement of an expired transaction.

    Attributes:
        change: what it changes of the subject.
        detail: the handler's, for the row.
        rent: lamports of rent that it pays.
    """

    signed: SignedTransaction
    change: Change[Any]
    detail: str | None = None
    rent: int = 0


class Handler(Generic[S]):
    """Says what the outcomes of one kind of transaction change. Stateless.

    The engine changes the row's state and writes the outcome in one unit of work. So each outcome is written
    once, however many processes drive the transaction. `settled`, `failed`, `dropped` and `landed_late` read
    and write nothing.
    """

    kind: ClassVar[Kind]

    must_be_irreversible: ClassVar[bool] = False
    """Whether an outcome must be irreversible before the subject's next transaction is signed."""

    is_broadcast_by_us: ClassVar[bool] = True
    """Whether this service sends the transaction. Otherwise it is looked up on chain, and never replaced."""

    is_replaced: ClassVar[bool] = True
    """Whether another transaction follows an expired one that this service sends. Otherwise its expiry is an
    outcome, which does not wait for an account that may not sign."""

    announces: ClassVar[bool] = False
    """Whether to emit an event that the transaction was sent, if it is not final at once."""

    supersedes: ClassVar[bool] = True
    """Whether a late landing ends the replacement transaction. Otherwise both continue."""

    needs_accounts: ClassVar[bool] = False
    """Whether every outcome depends on the accounts, which are locked then. A late landing always locks
    them."""

    changes_due_times: ClassVar[bool] = True
    """Whether an outcome may change when other work is due, apart from deliveries, which note it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def load(self, connection: Connection, subject_id: str, *, lock: bool = False) -> S:
        """Return the stored subject."""
        raise NotImplementedError

    def accounts(self, tx: StoredTransaction, subject: S) -> tuple[str, ...]:  # noqa: ARG002
        """Return the accounts that an outcome may change."""
        return (tx.account_id,)

    def newest_signature(self, subject: S) -> str | None:
        """Return the signature of the subject's newest transaction."""
        raise NotImplementedError

    def announced(self, ending: Ending[S]) -> Outcome[S]:
        """Return the outcome that the transaction was sent and is not final yet."""
        raise NotImplementedError

    def settled(self, ending: Ending[S]) -> Outcome[S]:
        """Return the outcome of a transaction that has landed."""
        raise NotImplementedError

    def failed(self, ending: Ending[S]) -> Outcome[S]:
        """Return the outcome of a transaction that the chain rejected: it moved nothing."""
        raise NotImplementedError

    async def find(
        self, chain: Chain, tx: StoredTransaction, *, proof_height: int | None
    ) -> SignatureStatus | None:
        """Look a transaction up on chain; None if it is not there (yet).

        With `proof_height`, None proves that no block up to this height contains it.

        Raises:
            ChainUnreachableError: the result is unknown.
        """
        return await chain.signature_status(
            tx.signature, absence=absence(tx.debits, tx.last_valid_block_height, proof_height)
        )

    async def prepare(self, subject: S) -> object:
        """Read from the chain what signing a replacement needs besides a blockhash.

        Raises:
            ChainUnreachableError: nothing is signed for now.
        """

    def sign_replacement(self, resigning: Resigning[S]) -> Replacement | Any:  # noqa: ANN401
        """Sign a replacement of an expired transaction, or return a reason for `dropped`."""
        raise NotImplementedError

    def dropped(self, ending: Ending[S]) -> Outcome[S]:
        """Return the outcome of a transaction that has expired and is not replaced."""
        raise NotImplementedError

    def landed_late(self, ending: Ending[S]) -> Outcome[S]:
        """Return the outcome of a transaction that landed after it was considered expired."""
        raise NotImplementedError

    def report(self, ending: Ending[S]) -> None:
        """Count and log an outcome after its commit; `ending` has the subject as it is now."""


def pending_transaction(
    signed: SignedTransaction,
    *,
    kind: Kind,
    subject_id: str,
    account_id: str,
    now_us: int,
    hold: int = 0,
    credits_account_id: str | None = None,
    spent_us: int | None = None,
    spent_total: int | None = None,
    detail: str | None = None,
    rent: int = 0,
    by_operator: bool = False,
) -> StoredTransaction:
    """Return the row of a new signed transaction, leased by this process."""
    return StoredTransaction(
        signature=signed.signature,
        kind=kind,
        subject_id=subject_id,
        account_id=account_id,
        hold=hold,
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
        by_operator=by_operator,
    )


def watched_transaction(
    signed: SignedTransaction, *, kind: Kind, account_id: str, now_us: int
) -> StoredTransaction:
    """Return the row of a landed transaction that can still be undone. It holds no amount."""
    return StoredTransaction(
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
