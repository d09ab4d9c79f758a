"""The embedded chain: LiteSVM, a Solana virtual machine inside the process, behind the `Chain` protocol.

It runs the real System, Token, Token-2022 and Memo programs, and holds a USDC mint at its mainnet address,
under an authority of ours. A send executes at once and its outcome is final at once. The chain belongs to the
thread that made it.

Without a ledger it keeps nothing beyond the process, and no coroutine here ever suspends. With one, nothing
is answered that the ledger does not hold: by turns, the machine executes what has been sent meanwhile and the
page of it is written, and whoever asks waits for the end of the turn. When a page cannot be written the
machine is ahead of what will be remembered: it is thrown away, and made again from the ledger.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from threading import get_ident
from typing import Final

from solders.hash import Hash
from solders.message import MessageV0
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import (
    TransactionErrorFieldless,
)

from agentpay_server.chain import machines
from agentpay_server.chain.base import (
    Blockhash,
    ChainUnavailableError,
    SignatureStatus,
    TokenAccount,
)
from agentpay_server.chain.deposits import Deposit, DepositBatch
from agentpay_server.chain.explorer import explorer_url
from agentpay_server.chain.instructions import USDC_MINTS
from agentpay_server.chain.journal import DepositListener, RecentCredits, deposits_of
from agentpay_server.chain.ledger import ChainState, Credit, Draft, ForeignLedgerError, Ledger
from agentpay_server.chain.machine import (
    account_at,
    accounts_of,
    bring_back,
    changed_accounts,
    failure_of,
    first_accounts,
    set_accounts,
    set_clock,
    token_account_at,
    writable_accounts,
)
from agentpay_server.chain.signing import transaction_of
from agentpay_server.faults import ChainPoint, chain_fault_point

_TRANSACTIONS_PER_BLOCKHASH: Final = 1_000  # Well inside the history, beyond which LiteSVM would replay.
_REMEMBERED_STATUSES: Final = 4_096  # More than one blockhash can land: whatever may still execute is known.
_CREDITS_PER_BATCH: Final = 100
_FIRST_SLOT: Final = 435_888_000  # As LiteSVM has it: some day on the real chain, not its beginning.
_LOCAL_RPC_URL: Final = "http://localhost:8899"
_SUCCEEDED: Final = SignatureStatus(is_final=True)

logger: logging.Logger = logging.getLogger(__name__)


class EmbeddedChain:
    """A chain of its own, in the process.

    The block height is the number of blockhashes that expired so far: a transaction can land exactly while
    the height is the one its blockhash was read at, so "unknown, and the height is above the last valid one"
    proves that it never will. That holds across restarts: a chain that is made again from its ledger goes on
    beyond every blockhash that was ever handed out. A blockhash follows from all that landed before it, as on
    a real chain: of two futures of one state, no later blockhash of one is ever valid in the other.
    """

    def __init__(
        self, *, treasury: str, mint_authority: str, now_us: Callable[[], int], ledger: Ledger | None = None
    ) -> None:
        """Start a chain, owned by the calling thread.

        Args:
            treasury: address that starts with SOL for every fee and rent.
            mint_authority: address that may mint and freeze the USDC of this chain.
            now_us: the time of each transaction, in microseconds since the epoch.
            ledger: where the chain is kept, and taken up from; None keeps it in memory.
        """
        self._owner_thread = get_ident()
        self._treasury = treasury
        self._mint_authority = mint_authority
        self._now_us = now_us
        self._svm = machines.take()
        self._slot = _FIRST_SLOT
        self._height = 0
        self._landed_under_blockhash = 0
        # LiteSVM forgets; what was executed once must stay known, and must never execute again.
        self._statuses: dict[str, SignatureStatus] = {}

        self._genesis = hashlib.sha256(f"{treasury} {mint_authority}".encode()).hexdigest()
        self._blockhash = _first_blockhash(self._genesis, 0)
        self._last_landed = b""
        self._ledger = ledger
        # Whether the machine is not the ledger's: before the first look at it, and when a page was lost.
        self._is_astray = ledger is not None
        self._turns = asyncio.Lock()
        self._sent: list[VersionedTransaction] = []
        self._written: ChainState | None = None
        self._draft = Draft()
        # Without a ledger: what came in and nobody has passed yet.
        self._recent_credits = RecentCredits()
        self._listener: DepositListener | None = None
        self._observer: Callable[[VersionedTransaction, SignatureStatus], None] | None = None
        if ledger is None:
            self._set_clock(self._slot)
            set_accounts(self._svm, self._first_accounts())

    async def restore(self) -> None:
        """Take the chain up from its ledger now, rather than at the first call; without one, do nothing.

        Raises:
            ForeignLedgerError: the ledger is of a chain that began with other keys.
        """
        self._check_thread()
        if self._ledger is not None:
            async with self._turns:
                await self._restore(self._ledger)

    def listen(self, listener: DepositListener) -> None:
        """Tell `listener` of what comes in from now on, once it is certain to be remembered.

        What came before is told by `deposits`.
        """
        self._listener = listener

    def observe(self, observer: Callable[[VersionedTransaction, SignatureStatus], None]) -> None:
        """Tell `observer` of every transaction that executes from now on, and of what became of it."""
        self._observer = observer

    def release(self) -> None:
        """Let go of the machine, for the next chain of this process; this one is of no use afterwards."""
        self._check_thread()
        machines.give_back(self._svm)
        del self._svm

    @property
    def usdc_mint(self) -> str:
        """The real mint's address: token accounts have the addresses that they have on mainnet."""
        return USDC_MINTS["mainnet-beta"]

    @property
    def is_test_chain(self) -> bool:
        """It is: whoever holds the mint authority makes its money."""
        return True

    @property
    def landing_seconds(self) -> float:
        """Nothing: a send executes at once."""
        return 0.0

    @property
    def blockhash_life_seconds(self) -> float:
        """Nothing: its height is the truth."""
        return 0.0

    def explorer_url(self, signature: str) -> str:
        """Return the page that the explorer would have, were this chain served at the usual local address."""
        return explorer_url(signature, _LOCAL_RPC_URL)

    async def latest_blockhash(self) -> Blockhash:
        """Return the one blockhash that is valid now."""
        await self._settled()
        return Blockhash(value=str(self._blockhash), last_valid_block_height=self._height)

    async def block_height(self) -> int:
        """Return how many blockhashes have expired."""
        await self._settled()
        return self._height

    async def signature_status(self, signature: str) -> SignatureStatus | None:
        """Return what became of a transaction, however long ago; None when it never landed."""
        await self._settled()
        status = self._statuses.get(signature)
        if status is None and self._ledger is not None:
            try:
                status = await self._ledger.status(signature)
            except Exception as error:
                raise ChainUnavailableError("the ledger of the chain cannot be read") from error
        return status

    async def knows_blocks(self, first_height: int, last_height: int) -> bool:  # noqa: ARG002
        """Return True: it forgets nothing."""
        return True

    async def wait_for_notice(self, signature: str, seconds: float) -> None:  # noqa: ARG002
        """Wait for `seconds`: what executes does so at once, and there is nothing to notice later."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Do nothing: what is remembered is written, and the rest ends with the process."""

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:  # noqa: ARG002
        """Execute a transaction, unless it was executed before or its blockhash has expired.

        What fails has failed for good, whatever `even_if_failing` says: nothing is ever undone here.

        Raises:
            TransactionTooLargeError: `raw` is more than a packet.
            ValueError: `raw` is not a transaction, or one that takes accounts from a look-up table.
            ChainUnavailableError: the ledger does not answer; whether the transaction landed is unknown.
        """
        self._check_thread()
        transaction = transaction_of(raw)
        if isinstance(transaction.message, MessageV0) and transaction.message.address_table_lookups:
            raise ValueError("a transaction with address look-up tables was sent; list its accounts instead")
        if self._ledger is None:
            self._execute(transaction)
        else:
            self._sent.append(transaction)
            await self._turn(self._ledger)

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        """Return the USDC token accounts at `addresses`; None where there is none, or one of another mint."""
        await self._settled()
        return [self._token_account(address) for address in addresses]

    async def deposits(
        self, token_account: str, *, after: str | None, **_: object
    ) -> AsyncIterator[DepositBatch]:
        """Yield what came in since a cursor, which is a slot, but for what the listener called its own."""
        await self._settled()
        slot = 0 if after is None else int(after)
        self._recent_credits.forget(token_account, slot)
        while page := await self._credits(token_account, slot):
            slot = page[-1].slot
            yield DepositBatch(deposits=tuple(credit.deposit for credit in page), cursor=str(slot))
            if self._ledger is None or len(page) < _CREDITS_PER_BATCH:
                return

    async def account_size(self, address: str) -> tuple[int, int] | None:
        """Return lamports and bytes of data of any account; None where there is none."""
        await self._settled()
        account = account_at(self._svm, address)
        return None if account is None else (account.lamports, len(account.data))

    async def rent_exemption(self, size: int) -> int:
        """Return the lamports that keep an account of `size` bytes of data alive for good."""
        await self._settled()
        return self._svm.minimum_balance_for_rent_exemption(size)

    def expire_blockhash(self) -> None:
        """Let the valid blockhash expire: what was signed with it and has not landed never will."""
        self._check_thread()
        following = hashlib.sha256(bytes(self._blockhash) + self._last_landed).digest()
        self._blockhash = Hash.from_bytes(following)
        self._height += 1
        self._landed_under_blockhash = 0

    def capture(self) -> Callable[[], None]:
        """Return what brings the chain back to where it stands now, to its blockhash and all it remembers.

        Raises:
            RuntimeError: it has a ledger, which only ever goes on.
        """
        self._check_thread()
        if self._ledger is not None:
            raise RuntimeError("a chain with a ledger cannot be brought back")
        accounts, statuses = accounts_of(self._svm), self._statuses.copy()
        restore_credits = self._recent_credits.capture()
        blockhash, last_landed, landed = self._blockhash, self._last_landed, self._landed_under_blockhash
        slot, height = self._slot, self._height

        def restore() -> None:
            self._check_thread()
            bring_back(self._svm, accounts)
            self._statuses = statuses.copy()
            restore_credits()
            self._blockhash, self._last_landed, self._landed_under_blockhash = blockhash, last_landed, landed
            self._slot, self._height = slot, height
            self._set_clock(slot)

        return restore

    def _execute(self, transaction: VersionedTransaction) -> None:
        signature = transaction.signatures[0]
        # With a ledger, what is not remembered cannot execute again: its blockhash expired before it was
        # forgotten.
        if str(signature) in self._statuses or transaction.message.recent_blockhash != self._blockhash:
            return
        self._set_clock(self._slot + 1)
        is_own = self._listener is not None and self._listener.is_own(str(signature))
        held = {} if is_own else self._held(transaction)
        result = self._svm.send_transaction(transaction)
        if not isinstance(result, FailedTransactionMetadata):
            # Before the blockhash may expire: they belong to the slot of their transaction.
            if not is_own:
                self._journal(transaction, str(signature), held)
            self._record(transaction, signature, _SUCCEEDED)
        elif result.err() == TransactionErrorFieldless.AlreadyProcessed:
            # It may have landed before, and the ledger knows of it.
            return
        elif self._svm.get_transaction(signature) is not None:
            # Executed, charged and undone: it is in the chain's history, which makes the failure final.
            status = SignatureStatus(is_final=True, failure=failure_of(transaction, result))
            self._record(transaction, signature, status)
        else:
            # Refused before execution for want of a signature or of the fee. A real chain's height would rise
            # until it expires; here nothing but this makes the wait for it end.
            self.expire_blockhash()

    def _record(
        self, transaction: VersionedTransaction, signature: Signature, status: SignatureStatus
    ) -> None:
        self._statuses[str(signature)] = status
        self._slot += 1
        self._last_landed = bytes(signature)
        self._landed_under_blockhash += 1
        if self._observer is not None:
            self._observer(transaction, status)
        if self._ledger is not None:
            self._note(transaction, signature, status)
        if self._landed_under_blockhash == _TRANSACTIONS_PER_BLOCKHASH:
            self.expire_blockhash()

    def _held(self, transaction: VersionedTransaction) -> dict[str, int]:
        """Return the micro-USDC in each token account that a transaction may change."""
        found = (self._token_account(str(address)) for address in writable_accounts(transaction))
        return {account.address: account.amount_micro for account in found if account is not None}

    def _journal(self, transaction: VersionedTransaction, signature: str, before: Mapping[str, int]) -> None:
        """Keep what a transaction has brought, for whoever asks for deposits."""
        for deposit in deposits_of(signature, before, self._held(transaction)):
            credit = Credit(slot=self._slot + 1, deposit=deposit)
            if self._ledger is not None:
                self._draft.credits.append(credit)
                continue
            self._recent_credits.add(credit)
            self._tell(deposit)

    async def _credits(self, token_account: str, slot: int) -> Sequence[Credit]:
        if self._ledger is None:
            return self._recent_credits.after(token_account, slot)
        try:
            return await self._ledger.credits(token_account, after_slot=slot, count=_CREDITS_PER_BATCH)
        except Exception as error:
            raise ChainUnavailableError("the ledger of the chain cannot be read") from error

    def _tell(self, deposit: Deposit | None) -> None:
        if self._listener is not None:
            self._listener.arrived(deposit)

    def _note(self, transaction: VersionedTransaction, signature: Signature, status: SignatureStatus) -> None:
        """Put what a transaction has changed on the page that is written next."""
        self._draft.accounts |= changed_accounts(self._svm, transaction)
        self._draft.statuses[str(signature)] = status
        if len(self._statuses) > _REMEMBERED_STATUSES:
            del self._statuses[next(iter(self._statuses))]

    async def _settled(self) -> None:
        """Wait until the ledger holds all that the machine has executed.

        Raises:
            ChainUnavailableError: it does not answer.
        """
        self._check_thread()
        if self._ledger is not None and (
            self._is_astray or self._turns.locked() or self._written != self._state()
        ):
            await self._turn(self._ledger)

    async def _turn(self, ledger: Ledger) -> None:
        """Execute what has been sent and write the page of it, one caller after the other.

        Raises:
            ChainUnavailableError: the ledger does not answer.
        """
        async with self._turns:
            try:
                if self._is_astray:
                    await self._restore(ledger)
                sent, self._sent = self._sent, []
                # Until the ledger says that the page is written nobody knows, whatever goes wrong.
                self._is_astray = True
                for transaction in sent:
                    self._execute(transaction)
                if self._written != self._state():
                    await self._write_page(ledger)
                self._is_astray = False
            except ForeignLedgerError:
                raise
            except Exception as error:
                logger.exception("the chain's ledger does not answer; the chain is made again from it")
                raise ChainUnavailableError("the ledger of the chain does not answer") from error

    async def _write_page(self, ledger: Ledger) -> None:
        page = self._draft.page(before=self._written, after=self._state())
        chain_fault_point(ChainPoint.EXECUTED)
        await ledger.write(page)
        chain_fault_point(ChainPoint.WRITTEN)
        self._written, self._draft = page.after, Draft()
        for credit in page.credits:
            self._tell(credit.deposit)

    async def _restore(self, ledger: Ledger) -> None:
        """Make the machine again from the ledger, with a blockhash that nobody has seen yet."""
        found = await ledger.read()
        self._svm = machines.take()
        self._statuses, self._draft = {}, Draft()
        if found is None:
            self._written, self._slot, self._height = None, _FIRST_SLOT, 0
            self._draft.accounts |= self._first_accounts()
            set_accounts(self._svm, self._draft.accounts)
        else:
            self._written, accounts = found
            if self._written.genesis != self._genesis:
                raise ForeignLedgerError(
                    "the chain in this ledger began with other keys; give the server the keys that it had"
                )
            self._slot = self._written.slot
            # Whatever was handed out before, whether it was written or not, has expired.
            self._height = max(self._written.height, self._height) + 1
            set_accounts(self._svm, accounts)
        self._blockhash, self._last_landed = _first_blockhash(self._genesis, self._height), b""
        self._landed_under_blockhash = 0
        self._set_clock(self._slot)
        await self._write_page(ledger)
        self._is_astray = False
        # The page that nobody knows of may have been written after all.
        self._tell(None)

    def _state(self) -> ChainState:
        return ChainState(genesis=self._genesis, slot=self._slot, height=self._height)

    def _first_accounts(self) -> dict[str, bytes | None]:
        return first_accounts(
            self._svm,
            treasury=self._treasury,
            usdc_mint=self.usdc_mint,
            mint_authority=self._mint_authority,
        )

    def _set_clock(self, slot: int) -> None:
        set_clock(self._svm, slot, self._now_us())

    def _token_account(self, address: str) -> TokenAccount | None:
        return token_account_at(self._svm, address, self.usdc_mint)

    def _check_thread(self) -> None:
        if get_ident() != self._owner_thread:
            raise RuntimeError("an EmbeddedChain was used outside the thread that made it")


def _first_blockhash(genesis: str, height: int) -> Hash:
    """Return the blockhash that a chain goes on with at a height at which it is made, or made again."""
    return Hash.from_bytes(hashlib.sha256(f"{genesis} {height}".encode()).digest())
