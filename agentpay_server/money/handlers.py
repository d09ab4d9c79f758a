"""The interface between the settlement engine and the handlers of its transactions.

A handler books the outcomes of one kind of transaction. The engine (`settlement.py`) decides when.
"""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

from attrs import field, frozen

from agentpay_server.accounts.store import AccountRecord
from agentpay_server.chain.protocol import Blockhash, Chain, Failure, SignatureStatus, SignedTransaction
from agentpay_server.clock import SECOND_US, real_now_us
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation
from agentpay_server.database.connection import Connection
from agentpay_server.money.transactions import ChainTransaction, Kind, State

S = TypeVar("S")

LEASE_US: Final = 30 * SECOND_US
"""How long, in real time, a process keeps the lease of a transaction without renewing it."""


@frozen
class Unit:
    """A running unit of work.

    Attributes:
        connection: its connection.
        context: the parts of the server.
        now_us: the current time.
        afterwards: actions to run after its commit.
    """

    connection: Connection
    context: Context
    now_us: int
    afterwards: list[Callable[[], Awaitable[None]]] = field(factory=list)


@frozen(kw_only=True)
class Again:
    """A transaction that replaces an expired one, and the handler's log detail."""

    signed: SignedTransaction
    detail: str | None = None


@frozen(kw_only=True)
class SigningInputs:
    """The inputs for signing a replacement.

    Attributes:
        source: the account whose keys sign, locked.
        blockhash: a recent one, to sign with.
        prepared: other data that the handler has read from the chain.
    """

    source: AccountRecord
    blockhash: Blockhash
    prepared: Any


class Handler(Generic[S]):
    """Books each possible outcome of a kind of transaction for its subject.

    It has no state. Its methods run within the engine's unit of work, which has already changed the row's
    state: each is called once per transaction, however many processes drive it.
    """

    kind: ClassVar[Kind]

    must_be_irreversible: ClassVar[bool] = False
    """Whether the outcome must be irreversible before the next transaction of the subject is signed."""

    is_broadcast_by_us: ClassVar[bool] = True
    """Whether this service sends it. What others broadcast is found on chain, and never signed again."""

    announces: ClassVar[bool] = False
    """Whether to emit an event that the transaction was sent, if its outcome takes longer."""

    supersedes: ClassVar[bool] = True
    """Whether a late landing ends the replacement transaction, rather than continuing both."""

    def operation(self, subject: S) -> Operation:
        """Return the purpose of the transaction, for fault points."""
        raise NotImplementedError

    def load(self, connection: Connection, subject_id: str) -> S:
        """Return the stored subject."""
        raise NotImplementedError

    def announced(self, unit: Unit, tx: ChainTransaction, subject: S) -> None:
        """Record that the transaction was sent and is not final yet."""

    def settled(self, unit: Unit, tx: ChainTransaction, subject: S) -> S:
        """Book that it has landed."""
        raise NotImplementedError

    def failed(self, unit: Unit, tx: ChainTransaction, subject: S, failure: Failure) -> S:
        """Book that it moved nothing, because the chain has rejected it."""
        raise NotImplementedError

    async def find(
        self,
        chain: Chain,
        tx: ChainTransaction,
        *,
        is_for_proof: bool,  # noqa: ARG002
    ) -> SignatureStatus | None:
        """Ask the chain what became of a transaction; None when it is not there (yet).

        Args:
            chain: the chain.
            tx: the transaction.
            is_for_proof: whether None is to prove that it is in no block up to the height that was read last.

        Raises:
            ChainUnavailableError: nothing is known.
        """
        return await chain.signature_status(tx.signature)

    async def prepare(self, context: Context, subject: S) -> object:
        """Read from the chain the data, besides a blockhash, for signing a replacement.

        Raises:
            ChainUnavailableError: nothing is signed for now.
        """

    def signed_again(self, unit: Unit, tx: ChainTransaction, subject: S, means: SigningInputs) -> Again | Any:  # noqa: ANN401 - why there is none, for `dropped`
        """Sign a replacement of an expired transaction, or return the reason why there will be none."""
        raise NotImplementedError

    def dropped(self, unit: Unit, tx: ChainTransaction, subject: S, reason: Any) -> S:  # noqa: ANN401
        """Book that it has expired and is not replaced."""
        raise NotImplementedError

    def landed_late(self, unit: Unit, tx: ChainTransaction) -> str | None:
        """Book the effects of a transaction that landed after it was considered expired.

        Returns:
            The signature of its replacement, if there is one.
        """
        raise NotImplementedError

    def report(self, context: Context, tx: ChainTransaction, subject: S, detail: str | None) -> None:
        """Count and log an outcome, after its commit; `detail` is the chain's reason for a failure."""


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
    )


def watched_transaction(
    signed: SignedTransaction, *, kind: Kind, account_id: str, now_us: int
) -> ChainTransaction:
    """Return the row of a landed transaction that could still be undone; it takes nothing from a balance."""
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
