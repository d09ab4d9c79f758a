"""The embedded chain: LiteSVM, a Solana virtual machine inside the process, behind the `Chain` protocol.

It runs the real System, Token, Token-2022 and Memo programs. Its USDC mint has the mainnet address, and the
server holds the mint authority. A send executes at once, and its outcome is final. The chain is bound to the
thread that created it.

What executes, and when it is stored, is in `ledgered.py`. With a ledger in memory, the chain ends with the
process, and its coroutines never suspend.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from attrs import evolve
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo
from solders.transaction_status import TransactionErrorFieldless

from agentpay_server.chain.channels.evidence import Landed, history_of, steps_of
from agentpay_server.chain.clusters import custom_explorer_url
from agentpay_server.chain.custody import transaction_of
from agentpay_server.chain.embedded.blocks import BLOCK_US, FIRST_SLOT, message_hash_of, slot_at
from agentpay_server.chain.embedded.ledgered import LedgeredMachine
from agentpay_server.chain.embedded.persistence import Credit
from agentpay_server.chain.embedded.virtual_machine import (
    account_at,
    has_lookups,
    token_account_at,
    usdc_held,
)
from agentpay_server.chain.parsing import read_account
from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    Absence,
    AccountData,
    Blockhash,
    ChainUnreachableError,
    ChannelHistory,
    Cosigned,
    DepositBatch,
    SignatureStatus,
    TokenAccount,
    reported_landing_heights,
)

_CREDITS_PER_BATCH: Final = 100
_USUAL_RPC_URL: Final = "http://localhost:8899"
"""Of a local validator: explorers show it where nothing serves this chain's JSON-RPC."""

T = TypeVar("T")


