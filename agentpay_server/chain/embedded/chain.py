"""The embedded chain: LiteSVM, a Solana virtual machine inside the process, behind the `Chain` protocol.

It runs the real System, Token, Token-2022 and Memo programs. Its USDC mint has the mainnet address, and the
server holds the mint authority. A send executes at once, and its outcome is final. The chain is bound to the
thread that created it.

`blocks.py` decides which blockhashes are valid; the machine's own check is off. A message executes at most
once (`seen_messages.py`); one that was refused before execution never executes.

Without a ledger, the chain ends with the process, and its coroutines never suspend. With a ledger, a call
returns only what the ledger holds. Callers share turns: in each, the machine executes all transactions sent
by then, and their page is written. If a write fails, the machine is ahead of the ledger, so it is discarded
and rebuilt from the ledger.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from threading import get_ident
from typing import Final, TypeVar

from attrs import evolve
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo
from solders.transaction_status import TransactionErrorFieldless

from agentpay_server.chain.clusters import explorer_url
from agentpay_server.chain.embedded import machines
from agentpay_server.chain.embedded.blocks import FIRST_SLOT, BlockPosition, Blocks, slot_at
from agentpay_server.chain.embedded.deposits import DepositListener, RecentCredits, deposits_of
from agentpay_server.chain.embedded.executed import Executed, History, execute
from agentpay_server.chain.embedded.persistence import ChainState, Credit, Draft, ForeignLedgerError, Ledger
from agentpay_server.chain.embedded.seen_messages import (
    SeenMessage,
    SeenMessages,
    is_signed_by_payer,
    message_hash_of,
)
from agentpay_server.chain.embedded.virtual_machine import (
    account_at,
    accounts_of,
    first_accounts,
    has_lookups,
    restore_accounts,
    serialized,
    set_accounts,
    set_clock,
    token_account_at,
    usdc_held,
)
from agentpay_server.chain.instructions import USDC_MINTS
from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    Blockhash,
    ChainUnavailableError,
    Cosigned,
    Deposit,
    DepositBatch,
    SignatureStatus,
    TokenAccount,
    reported_landing_heights,
)
from agentpay_server.chain.signing import transaction_of
from agentpay_server.crash_points import ChainPoint, chain_fault_point

_REMEMBERED_STATUSES: Final = 4_096  # In memory, where a ledger has all of them.
_CREDITS_PER_BATCH: Final = 100
_LOCAL_RPC_URL: Final = "http://localhost:8899"
_REFUSED: Final = SignatureStatus(is_final=False, is_refused=True)

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)


class EmbeddedChain:
    """A chain within the process.

    A transaction can land for 150 blocks after the block of its blockhash. So "unknown, and the height is
    above the last valid one" proves that it will never land. This also holds across restarts: a chain rebuilt
    from its ledger continues above every reported height.
    """

    def __init__(
        self, *, treasury: str, mint_authority: str, now_us: Callable[[], int], ledger: Ledger | None = None
    ) -> None:
        """Start a chain, bound to the calling thread.

        Args:
            treasury: address that starts with SOL for all fees and rents.
            mint_authority: address that may mint and freeze the USDC of this chain.
            now_us: the clock, in microseconds since the epoch.
            ledger: where the chain is stored and restored from; None keeps it in memory.
        """
        self._owner_thread = get_ident()
        self._treasury = treasury
        self._mint_authority = mint_authority
        self._now_us = now_us
        self._svm = machines.acquire()
        self._slot = FIRST_SLOT
        self._genesis = hashlib.sha256(f"{treasury} {mint_authority}".encode()).hexdigest()
        self._blocks = Blocks(self._genesis, now_us)
        # The newest position that callers were reported. The ledger must hold it before a call returns it.
        self._reported = self._blocks.position()
        # LiteSVM forgets messages, and an executed one must never execute again.
        self._statuses: dict[str, SignatureStatus] = {}
        self._names: dict[Hash, str] = {}
        self._seen = SeenMessages()
        self.history: History = History()
        self._ledger = ledger
        # Whether the machine may differ from the ledger: until the first read, and after a failed write.
        self._is_stale = ledger is not None
        self._turns = asyncio.Lock()
        self._sent: list[VersionedTransaction] = []
        self._written: ChainState | None = None
        self._draft = Draft()
        self._unwritten: list[Executed] = []
        # Without a ledger: the deposits that no caller has acknowledged.
        self._recent_credits = RecentCredits()
        self._listener: DepositListener | None = None
        self._observer: Callable[[VersionedTransaction, SignatureStatus], None] | None = None
        if ledger is None:
            self._set_clock()
            set_accounts(self._svm, self._first_accounts())

    async def restore(self) -> None:
        """Restore the chain from its ledger now rather than at the first call. No-op without a ledger.

        Raises:
            ForeignLedgerError: the ledger belongs to a chain with other keys.
        """
        self._check_thread()
        if self._ledger is not None:
            async with self._turns:
                await self._restore(self._ledger)

    def listen(self, listener: DepositListener) -> None:
        """Notify `listener` of deposits from now on, once they are stored.

        `deposits` returns earlier ones.
        """
        self._listener = listener

    def observe(self, observer: Callable[[VersionedTransaction, SignatureStatus], None]) -> None:
        """Notify `observer` of every transaction that executes from now on, and of its status."""
        self._observer = observer

    def release(self) -> None:
        """Return the machine to the pool. The chain is unusable afterwards."""
        self._check_thread()
        machines.release(self._svm)
        del self._svm

    @property
    def usdc_mint(self) -> str:
        """The mint's address on mainnet, so that token accounts have the same addresses as there."""
        return USDC_MINTS["mainnet-beta"]

    @property
    def cluster_name(self) -> str:
        """See `Chain`."""
        return "embedded"

    @property
    def is_test_chain(self) -> bool:
        """See `Chain`."""
        return True

    @property
    def landing_seconds(self) -> float:
        """See `Chain`: 0, because a send executes at once."""
        return 0.0

    @property
    def blockhash_life_seconds(self) -> float:
        """See `Chain`: 0, because the height is always correct."""
        return 0.0

    def explorer_url(self, signature: str) -> str:
        """See `Chain`."""
        return explorer_url(signature, _LOCAL_RPC_URL)

    async def latest_blockhash(self) -> Blockhash:
        """See `Chain`."""
        await self._settled()
        # The ledger does not need it: a restart computes it again, and no proof depends on it.
        height, blockhash = self._blocks.latest()
        return Blockhash(value=str(blockhash), last_valid_block_height=height + BLOCKHASH_LIFE_BLOCKS)

    async def block_height(self) -> int:
        """See `Chain`."""
        # A reported height may prove an expiry, so a restart must continue above it.
        self._reported = reported = self._blocks.position()
        await self._settled()
        return reported.height

    async def signature_status(self, signature: str) -> SignatureStatus | None:
        """See `Chain`: known however old it is."""
        await self._settled()
        status = self._statuses.get(signature)
        if status is None and self._ledger is not None:
            try:
                status = await self._ledger.status(signature)
            except Exception as error:
                raise ChainUnavailableError("the ledger of the chain cannot be read") from error
        return status

    async def find_cosigned(
        self,
        cosigned: Cosigned,
        *,
        proof_height: int | None = None,  # noqa: ARG002 - it is always a proof
    ) -> SignatureStatus | None:
        """See `Chain`."""
        await self._settled()
        message_hash = Hash.from_string(cosigned.message_hash)
        name = self._names.get(message_hash)
        if name is None and self._ledger is not None:
            try:
                name = await self._ledger.name_of(message_hash)
            except Exception as error:
                raise ChainUnavailableError("the ledger of the chain cannot be read") from error
        status = None if name is None else await self.signature_status(name)
        if status is None or status.is_refused:
            return status
        failure = None if status.failure is None else evolve(status.failure, chain_signature=name)
        return evolve(status, failure=failure, chain_signature=name)

    async def holds(self, token_account: str, amount_micro: int) -> bool:
        """See `Chain`."""
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
            ChainUnavailableError: the ledger does not respond; whether the transaction landed is unknown.
        """
        self._check_thread()
        transaction = transaction_of(raw)
        if has_lookups(transaction):
            raise ValueError("a transaction with address look-up tables was sent; list its accounts instead")
        if self._ledger is None:
            self._execute(transaction)
        else:
            self._sent.append(transaction)
            await self._turn(self._ledger)

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        """See `Chain`."""
        await self._settled()
        return [self._token_account(address) for address in addresses]

    async def deposits(
        self, token_account: str, *, after: str | None, **_: object
    ) -> AsyncIterator[DepositBatch]:
        """See `DepositSource`. The cursor is a slot."""
        await self._settled()
        slot = 0 if after is None else int(after)
        self._recent_credits.forget(token_account, slot)
        while page := await self._credits(token_account, slot):
            slot = page[-1].slot
            yield DepositBatch(deposits=tuple(credit.deposit for credit in page), cursor=str(slot))
            if self._ledger is None or len(page) < _CREDITS_PER_BATCH:
                return

    async def account_size(self, address: str) -> tuple[int, int] | None:
        """See `Chain`."""
        await self._settled()
        account = account_at(self._svm, address)
        return None if account is None else (account.lamports, len(account.data))

    async def rent_exemption(self, size: int) -> int:
        """See `Chain`."""
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

    def expire_blockhash(self) -> None:
        """Expire all blockhashes: transactions that were signed before and have not landed never will."""
        self._check_thread()
        self._blocks.begin(BLOCKHASH_LIFE_BLOCKS + 1)
        self._reported = self._blocks.position()

    def capture(self) -> Callable[[], None]:
        """Begin a block, and return a function that restores the chain's current state.

        Transactions signed before can still land after a restore; those signed later cannot.

        Raises:
            RuntimeError: the chain has a ledger, which is append-only.
        """
        self._check_thread()
        if self._ledger is not None:
            raise RuntimeError("a chain with a ledger cannot be brought back")
        accounts, statuses, names = accounts_of(self._svm), self._statuses.copy(), self._names.copy()
        parts = (self._recent_credits, self._seen, self.history, self._blocks)
        restorers = [part.capture() for part in parts]
        slot = self._slot

        def restore() -> None:
            self._check_thread()
            restore_accounts(self._svm, accounts)
            self._statuses, self._names = statuses.copy(), names.copy()
            for restore_part in restorers:
                restore_part()
            self._slot = slot

        return restore

    def _execute(self, transaction: VersionedTransaction) -> None:
        message_hash = message_hash_of(transaction)
        seen = self._seen.get(message_hash)
        if seen is not None:
            if seen.refused:
                self._bar(transaction, message_hash, seen)
            return
        if self._blocks.height_of(transaction.message.recent_blockhash) is None:
            return
        self._set_clock()
        executed = execute(self._svm, transaction, height=self._blocks.height(), time_us=self._now_us())
        if executed is None:
            # On a real chain the height rises until the transaction expires. Here the clock may be paused,
            # and callers would wait forever.
            self._bar(transaction, message_hash, None)
        else:
            self._record(executed, message_hash)

    def _bar(self, transaction: VersionedTransaction, message_hash: Hash, seen: SeenMessage | None) -> None:
        """Bar a message from executing, and report it as refused under this signature."""
        signature = str(transaction.signatures[0])
        if seen is not None and signature in seen.refused:
            return
        if signature in self._statuses or not is_signed_by_payer(transaction):
            # A copied signature would make the message that it belongs to look refused.
            return
        self._seen.refused(message_hash, self._blocks.height(), signature)
        self._note(signature, self._seen.get(message_hash), _REFUSED)
        # A replacement then gets another blockhash, and is another message, even while the clock is paused.
        self._blocks.begin()

    def _record(self, executed: Executed, message_hash: Hash) -> None:
        self._slot += 1
        self._journal(executed)
        self._seen.landed(message_hash, executed.height)
        self._note(executed.signature, self._seen.get(message_hash), executed.status)
        if self._observer is not None:
            self._observer(executed.transaction, executed.status)
        if self._ledger is None:
            self.history.add(executed)
        else:
            self._draft.accounts |= serialized(executed.after)
            self._unwritten.append(executed)
        self._blocks.land()

    def _note(self, signature: str, seen: SeenMessage | None, status: SignatureStatus) -> None:
        """Store a transaction's status in memory and on the next page."""
        self._statuses[signature] = status
        if seen is not None:
            self._names[seen.message_hash] = signature
        if self._ledger is None:
            return
        self._reported = self._blocks.position()
        self._draft.statuses[signature] = status
        if seen is not None:
            self._draft.seen[signature] = seen
        if len(self._statuses) > _REMEMBERED_STATUSES:
            del self._statuses[next(iter(self._statuses))]
        if len(self._names) > _REMEMBERED_STATUSES:
            del self._names[next(iter(self._names))]

    def _journal(self, executed: Executed) -> None:
        if executed.error is not None:
            return
        before, after = usdc_held(executed.before, self.usdc_mint), usdc_held(executed.after, self.usdc_mint)
        for deposit in deposits_of(executed.signature, before, after):
            credit = Credit(slot=self._slot, deposit=deposit)
            if self._ledger is not None:
                self._draft.credits.append(credit)
                continue
            self._recent_credits.add(credit)
            self._notify(deposit)

    async def _credits(self, token_account: str, slot: int) -> Sequence[Credit]:
        if self._ledger is None:
            return self._recent_credits.after(token_account, slot)
        try:
            return await self._ledger.credits(token_account, after_slot=slot, count=_CREDITS_PER_BATCH)
        except Exception as error:
            raise ChainUnavailableError("the ledger of the chain cannot be read") from error

    def _notify(self, deposit: Deposit | None) -> None:
        if self._listener is not None:
            self._listener.arrived(deposit)

    async def _settled(self) -> None:
        """Wait until the ledger holds everything that the machine has executed.

        Raises:
            ChainUnavailableError: the ledger does not respond.
        """
        self._check_thread()
        if self._ledger is not None and (self._is_stale or self._turns.locked() or self._has_unwritten()):
            await self._turn(self._ledger)

    async def _turn(self, ledger: Ledger) -> None:
        """Execute the sent transactions and write their page; one caller at a time.

        Raises:
            ChainUnavailableError: the ledger does not respond.
        """
        async with self._turns:
            try:
                if self._is_stale:
                    await self._restore(ledger)
                sent, self._sent = self._sent, []
                # Until the ledger confirms the page, its outcome is unknown.
                self._is_stale = True
                for transaction in sent:
                    self._execute(transaction)
                if self._has_unwritten():
                    await self._write_page(ledger)
                self._is_stale = False
            except ForeignLedgerError:
                raise
            except Exception as error:
                logger.exception("the chain's ledger does not respond; the chain is rebuilt from it")
                raise ChainUnavailableError("the ledger of the chain does not respond") from error

    async def _write_page(self, ledger: Ledger) -> None:
        page = self._draft.page(before=self._written, after=self._state())
        chain_fault_point(ChainPoint.EXECUTED)
        await ledger.write(page)
        chain_fault_point(ChainPoint.WRITTEN)
        self._written, self._draft = page.after, Draft()
        executed, self._unwritten = self._unwritten, []
        for transaction in executed:
            self.history.add(transaction)
        for credit in page.credits:
            self._notify(credit.deposit)

    async def _restore(self, ledger: Ledger) -> None:
        """Rebuild the machine from the ledger, in a new block.

        Writing a page for the new block makes every earlier write fail that is still in progress.
        """
        found = await ledger.read()
        machines.release(self._svm)
        self._svm = machines.acquire()
        self._statuses, self._names, self._draft, self._unwritten = {}, {}, Draft(), []
        if found is None:
            self._written, self._slot = None, FIRST_SLOT
            self._draft.accounts |= self._first_accounts()
            set_accounts(self._svm, self._draft.accounts)
        else:
            self._written, accounts = found
            if self._written.genesis != self._genesis:
                raise ForeignLedgerError(
                    "the ledger belongs to a chain with other keys; start the server with its original keys"
                )
            self._slot = self._written.slot
            since_us = self._written.height_since_us or self._now_us()
            self._blocks.resume(BlockPosition(self._written.height, since_us))
            oldest = self._written.height - BLOCKHASH_LIFE_BLOCKS
            self._seen.load(await ledger.seen(from_height=oldest))
            set_accounts(self._svm, accounts)
        self._reported = self._blocks.position()
        if not len(self.history):
            self.history.first_height = self._reported.height
        self._set_clock()
        await self._write_page(ledger)
        self._is_stale = False
        # The page with the unknown outcome may have been written, with deposits.
        self._notify(None)

    def _state(self) -> ChainState:
        return ChainState(
            genesis=self._genesis,
            slot=self._slot,
            height=self._reported.height,
            height_since_us=self._reported.since_us,
        )

    def _has_unwritten(self) -> bool:
        return self._written != self._state() or bool(self._draft.statuses)

    def _first_accounts(self) -> dict[str, bytes | None]:
        return first_accounts(
            self._svm,
            treasury=self._treasury,
            usdc_mint=self.usdc_mint,
            mint_authority=self._mint_authority,
        )

    def _set_clock(self) -> None:
        set_clock(self._svm, slot_at(self._blocks.height()), self._now_us())

    def _token_account(self, address: str) -> TokenAccount | None:
        return token_account_at(self._svm, address, self.usdc_mint)

    def _check_thread(self) -> None:
        if get_ident() != self._owner_thread:
            raise RuntimeError("an EmbeddedChain was used outside the thread that made it")
