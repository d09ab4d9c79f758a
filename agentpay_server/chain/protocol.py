"""The chain protocol: the calls that the service makes, and their errors.

It is small on purpose: `engine/broadcast.py` decides on sending, waiting, expiry and signing again.

A chain also reports the deposits of token accounts. The service posts each one once, in one commit with the
cursor: the key is `(signature, token_account)`, and the service's own transactions are left out.
An account whose balance equals its books needs no scan.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

from attrs import Factory, field, frozen
from solders.transaction import VersionedTransaction

from agentpay_server.chain.instructions import debited_account

BLOCKHASH_LIFE_BLOCKS: Final = 150
"""Number of blocks in which a transaction can land, up to its last valid block height."""

MOST_COMPUTE_UNITS: Final = 1_400_000
"""The highest compute limit that a transaction can request."""


class ChainUnreachableError(Exception):
    """The chain did not respond, or its response was lost. Whether a sent transaction arrived is unknown."""


class DoubtfulNodeError(ChainUnreachableError):
    """A node does not know a signature, but it lags or reports an implausible position.

    So the signature may have landed. Resending the same bytes is harmless.
    """


class UnprovenError(ChainUnreachableError):
    """A node reports an outcome of a transaction without evidence, or another response contradicts it.

    So the transaction may or may not have landed. Resending the same bytes is harmless.
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
    """The compute limits and the priority fee of a transaction.

    Attributes:
        unit_limit: maximum compute units; the transaction fails if it needs more.
        unit_price_micro_lamports: the priority fee for each unit of the limit, used or not, in millionths of
            a lamport.
        unit_limits: lower limits by shape of transaction, where its need is known (see `custody.py`).
    """

    unit_limit: int
    unit_price_micro_lamports: int
    unit_limits: Mapping[str, int] = Factory(dict)


@frozen(kw_only=True)
class Blockhash:
    """A recent blockhash, and the compute budget of transactions that use it.

    Attributes:
        last_valid_block_height: a transaction with this blockhash can land up to this block height.
        compute_budget: None to include none.
    """

    value: str
    last_valid_block_height: int
    compute_budget: ComputeBudget | None = None


@frozen(kw_only=True)
class TokenAccount:
    """The state of a USDC token account on chain.

    Attributes:
        owner: the address that may spend from it.
        amount_micro: micro-USDC held.
        is_frozen: whether the mint's freeze authority has frozen it.
    """

    address: str
    owner: str
    amount_micro: int
    is_frozen: bool


KNOWN_BYTES: Final = 512
"""More than any account has that is read in full."""


@frozen(kw_only=True)
class AccountData:
    """The content of any account on chain.

    Attributes:
        program: the program that owns it.
        data: its content; what comes after `KNOWN_BYTES` may be missing.
        usdc: the USDC token account that it is; None for any other account.
    """

    program: str
    data: bytes = field(repr=False)
    usdc: TokenAccount | None = None


@frozen(kw_only=True)
class Payout:
    """The irreversible transaction that paid out a channel.

    Attributes:
        signature: its identity on chain.
        gained_micro: how much USDC the payer's token account got in it.
        left_micro: how much USDC the channel's escrow holds after it: none, unless someone filled it again.
        channels: all channels that it distributes, of this payer and of others.
    """

    signature: str
    gained_micro: int
    left_micro: int
    channels: frozenset[str]


@frozen(kw_only=True)
class ChannelHistory:
    """The proofs in the irreversible transactions of a channel.

    Attributes:
        proven_micro: the highest total that it has settled by a voucher of its signer.
        payout: the transaction that paid it out; None if none has.
    """

    proven_micro: int
    payout: Payout | None


@frozen(kw_only=True)
class ChainFailure:
    """A transaction that the chain processed and rejected: it moved nothing and never will.

    Attributes:
        reason: the kind of failure.
        detail: the chain's error text, for logs.
        chain_signature: see `SignatureStatus.chain_signature`.
    """

    reason: FailureReason
    detail: str
    chain_signature: str | None = None


@frozen(kw_only=True)
class SignatureStatus:
    """The chain's information on a signature.

    Attributes:
        is_final: whether it has reached the finality that counts as settled here. A failure is final only
            when it is irreversible: if its block is dropped, the same bytes may still succeed.
        failure: why it moved nothing; None if it succeeded or is not final yet.
        is_irreversible: whether its block can no longer be dropped (interface T12). Implies `is_final`.
        is_refused: whether the chain refused it before execution and never will execute it: it counts as
            expired, whatever the block height. It is not final, because it is on no chain.
        chain_signature: the transaction's identity on chain, if it was looked up by another key.
    """

    is_final: bool
    failure: ChainFailure | None = None
    is_irreversible: bool = Factory(lambda self: self.is_final, takes_self=True)
    is_refused: bool = False
    chain_signature: str | None = None


