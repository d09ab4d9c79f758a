"""The chain protocol: the calls that the service makes, and their errors.

It is small on purpose: `money/broadcast.py` decides on sending, waiting, expiry and signing again.

A chain also reports deposits. The service books each one once, in one commit with the cursor: the key is
`(signature, token_account)`, and the service's own transactions are left out.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

from attrs import Factory, field, frozen

BLOCKHASH_LIFE_BLOCKS: Final = 150
"""Blocks in which a transaction can land, up to its last valid block height."""

MOST_COMPUTE_UNITS: Final = 1_400_000
"""The highest limit that a transaction can request."""


class ChainUnavailableError(Exception):
    """The chain did not respond, or its response was lost. Whether a sent transaction arrived is unknown."""


class DoubtfulNodeError(ChainUnavailableError):
    """A node does not know a signature, but lags or reports an implausible position.

    So the signature may have landed. Resending the same bytes is harmless.
    """


class FailureReason(StrEnum):
    """Why the chain rejected a transaction, as far as the service distinguishes."""

    INSUFFICIENT_FUNDS = "insufficient_funds"
    ACCOUNT_FROZEN = "account_frozen"
    ACCOUNT_MISSING = "account_missing"
    ACCOUNT_NOT_EMPTY = "account_not_empty"
    OTHER = "other"


@frozen(kw_only=True)
class ComputeBudget:
    """A transaction that needs more than `unit_limit` fails.

    The price is for each unit of the limit, used or not, in millionths of a lamport. `unit_limits` are lower
    limits by shape of transaction (see `signing.py`).
    """

    unit_limit: int
    unit_price_micro_lamports: int
    unit_limits: Mapping[str, int] = Factory(dict)


@frozen(kw_only=True)
class Blockhash:
    """Transactions with it can land up to the block height `last_valid_block_height`."""

    value: str
    last_valid_block_height: int
    compute_budget: ComputeBudget | None = None


@frozen(kw_only=True)
class TokenAccount:
    """Its `owner` may spend from it."""

    address: str
    owner: str
    amount_micro: int
    is_frozen: bool


@frozen(kw_only=True)
class Failure:
    """A transaction that the chain processed and rejected: it moved nothing and never will.

    `detail` is the chain's error text, for logs.
    """

    reason: FailureReason
    detail: str
    chain_signature: str | None = None


@frozen(kw_only=True)
class SignatureStatus:
    """The chain's information on a signature.

    `is_final`: it counts as settled here. A failure is final only when it is irreversible: if its block is
    dropped, the same bytes may still succeed.

    `is_irreversible` implies `is_final`: its block can no longer be dropped (interface T12).

    `is_refused`: the chain refused it before execution and never will execute it: it counts as expired,
    whatever the block height. It is not final, because it is on no chain.

    `chain_signature` identifies it on chain, if it was looked up by another key.
    """

    is_final: bool
    failure: Failure | None = None
    is_irreversible: bool = Factory(lambda self: self.is_final, takes_self=True)
    is_refused: bool = False
    chain_signature: str | None = None


@frozen(kw_only=True)
class SignedTransaction:
    """May be sent repeatedly, because the chain executes a signature once.

    `signature` is the first one, in base58; `raw` has at most 1,232 bytes; above `last_valid_block_height`
    the transaction can no longer land.
    """

    signature: str
    raw: bytes = field(repr=False)
    last_valid_block_height: int


@frozen(kw_only=True)
class Cosigned:
    """A transaction that the service has signed, and whose fee another party pays.

    It debits `token_account`, whose newest transaction before was `after`; None if unknown. `signature` is
    the service's; `message_hash` identifies the message that all signatures sign.
    """

    token_account: str
    signature: str
    message_hash: str
    after: str | None = None


def reported_landing_heights(last_valid_height: int) -> tuple[int, int]:
    """`Chain.landing_heights` for a correct last valid height."""
    return max(last_valid_height - BLOCKHASH_LIFE_BLOCKS, 0), last_valid_height


class Chain(Protocol):
    """A Solana cluster. Every coroutine may raise `ChainUnavailableError`."""

    @property
    def usdc_mint(self) -> str: ...

    @property
    def cluster_name(self) -> str:
        """`mainnet-beta`, `devnet`, `testnet`, `localnet` for any other cluster, or `embedded`."""
        ...

    @property
    def is_test_chain(self) -> bool:
        """Whether money on it has no value, so that the sandbox may mint."""
        ...

    @property
    def landing_seconds(self) -> float:
        """Pause after a send before the first status query; 0 if a send executes at once."""
        ...

    @property
    def blockhash_life_seconds(self) -> float:
        """How long a transaction may land after it was signed, at the pace of the chain's blocks.

        No expiry is accepted earlier, whatever heights nodes report. Infinite while the pace is unknown; 0
        where heights are always correct.
        """
        ...

    def explorer_url(self, signature: str) -> str:
        """In a block explorer (interface T11)."""
        ...

    async def latest_blockhash(self) -> Blockhash: ...

    async def block_height(self) -> int:
        """The height of the newest irreversible block."""
        ...

    async def signature_status(self, signature: str) -> SignatureStatus | None:
        """None if the chain has not seen it yet.

        Raises `DoubtfulNodeError` if the node does not know it, but may lack transactions that landed.
        """
        ...

    async def find_cosigned(
        self, cosigned: Cosigned, *, proof_height: int | None = None
    ) -> SignatureStatus | None:
        """Find a transaction whose fee another party pays.

        The fee payer's signature, which identifies it on chain, is unknown here. It is found by the signed
        message and the service's signature over it. With `proof_height`, None must prove that it is in no
        block up to this height, or `ChainUnavailableError` is raised.
        """
        ...

    async def holds(self, token_account: str, amount_micro: int) -> bool:
        """Whether a token account holds at least an amount.

        Reads a block with the finality of settlements, at or above the height that `block_height` returned
        before the call.
        """
        ...

    async def newest_signature(self, token_account: str) -> str | None:
        """The newest irreversible one.

        None without a transaction, or if the chain finds a message without it.
        """
        ...

    async def landing_heights(self, blockhash: str, last_valid_height: int) -> tuple[int, int] | None:
        """Return the heights of the first and the last block that can contain a transaction.

        The last valid height is what a node reported with the blockhash, and may be wrong: it is checked
        against the block of that hash. It is below the height that `block_height` returned before. Returns
        None if the chain no longer knows that block; raises `ChainUnavailableError` if the transaction may
        still land, or that is unknown.
        """
        ...

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:
        """Whether the chain knows all signatures in the blocks between two past heights.

        Nodes prune blocks after some days, and miss those produced while they were down. An unknown signature
        proves an expiry only if the chain knows every block that could contain it.
        """
        ...

    async def wait_for_notice(self, signature: str, seconds: float) -> None:
        """Return once the status may have changed, after `seconds` at the latest."""
        ...

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:
        """Send a signed transaction. A return means only that a node has accepted it.

        `even_if_failing` sends it even if a node predicts a failure, to get a final failure; False to resend
        one that was reorganized away: it may yet succeed, but a failure would be final.
        """
        ...

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        """None for each that is missing or of another mint."""
        ...

    async def account_size(self, address: str) -> tuple[int, int] | None:
        """The lamports and data size in bytes of any account."""
        ...

    async def rent_exemption(self, size: int) -> int: ...


@frozen(kw_only=True)
class Deposit:
    """A transaction increased the USDC of a token account.

    `sender` is the token account that was debited, if there is exactly one.
    """

    signature: str
    token_account: str
    amount_micro: int
    sender: str | None


@frozen(kw_only=True)
class DepositBatch:
    """The next part of an account's history, up to `cursor`. Oldest first; may be empty."""

    deposits: tuple[Deposit, ...]
    cursor: str


Booked = Callable[[], Awaitable[Collection[str]]]
"""Returns signatures that are booked for a token account, possibly not all."""


async def nothing_booked() -> Collection[str]:
    return ()


class DepositSource(Protocol):
    """A chain that can read the history of token accounts."""

    def deposits(
        self, token_account: str, *, after: str | None, booked: Booked = nothing_booked
    ) -> AsyncIterator[DepositBatch]:
        """Yield the deposits since a cursor, in batches, oldest first; only irreversible ones.

        A batch can be read again from the cursor before it. Booked deposits may be repeated. `after` is the
        cursor of the last booked batch; None for all of the history. `booked` returns signatures to skip,
        which saves calls.
        """
        ...


class WatchedChain(Chain, DepositSource, Protocol):
    """A chain that also reports deposits."""