class EmbeddedChain(LedgeredMachine):
    """A chain within the process.

    A transaction can land for 150 blocks after the block of its blockhash. So "unknown, and the height is
    above the last valid one" proves that it will never land. This also holds across restarts: a chain rebuilt
    from its ledger continues above every reported height.

    Attributes:
        rpc_url: of a node of this chain, for explorers; None without one.
    """

    rpc_url: str | None = None

    @property
    def cluster_name(self) -> str:
        return "embedded"

    @property
    def is_test_chain(self) -> bool:
        return True

    @property
    def landing_seconds(self) -> float:
        """See `Chain`: 0, because a send executes at once."""
        return 0.0

    @property
    def blockhash_life_seconds(self) -> float:
        """See `Chain`: 0, because the height is always correct."""
        return 0.0

    @property
    def usual_life_seconds(self) -> float:
        """See `Chain`: until the height is above the last valid one, unless the clock is set."""
        return (BLOCKHASH_LIFE_BLOCKS + 1) * BLOCK_US / 1_000_000

    def explorer_url(self, signature: str) -> str:
        return custom_explorer_url(signature, self.rpc_url or _USUAL_RPC_URL)

    async def latest_blockhash(self) -> Blockhash:
        await self._settled()
        # The ledger does not need it: a restart computes it again, and no proof depends on it.
        height, blockhash = self._blocks.latest()
        return Blockhash(value=str(blockhash), last_valid_block_height=height + BLOCKHASH_LIFE_BLOCKS)

    async def block_height(self) -> int:
        # A reported height may prove an expiry, so a restart must continue above it.
        self._reported = reported = self._blocks.position()
        await self._settled()
        return reported.height

    async def signature_status(
        self,
        signature: str,
        *,
        absence: Absence | None = None,  # noqa: ARG002 - None is always a proof
    ) -> SignatureStatus | None:
        """See `Chain`: known however old it is."""
        await self._settled()
        status = self._statuses.get(signature)
        return status if status is not None else await _stored(self._ledger.status(signature))

    async def find_cosigned(
        self,
        cosigned: Cosigned,
        *,
        proof_height: int | None = None,  # noqa: ARG002 - it is always a proof
    ) -> SignatureStatus | None:
        await self._settled()
        message_hash = Hash.from_string(cosigned.message_hash)
        name = self._names.get(message_hash)
        if name is None:
            name = await _stored(self._ledger.name_of(message_hash))
        status = None if name is None else await self.signature_status(name)
        if status is None or status.is_refused:
            return status
        failure = None if status.failure is None else evolve(status.failure, chain_signature=name)
        return evolve(status, failure=failure, chain_signature=name)

    async def holds(self, token_account: str, amount_micro: int) -> bool:
        await self._settled()
        account = self._token_account(token_account)
        return (0 if account is None else account.amount_micro) >= amount_micro

    async def newest_signature(self, token_account: str) -> str | None:  # noqa: ARG002
        """Return None: `find_cosigned` finds a message without a history."""
        return None

    async def landing_heights(self, blockhash: str, last_valid_height: int) -> tuple[int, int]:  # noqa: ARG002
        """See `Chain`: heights are always correct."""
        return reported_landing_heights(last_valid_height)

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:  # noqa: ARG002
        """Return True: the chain forgets nothing."""
        return True

    async def wait_for_notice(self, signature: str, seconds: float) -> None:  # noqa: ARG002
        """Wait for `seconds`: transactions execute at once, so none is notified later."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Do nothing: the ledger is already written."""

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:  # noqa: ARG002
        """Execute a transaction, unless its message was executed before or its blockhash is invalid.

        If the machine refuses it before execution, because a signature or the fee is missing, its message is
        barred permanently. A failure is final, whatever `even_if_failing` is, because this chain has no
        forks.

        Raises:
            TransactionTooLargeError: `raw` is larger than a packet.
            ValueError: `raw` is not a transaction, or it uses address lookup tables.
            ChainUnreachableError: the ledger does not respond; whether the transaction landed is unknown.
        """
        self._check_thread()
        transaction = transaction_of(raw)
        if has_lookups(transaction):
            raise ValueError("a transaction with address look-up tables was sent; list its accounts instead")
        self._sent.append(transaction)
        await self._turn()

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        await self._settled()
        return [self._token_account(address) for address in addresses]

    async def deposits(
        self, token_account: str, *, after: str | None, **_: object
    ) -> AsyncIterator[DepositBatch]:
        """See `Chain`. The cursor is a slot."""
        await self._settled()
        slot = 0 if after is None else int(after)
        self._ledger.acknowledge(token_account, slot)
        while page := await self._credits(token_account, slot):
            slot = page[-1].slot
            yield DepositBatch(deposits=tuple(credit.deposit for credit in page), cursor=str(slot))
            if len(page) < _CREDITS_PER_BATCH:
                return

    async def account_size(self, address: str) -> tuple[int, int] | None:
        await self._settled()
        account = account_at(self._svm, address)
        return None if account is None else (account.lamports, len(account.data))

    async def account_data(self, addresses: Sequence[str]) -> list[AccountData | None]:
        await self._settled()
        found = [(address, account_at(self._svm, address)) for address in addresses]
        return [
            None
            if account is None or not account.lamports
            else read_account(
                address, program=str(account.owner), data=bytes(account.data), usdc_mint=self.usdc_mint
            )
            for address, account in found
        ]

    async def blockhash_slot(self, blockhash: str) -> int | None:
        return self.slot if await self.is_blockhash_valid(Hash.from_string(blockhash)) else None

    async def channel_history(
        self,
        channel: str,
        *,
        signer: str,
        to: str,
        including: str | None = None,  # noqa: ARG002 - it knows all that have executed
    ) -> ChannelHistory:
        """See `Chain`: by the newest transactions, which the history keeps."""
        await self.recall()
        landed = [
            Landed(
                signature=executed.signature,
                before=usdc_held(executed.before, self.usdc_mint),
                after=usdc_held(executed.after, self.usdc_mint),
                steps=steps_of(executed.transaction.message, executed.meta),
            )
            for executed in self.history.of_address(Pubkey.from_string(channel))
            if executed.error is None
        ]
        return history_of(reversed(landed), channel, signer=signer, to=to, usdc_mint=self.usdc_mint)

    async def is_signed_by(self, signature: str, signer: str) -> bool:  # noqa: ARG002 - it was verified
        """See `Chain`: this chain has executed the transaction itself."""
        return True

    async def rent_exemption(self, size: int) -> int:
        await self._settled()
        return self._svm.minimum_balance_for_rent_exemption(size)

    @property
    def genesis_hash(self) -> str:
        """The chain's identity, for clients that ask for the genesis hash."""
        return str(Hash.from_bytes(bytes.fromhex(self._genesis)))

    @property
    def slot(self) -> int:
        """The slot of the newest block. A restart may continue below it, so it proves nothing."""
        return slot_at(self._blocks.height())

    @property
    def transaction_count(self) -> int:
        """How many transactions have executed since the chain began."""
        return self._slot - FIRST_SLOT

    def blockhash_at(self, height: int) -> Hash:
        """Return the hash of the block at a height; of one before a restore, as it is computed now."""
        return self._blocks.hash_at(height)

    def block_time(self, height: int) -> int:
        """Return when a block began, in seconds since the epoch."""
        return self.history.block_time(self._blocks.position(), height)

    async def recall(self) -> None:
        """Load into the history what the ledger holds of earlier runs, once.

        Raises:
            ChainUnreachableError: the ledger does not respond.
        """
        await self._settled()
        async with self._turns:
            await _stored(self.history.recall(self._ledger, self.transaction_count))

    def query(self, query: Callable[[LiteSVM], T]) -> T:
        """Run a read-only query on the machine, whose newest transactions the ledger may not hold yet."""
        self._check_thread()
        return query(self._svm)

    async def read(self, query: Callable[[LiteSVM], T]) -> T:
        """Run a read-only query on the machine and return its result."""
        await self._settled()
        return query(self._svm)

    async def is_blockhash_valid(self, blockhash: Hash) -> bool:
        """Return whether a transaction with a blockhash can land now."""
        await self._settled()
        return self._blocks.height_of(blockhash) is not None

    async def simulate(
        self, transaction: VersionedTransaction, *, with_signatures: bool, with_blockhash: bool
    ) -> SimulatedTransactionInfo | FailedTransactionMetadata | TransactionErrorFieldless:
        """Simulate a transaction without side effects. Optionally verify its signatures and its blockhash."""
        await self._settled()
        if has_lookups(transaction):
            return TransactionErrorFieldless.AddressLookupTableNotFound
        if with_blockhash and self._blocks.height_of(transaction.message.recent_blockhash) is None:
            return TransactionErrorFieldless.BlockhashNotFound
        if self._seen.get(message_hash_of(transaction)) is not None:
            return TransactionErrorFieldless.AlreadyProcessed
        self._set_clock()
        self._svm.with_sigverify(with_signatures)
        try:
            return self._svm.simulate_transaction(transaction)
        finally:
            self._svm.with_sigverify(True)  # noqa: FBT003 - positional only

    async def _credits(self, token_account: str, slot: int) -> Sequence[Credit]:
        found = self._ledger.credits(token_account, after_slot=slot, count=_CREDITS_PER_BATCH)
        return await _stored(found)

    def _token_account(self, address: str) -> TokenAccount | None:
        return token_account_at(self._svm, address, self.usdc_mint)


async def _stored(found: Awaitable[T]) -> T:
    """Return what a ledger holds.

    Raises:
        ChainUnreachableError: it cannot be read.
    """
    try:
        return await found
    except Exception as error:
        raise ChainUnreachableError("the ledger of the chain cannot be read") from error
