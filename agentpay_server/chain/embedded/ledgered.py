"""The machine of the embedded chain, and its ledger: what executes, and when it is stored.

A call returns only what the ledger holds. Callers share turns: in each, the machine executes all transactions
sent by then, and their page is written. If a write fails, the machine is ahead of the ledger, so it is
discarded and rebuilt from the ledger. A ledger in memory never fails, and its turns never suspend.

`blocks.py` decides which blockhashes are valid; the machine's own check is off. It also remembers messages:
each executes at most once, and one that was refused before execution never does.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Final

from attrs import evolve
from solders.hash import Hash
from solders.transaction import VersionedTransaction

from agentpay_server.chain.embedded import virtual_machine
from agentpay_server.chain.embedded.blocks import (
    FIRST_SLOT,
    BlockPosition,
    Blocks,
    SeenMessage,
    SeenMessages,
    is_signed_by_payer,
    message_hash_of,
    slot_at,
)
from agentpay_server.chain.embedded.persistence import (
    ChainHistory,
    ChainState,
    Credit,
    DepositListener,
    ForeignLedgerError,
    Ledger,
    MemoryLedger,
    PersistedPage,
    deposits_of,
)
from agentpay_server.chain.embedded.virtual_machine import (
    Executed,
    accounts_of,
    execute,
    first_accounts,
    restore_accounts,
    set_accounts,
    set_clock,
    usdc_held,
)
from agentpay_server.chain.instructions import USDC_MINTS
from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    ChainUnreachableError,
    Deposit,
    SignatureStatus,
)
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.failpoints import ChainPoint, chain_failpoint
from agentpay_server.platform.logs import log

_REMEMBERED_STATUSES: Final = 4_096  # The ledger has all of them.
_REFUSED: Final = SignatureStatus(is_final=False, is_refused=True)

logger: logging.Logger = logging.getLogger(__name__)


class LedgeredMachine:
    """A virtual machine whose transactions are stored in a ledger. Bound to the thread that created it."""

    def __init__(
        self,
        *,
        treasury: str,
        mint_authority: str,
        now_us: Callable[[], int],
        ledger: Ledger | None = None,
        channel_program: bytes | None = None,
    ) -> None:
        """Prepare a chain on the calling thread. It begins with `restore`, or with the first call.

        Args:
            treasury: address that starts with SOL for all fees and rents.
            mint_authority: address that may mint and freeze the USDC of this chain.
            now_us: the clock, in microseconds since the epoch.
            ledger: where the chain is stored and restored from; None keeps it in memory.
            channel_program: ELF file of the program of payment channels; None for ours.

        Raises:
            ValueError: `channel_program` is no program.
        """
        self._owner_thread = get_ident()
        self._treasury = treasury
        self._mint_authority = mint_authority
        self._now_us = now_us
        self._channel_program = channel_program
        self._svm = virtual_machine.acquire(channel_program)
        self._slot = FIRST_SLOT
        self._genesis = hashlib.sha256(f"{treasury} {mint_authority}".encode()).hexdigest()
        self._blocks = Blocks(self._genesis, now_us)
        # The newest position that callers were reported. The ledger must hold it before a call returns it.
        self._reported = self._blocks.position()
        # LiteSVM forgets messages, and an executed one must never execute again.
        self._statuses: dict[str, SignatureStatus] = {}
        self._names: dict[Hash, str] = {}
        self._seen = SeenMessages()
        self.history: ChainHistory = ChainHistory()
        self._ledger: Ledger = MemoryLedger() if ledger is None else ledger
        # Whether the machine has had accounts: a new one is used as it is.
        self._is_begun = False
        # Whether the machine may differ from the ledger: until the first read, and after a failed write.
        self._is_stale = True
        self._turns = asyncio.Lock()
        self._sent: list[VersionedTransaction] = []
        self._written: ChainState | None = None
        self._draft = self._new_page()
        self._listener: DepositListener | None = None
        self._observer: Callable[[VersionedTransaction, SignatureStatus], None] | None = None

    @property
    def usdc_mint(self) -> str:
        """The mint's address on mainnet, so that token accounts have the same addresses as there."""
        return USDC_MINTS["mainnet-beta"]

    async def restore(self) -> None:
        """Begin the chain, or restore it from its ledger, now rather than at the first call.

        Raises:
            ForeignLedgerError: the ledger belongs to a chain with other keys.
        """
        self._check_thread()
        async with self._turns:
            await self._restore()

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
        if self._channel_program is None:
            virtual_machine.release(self._svm)
        del self._svm

    def expire_blockhash(self) -> None:
        """Expire all blockhashes: transactions that were signed before and have not landed never will."""
        self._check_thread()
        self._blocks.begin(BLOCKHASH_LIFE_BLOCKS + 1)
        self._reported = self._blocks.position()

    def capture(self) -> Restore:
        """Begin a block, and return a function that restores the chain's current state.

        Transactions signed before can still land after a restore; those signed later cannot.

        Raises:
            RuntimeError: the ledger is append-only, or the chain has not begun.
        """
        self._check_thread()
        if self._is_stale:
            raise RuntimeError("a chain was captured before it began; call restore first")
        accounts = accounts_of(self._svm)
        parts = ("_ledger", "_seen", "history", "_blocks")
        restore_state = captured(self, *parts, "_statuses", "_names", "_slot", "_written", "_reported")

        def restore() -> None:
            self._check_thread()
            restore_accounts(self._svm, accounts)
            restore_state()
            self._sent, self._draft, self._is_stale = [], self._new_page(), False

        return restore

    # --- Turns

    async def _settled(self) -> None:
        """Wait until the ledger holds everything that the machine has executed.

        Raises:
            ChainUnreachableError: the ledger does not respond.
        """
        self._check_thread()
        if self._is_stale or self._turns.locked() or self._has_unwritten():
            await self._turn()

    async def _turn(self) -> None:
        """Execute the sent transactions and write their page; one caller at a time.

        Raises:
            ChainUnreachableError: the ledger does not respond.
        """
        async with self._turns:
            try:
                if self._is_stale:
                    await self._restore()
                sent, self._sent = self._sent, []
                # Until the ledger confirms the page, its outcome is unknown.
                self._is_stale = True
                for transaction in sent:
                    self._execute(transaction)
                if self._has_unwritten():
                    await self._write_page()
                self._is_stale = False
            except ForeignLedgerError:
                raise
            except Exception as error:
                # A full disk is one line a second, not a traceback for each caller.
                log(logger, logging.ERROR, "chain.ledger_failed", exception=error)
                raise ChainUnreachableError("the ledger of the chain does not respond") from error

    async def _write_page(self) -> None:
        page = evolve(self._draft, before=self._written, after=self._state())
        chain_failpoint(ChainPoint.EXECUTED)
        await self._ledger.write(page)
        chain_failpoint(ChainPoint.WRITTEN)
        self._written, self._draft = page.after, self._new_page()
        for executed in page.executed.values():
            self.history.add(executed)
        for credit in page.credits:
            self._notify(credit.deposit)

    async def _restore(self) -> None:
        """Rebuild the machine from the ledger, in a new block.

        Writing a page for the new block makes every earlier write fail that is still in progress.
        """
        found = await self._ledger.read()
        if self._is_begun:
            if self._channel_program is None:
                virtual_machine.release(self._svm)
            self._svm = virtual_machine.acquire(self._channel_program)
        self._is_begun = True
        self._statuses, self._names, self._draft = {}, {}, self._new_page()
        self.history.forget_recall()
        if found is None:
            self._written, self._slot = None, FIRST_SLOT
            accounts: Mapping[str, bytes] = first_accounts(
                self._svm,
                treasury=self._treasury,
                usdc_mint=self.usdc_mint,
                mint_authority=self._mint_authority,
            )
            self._draft.first_accounts.update(accounts)
        else:
            self._written, accounts = found
            if self._written.genesis != self._genesis:
                raise ForeignLedgerError(
                    "the ledger belongs to a chain with other keys; start the server with its original keys"
                )
            self._slot = self._written.slot
            self._blocks.resume(BlockPosition(self._written.height, self._written.height_since_us))
            oldest = self._written.height - BLOCKHASH_LIFE_BLOCKS
            self._seen.load(await self._ledger.seen(from_height=oldest))
        set_accounts(self._svm, accounts)
        self._reported = self._blocks.position()
        if not len(self.history):
            self.history.first_height = self._reported.height
        self._set_clock()
        await self._write_page()
        self._is_stale = False
        # The page with the unknown outcome may have been written, with deposits.
        self._notify(None)

    def _new_page(self) -> PersistedPage:
        return PersistedPage(before=self._written, after=self._state())

    def _state(self) -> ChainState:
        return ChainState(
            genesis=self._genesis,
            slot=self._slot,
            height=self._reported.height,
            height_since_us=self._reported.since_us,
        )

    def _has_unwritten(self) -> bool:
        written, reported = self._written, self._reported
        return (
            bool(self._draft.signatures)
            or written is None
            or (written.height, written.height_since_us) != (reported.height, reported.since_us)
        )

    # --- Execution

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
        self._note(signature, self._seen.refused(message_hash, self._blocks.height(), signature), _REFUSED)
        # A replacement then gets another blockhash, and is another message, even while the clock is paused.
        self._blocks.begin()

    def _record(self, executed: Executed, message_hash: Hash) -> None:
        self._slot += 1
        self._draft.credits.extend(self._credits_of(executed))
        self._draft.executed[self._slot] = executed
        self._note(executed.signature, self._seen.landed(message_hash, executed.height), executed.status)
        if self._observer is not None:
            self._observer(executed.transaction, executed.status)
        self._blocks.land()

    def _note(self, signature: str, seen: SeenMessage, status: SignatureStatus) -> None:
        """Store a transaction's status in memory and on the next page."""
        self._reported = self._blocks.position()
        self._statuses[signature], self._names[seen.message_hash] = status, signature
        self._draft.signatures[signature] = status, seen
        if len(self._statuses) > _REMEMBERED_STATUSES:
            del self._statuses[next(iter(self._statuses))]
        if len(self._names) > _REMEMBERED_STATUSES:
            del self._names[next(iter(self._names))]

    def _credits_of(self, executed: Executed) -> list[Credit]:
        if executed.error is not None:
            return []
        before, after = usdc_held(executed.before, self.usdc_mint), usdc_held(executed.after, self.usdc_mint)
        deposits = deposits_of(executed.signature, before, after)
        return [Credit(slot=self._slot, deposit=deposit) for deposit in deposits]

    def _notify(self, deposit: Deposit | None) -> None:
        if self._listener is not None:
            self._listener(deposit)

    def _set_clock(self) -> None:
        set_clock(self._svm, slot_at(self._blocks.height()), self._now_us())

    def _check_thread(self) -> None:
        if get_ident() != self._owner_thread:
            raise RuntimeError("an EmbeddedChain was used outside the thread that made it")
