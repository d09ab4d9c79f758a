"""What the service asks of a chain, and how a chain fails. Nothing here knows which chain it is.

The protocol is small on purpose: every rule about sending, waiting, expiry and signing again is written once,
over these calls, in `money/broadcast.py`.

Money that came into a token account is told by the chain, whoever sent it, and booked once by the service:
unique on `(signature, token_account)`, without transactions of its own, the cursor in the same commit as what
it passed. `Chain.token_accounts` tells a hundred balances at a time: an account that holds what is booked
need not be looked at.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

from attrs import Factory, field, frozen

BLOCKHASH_LIFE_BLOCKS: Final = 150
"""In how many blocks a transaction can land, at most: those up to its last valid block height."""

MOST_COMPUTE_UNITS: Final = 1_400_000
"""The highest limit that a transaction can ask for."""


class ChainUnavailableError(Exception):
    """The chain did not answer, or its answer was lost. Whether a send arrived is unknown."""


class DoubtfulNodeError(ChainUnavailableError):
    """A node does not know a signature, and cannot be relied on: it lags, or tells wrongly where it stands.

    It proves nothing. To send the same bytes again does no harm.
    """


class FailureReason(StrEnum):
    """Why a transaction that reached the chain moved nothing, as far as the service tells reasons apart."""

    INSUFFICIENT_FUNDS = "insufficient_funds"
    ACCOUNT_FROZEN = "account_frozen"
    ACCOUNT_MISSING = "account_missing"
    ACCOUNT_NOT_EMPTY = "account_not_empty"
    OTHER = "other"


@frozen(kw_only=True)
class ComputeBudget:
    """What a transaction asks of the validators, and offers them for being taken early.

    Attributes:
        unit_limit: compute units that it may use; it fails when it needs more.
        unit_price_micro_lamports: the priority fee for each unit of the limit, used or not, in millionths of
            a lamport.
        unit_limits: lower limits of transactions whose needs are known, by their shape (see `signing.py`).
    """

    unit_limit: int
    unit_price_micro_lamports: int
    unit_limits: Mapping[str, int] = Factory(dict)


@frozen(kw_only=True)
class Blockhash:
    """A recent blockhash, and what else a new transaction needs to land.

    Attributes:
        value: base58 text.
        last_valid_block_height: a transaction that names it can land up to this block height, never above.
        compute_budget: what the transaction is to say about its computing; None to say nothing.
    """

    value: str
    last_valid_block_height: int
    compute_budget: ComputeBudget | None = None


@frozen(kw_only=True)
class TokenAccount:
    """A USDC token account as it stands on chain.

    Attributes:
        address: the token account.
        owner: the address that may spend from it.
        amount_micro: micro-USDC held.
        is_frozen: whether the mint's freeze authority has frozen it.
    """

    address: str
    owner: str
    amount_micro: int
    is_frozen: bool


@frozen(kw_only=True)
class Failure:
    """A transaction that the chain processed and refused: it moved nothing and never will.

    Attributes:
        reason: what kind of refusal.
        detail: the chain's own words, for logs.
        chain_signature: the transaction's name on chain, where it was found by other means.
    """

    reason: FailureReason
    detail: str
    chain_signature: str | None = None


@frozen(kw_only=True)
class SignatureStatus:
    """What the chain knows of a signature.

    Attributes:
        is_final: whether it has reached the finality that counts as settled here. A failure is final only
            when it is irreversible: should its block vanish, the same bytes may yet succeed.
        failure: why it moved nothing; None when it succeeded, or is not final yet.
        is_irreversible: whether it can no longer vanish with the block that it is in (interface T12). What is
            irreversible is final.
        is_refused: whether the chain has refused it without executing it, and never will execute it: it has
            expired, whatever the block height. It is not final then, because it is on no chain.
        chain_signature: the transaction's name on chain, where it was found by other means.
    """

    is_final: bool
    failure: Failure | None = None
    is_irreversible: bool = Factory(lambda self: self.is_final, takes_self=True)
    is_refused: bool = False
    chain_signature: str | None = None


@frozen(kw_only=True)
class SignedTransaction:
    """Bytes that may be sent, any number of times: the chain executes one signature at most once.

    Attributes:
        signature: base58 text of the first signature, which names the transaction.
        raw: the wire bytes, at most 1,232; kept out of `repr`.
        last_valid_block_height: above this block height it can no longer land.
    """

    signature: str
    raw: bytes = field(repr=False)
    last_valid_block_height: int


@frozen(kw_only=True)
class Cosigned:
    """A transaction that we have signed, and whose fee payer is somebody else.

    Attributes:
        token_account: the account that it takes from.
        signature: ours.
        message_hash: names the message that all its signatures sign.
        after: the newest transaction of the token account before it was signed; None where that is not known.
    """

    token_account: str
    signature: str
    message_hash: str
    after: str | None = None


class Chain(Protocol):
    """A Solana cluster. Every coroutine may raise `ChainUnavailableError`."""

    @property
    def usdc_mint(self) -> str:
        """Address of the USDC mint."""
        ...

    @property
    def cluster_name(self) -> str:
        """`mainnet-beta`, `devnet`, `testnet`, `localnet` for any other cluster, or `embedded`."""
        ...

    @property
    def is_test_chain(self) -> bool:
        """Whether money on it is worthless, so that the sandbox may mint."""
        ...

    @property
    def landing_seconds(self) -> float:
        """How long after a send it is hardly worth asking what became of it; 0 where it executes at once."""
        ...

    @property
    def blockhash_life_seconds(self) -> float:
        """How long a transaction may land after it was signed, by the pace of the chain's blocks.

        No expiry is believed sooner, whatever heights are told. Infinite while the pace is not known; 0 where
        a height is no claim but the truth.
        """
        ...

    def explorer_url(self, signature: str) -> str:
        """Where a person can look a transaction up (interface T11)."""
        ...

    async def latest_blockhash(self) -> Blockhash:
        """Return a blockhash for a new transaction."""
        ...

    async def block_height(self) -> int:
        """Return the height of the newest block that cannot be undone."""
        ...

    async def signature_status(self, signature: str) -> SignatureStatus | None:
        """Return what became of a transaction; None when the chain has not seen it (yet).

        Raises:
            DoubtfulNodeError: a node does not know it that may not have seen all that landed.
        """
        ...

    async def find_cosigned(
        self, cosigned: Cosigned, *, is_for_proof: bool = False
    ) -> SignatureStatus | None:
        """Return what became of a transaction whose fee somebody else pays; None when it is not there (yet).

        Its name on chain is the fee payer's signature, which that one alone makes. It is found by the message
        that was signed, and by our signature over it.

        Args:
            cosigned: the transaction.
            is_for_proof: whether None is to prove that it is in no block up to the height that `block_height`
                returned before the call.

        Raises:
            ChainUnavailableError: nothing is known, or nothing is proved.
        """
        ...

    async def newest_signature(self, token_account: str) -> str | None:
        """Return what names the newest transaction of a token account that cannot be undone.

        None where the chain finds a message without it, or where there is no transaction.
        """
        ...

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:
        """Return whether the chain knows all signatures in the blocks from one height to another, both past.

        Nodes forget after some days, and lack what happened while they were down. An unknown signature is no
        proof of expiry unless the chain knows every block that could hold it: those from
        `BLOCKHASH_LIFE_BLOCKS` below its last valid height.
        """
        ...

    async def wait_for_notice(self, signature: str, seconds: float) -> None:
        """Return once it may be worth asking for the status again, after `seconds` at the latest."""
        ...

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:
        """Hand a signed transaction over. Returning tells only that it was handed over.

        Args:
            raw: the transaction.
            even_if_failing: whether to hand over what a node expects to fail, so that the chain says so for
                good. What has succeeded once and was undone must not fail then: it could never land again.
        """
        ...

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        """Return the USDC token accounts at `addresses`; None where there is none, or one of another mint."""
        ...

    async def account_size(self, address: str) -> tuple[int, int] | None:
        """Return lamports and bytes of data of any account; None where there is none."""
        ...

    async def rent_exemption(self, size: int) -> int:
        """Return the lamports that keep an account of `size` bytes of data alive for good."""
        ...


@frozen(kw_only=True)
class Deposit:
    """A transaction after which a token account held more USDC than before.

    Attributes:
        signature: base58 text of the transaction's signature.
        token_account: the account that holds more.
        amount_micro: how much more, in micro-USDC, at least 1.
        sender: the token account that the money came from, if there is exactly one that held less.
    """

    signature: str
    token_account: str
    amount_micro: int
    sender: str | None


@frozen(kw_only=True)
class DepositBatch:
    """The next stretch of an account's history.

    Attributes:
        deposits: oldest first; many transactions are none.
        cursor: where the stretch ends, for the next look.
    """

    deposits: tuple[Deposit, ...]
    cursor: str


Booked = Callable[[], Awaitable[Collection[str]]]
"""Tells of transactions that what they brought to a token account is booked; it need not tell of all such."""


async def nothing_booked() -> Collection[str]:
    """Tell of none."""
    return ()


class DepositSource(Protocol):
    """A chain whose token accounts have a history."""

    def deposits(
        self, token_account: str, *, after: str | None, booked: Booked = nothing_booked
    ) -> AsyncIterator[DepositBatch]:
        """Yield what came in since a cursor, in batches, oldest first, irreversible transactions alone.

        Stopping anywhere loses nothing: a batch can be read again from the cursor before it. What was booked
        may come again.

        Args:
            token_account: address of a USDC token account.
            after: the cursor of the last batch that was booked; None for all of its history.
            booked: what may be left out, where it would take a call to read it.

        Raises:
            ChainUnavailableError: the rest cannot be read now.
        """
        ...


class WatchedChain(Chain, DepositSource, Protocol):
    """A chain that also tells what came in."""
