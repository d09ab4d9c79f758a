"""What the settlement engine and the handlers of its transactions say to each other.

A handler books what becomes of one kind of transaction. The engine (`settlement.py`) decides when.
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
"""How long, in real time, the process that drives a transaction keeps it without renewing its claim."""


@frozen
class Unit:
    """A unit of work under way.

    Attributes:
        connection: where it writes.
        context: the parts of the server.
        now_us: when it is.
        afterwards: what to do after its commit.
    """

    connection: Connection
    context: Context
    now_us: int
    afterwards: list[Callable[[], Awaitable[None]]] = field(factory=list)


@frozen(kw_only=True)
class Again:
    """A transaction that is signed in the place of an expired one, and its handler's word about it."""

    signed: SignedTransaction
    detail: str | None = None


@frozen(kw_only=True)
class SigningInputs:
    """What signing again needs.

    Attributes:
        source: the account whose keys sign, locked.
        blockhash: a recent one, to sign under.
        prepared: what the handler has read from the chain besides.
    """

    source: AccountRecord
    blockhash: Blockhash
    prepared: Any


class Handler(Generic[S]):
    """What becomes of the subject of a transaction at each end that the transaction can have.

    It has no state. Its methods run within the engine's unit of work, which has changed the row's state
    before: each is called once for a transaction, however many drive it.
    """

    kind: ClassVar[Kind]

    must_be_irreversible: ClassVar[bool] = False
    """Whether an end that may yet be undone is none: nothing may be signed after it before that."""

    is_broadcast_by_us: ClassVar[bool] = True
    """Whether this service sends it. What others broadcast is found on chain, and never signed again."""

    announces: ClassVar[bool] = False
    """Whether it is told that the transaction was sent, where its end has to be awaited."""

    supersedes: ClassVar[bool] = True
    """Whether a late landing makes an end of what was signed in its place, rather than leave it alone."""

    def operation(self, subject: S) -> Operation:
        """What the transaction is for, for fault points."""
        raise NotImplementedError

    def load(self, connection: Connection, subject_id: str) -> S:
        """Return the subject as it is stored."""
        raise NotImplementedError

    def announced(self, unit: Unit, tx: ChainTransaction, subject: S) -> None:
        """Tell that the transaction was handed over and is not final yet."""

    def settled(self, unit: Unit, tx: ChainTransaction, subject: S) -> S:
        """Book that it has landed."""
        raise NotImplementedError

    def failed(self, unit: Unit, tx: ChainTransaction, subject: S, failure: Failure) -> S:
        """Book that it moved nothing: the chain has refused it."""
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
        """Read from the chain what signing again needs besides a blockhash.

        Raises:
            ChainUnavailableError: nothing is signed now.
        """

    def signed_again(self, unit: Unit, tx: ChainTransaction, subject: S, means: SigningInputs) -> Again | Any:  # noqa: ANN401 - why there is none, for `dropped`
        """Sign another transaction in the place of an expired one, or return why there will be none."""
        raise NotImplementedError

    def dropped(self, unit: Unit, tx: ChainTransaction, subject: S, reason: Any) -> S:  # noqa: ANN401
        """Book that it has expired and that no other is signed in its place."""
        raise NotImplementedError

    def landed_late(self, unit: Unit, tx: ChainTransaction) -> str | None:
        """Book what it did, though it had been believed expired.

        Returns:
            The signature of the transaction in its place, if there is one.
        """
        raise NotImplementedError

    def report(self, context: Context, tx: ChainTransaction, subject: S, detail: str | None) -> None:
        """Count and log an end, after its commit; `detail` is what the chain has said of a failure."""


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
    """Return the row of a signed transaction that is to be stored, leased by this process."""
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
    """Return the row of a transaction that has landed and may yet vanish: it takes nothing from a balance."""
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