@frozen(kw_only=True)
class SignedTransaction:
    """The bytes of a transaction. They may be sent repeatedly, because the chain executes a signature once.

    Attributes:
        signature: base58 text of the first signature, which identifies the transaction.
        raw: the wire bytes, at most 1,232; not in `repr`.
        last_valid_block_height: above this block height it can no longer land.
        fee_lamports: the treasury's fee if it lands; 0 if another party pays it.
    """

    signature: str
    raw: bytes = field(repr=False)
    last_valid_block_height: int
    fee_lamports: int = 0

    @property
    def blockhash(self) -> str:
        """The recent blockhash that it was signed with."""
        return str(VersionedTransaction.from_bytes(self.raw).message.recent_blockhash)

    @property
    def debits(self) -> str | None:
        """The first token account that it debits; None without one."""
        return debited_account(VersionedTransaction.from_bytes(self.raw))


@frozen(kw_only=True)
class Cosigned:
    """A transaction that the service has signed, and whose fee another party pays.

    Attributes:
        token_account: the account that it debits.
        signature: the service's signature.
        message_hash: identifies the message that all its signatures sign.
        after: the token account's newest transaction before it was signed, according to a node; None if
            unknown. Only searches start at it: a proof does not rely on it.
        first_height: no block below this height can contain it.
    """

    token_account: str
    signature: str
    message_hash: str
    after: str | None = None
    first_height: int = 0


@frozen(kw_only=True)
class Absence:
    """The proof that a transaction without a status has certainly not landed.

    Attributes:
        token_account: the account that it debits, whose history must not contain it; None for none.
        first_height: no block below this height can contain it.
        last_height: the highest block that must not contain it.
    """

    token_account: str | None
    first_height: int
    last_height: int


def reported_landing_heights(last_valid_height: int) -> tuple[int, int]:
    """Return what `Chain.landing_heights` returns if the last valid height is correct."""
    return max(last_valid_height - BLOCKHASH_LIFE_BLOCKS, 0), last_valid_height


@frozen(kw_only=True)
class Deposit:
    """A transaction that increased the USDC of a token account.

    Attributes:
        token_account: the account that received.
        amount_micro: the increase in micro-USDC, at least 1.
        senders: the token accounts that were debited.
        others: the other token accounts that existed before; they may have been debited and refilled.
    """

    signature: str
    token_account: str
    amount_micro: int
    senders: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def sender(self) -> str | None:
        """The token account that was debited, if there is exactly one."""
        return self.senders[0] if len(self.senders) == 1 else None


@frozen(kw_only=True)
class Debit:
    """A transaction that reduced the USDC of a token account.

    Attributes:
        signature: its identity on chain.
        signatures: all its signatures, the service's included if the service signed it.
        amount_micro: the reduction in micro-USDC, at least 1.
        recipient: the token account that received, if there is exactly one.
    """

    signature: str
    signatures: tuple[str, ...]
    token_account: str
    amount_micro: int
    recipient: str | None


@frozen(kw_only=True)
class DepositBatch:
    """The next part of an account's history.

    Attributes:
        deposits: oldest first; may be empty.
        cursor: the end of this part.
        debits: oldest first. Always empty on a chain within the process, whose balances are never outdated.
    """

    deposits: tuple[Deposit, ...]
    cursor: str
    debits: tuple[Debit, ...] = ()


Posted = Callable[[], Awaitable[Collection[str]]]
"""Returns signatures that are posted for a token account, possibly not all."""


async def nothing_posted() -> Collection[str]:
    """Return no signatures."""
    return ()


class Chain(Protocol):
    """A Solana cluster. Every coroutine may raise `ChainUnreachableError`."""

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

    @property
    def usual_life_seconds(self) -> float:
        """How long a transaction can usually land after it was signed: for callers and schedules.

        It proves nothing, because the pace of a cluster's blocks varies.
        """
        ...

    def explorer_url(self, signature: str) -> str:
        """Link to a transaction in a block explorer (interface T11)."""
        ...

    async def latest_blockhash(self) -> Blockhash:
        """Return a blockhash for a new transaction."""
        ...

    async def block_height(self) -> int:
        """Return the height of the newest irreversible block."""
        ...

    async def signature_status(
        self, signature: str, *, absence: Absence | None = None
    ) -> SignatureStatus | None:
        """Return the status of a transaction; None if the chain has not seen it yet.

        A final status is proved by the transaction itself.

        Args:
            signature: its first signature.
            absence: if given, None proves that the transaction is in none of these blocks.

        Raises:
            DoubtfulNodeError: the node does not know it, but may lack transactions that landed.
            UnprovenError: the node reports an outcome without evidence, or its absence is not proved.
        """
        ...

    async def find_cosigned(
        self, cosigned: Cosigned, *, proof_height: int | None = None
    ) -> SignatureStatus | None:
        """Return the status of a transaction whose fee another party pays; None if it has not been found.

        The fee payer's signature, which identifies it on chain, is unknown here. It is found by the signed
        message and the service's signature over it.

        Args:
            cosigned: the transaction to find.
            proof_height: None must prove that it is in no block up to this height, if given.

        Raises:
            ChainUnreachableError: its status is unknown, or its absence cannot be proved.
        """
        ...

    async def holds(self, token_account: str, amount_micro: int) -> bool:
        """Return whether a token account holds at least an amount of micro-USDC.

        Reads a block with the finality of settlements, at or above the height that `block_height` returned
        before the call.
        """
        ...

    async def newest_signature(self, token_account: str) -> str | None:
        """Return the signature of the newest irreversible transaction of a token account.

        None without a transaction, or if the chain finds a message without it.
        """
        ...

    async def landing_heights(self, blockhash: str, last_valid_height: int) -> tuple[int, int] | None:
        """Return the heights of the first and the last block that can contain a transaction.

        The last valid height is what a node reported with the blockhash, and may be wrong. It is checked
        against the block of that hash. Returns None if the chain no longer knows that block.

        Args:
            blockhash: the recent blockhash of the transaction.
            last_valid_height: below the height that `block_height` returned before the call.

        Raises:
            ChainUnreachableError: the transaction may still land, or that is unknown.
        """
        ...

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:
        """Return whether the chain knows all signatures in the blocks between two past heights.

        Nodes prune blocks after some days, and miss those produced while they were down. An unknown signature
        proves an expiry only if the chain knows every block that could contain it: see `landing_heights`.
        """
        ...

    async def wait_for_notice(self, signature: str, seconds: float) -> None:
        """Return once the status may have changed, after `seconds` at the latest."""
        ...

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:
        """Send a signed transaction. A return means only that a node has accepted it.

        Args:
            raw: the transaction's wire bytes.
            even_if_failing: whether to send it even if a node predicts a failure, to get a final failure. Use
                False to resend one that succeeded and was reorganized away: it may yet succeed, but a failure
                would be final.
        """
        ...

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        """Return the USDC token accounts at `addresses`; None for each that is missing or of another mint."""
        ...

    async def account_size(self, address: str) -> tuple[int, int] | None:
        """Return the lamports and data size in bytes of any account; None if it does not exist."""
        ...

    async def account_data(self, addresses: Sequence[str]) -> list[AccountData | None]:
        """Return accounts of any kind, with the finality of settlements; None for each that is missing."""
        ...

    async def blockhash_slot(self, blockhash: str) -> int | None:
        """Return the current slot if a transaction with a blockhash can land now, else None."""
        ...

    async def channel_history(
        self, channel: str, *, signer: str, to: str, including: str | None = None
    ) -> ChannelHistory:
        """Return what a channel's irreversible transactions prove; one read of its account proves nothing.

        Args:
            channel: the address of its account.
            signer: who signs its vouchers.
            to: the payer's token account.
            including: the signature of a transaction that must be among them.

        Raises:
            ChainUnreachableError: its history cannot be read at the moment.
        """
        ...

    async def is_signed_by(self, signature: str, signer: str) -> bool:
        """Return whether an address has signed a transaction, whatever a node says of what it moved.

        Raises:
            ChainUnreachableError: the transaction cannot be read at the moment.
        """
        ...

    async def rent_exemption(self, size: int) -> int:
        """Return the lamports that exempt an account of `size` bytes from rent."""
        ...

    def deposits(
        self, token_account: str, *, after: str | None, posted: Posted = nothing_posted
    ) -> AsyncIterator[DepositBatch]:
        """Yield the deposits and debits since a cursor, in batches, oldest first; only irreversible ones.

        A batch can be read again from the cursor before it. Posted deposits may be repeated.

        Args:
            token_account: address of a USDC token account.
            after: the cursor of the last posted batch; None for all of the history.
            posted: returns signatures to skip, which saves calls.

        Raises:
            ChainUnreachableError: the rest cannot be read at the moment.
        """
        ...


class OpenedChain(Chain, Protocol):
    """A chain that a server has opened."""

    async def close(self) -> None:
        """Close its connections."""
        ...
