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

from solders.account import Account
from solders.clock import Clock
from solders.litesvm import LiteSVM
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token.state import Mint
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import (
    InstructionErrorCustom,
    TransactionErrorFieldless,
    TransactionErrorInstructionError,
)

from agentpay_server.chain.base import (
    Blockhash,
    ChainUnavailableError,
    Failure,
    FailureReason,
    SignatureStatus,
    TokenAccount,
)
from agentpay_server.chain.deposits import Deposit, DepositBatch
from agentpay_server.chain.explorer import explorer_url
from agentpay_server.chain.failures import failure_reason
from agentpay_server.chain.instructions import SYSTEM_PROGRAM, TOKEN_PROGRAM, USDC_DECIMALS, USDC_MINTS
from agentpay_server.chain.journal import DepositListener, RecentCredits, deposits_of
from agentpay_server.chain.ledger import ChainState, Credit, ForeignLedgerError, Ledger, Page
from agentpay_server.chain.signing import MAX_TRANSACTION_BYTES, TransactionTooLargeError
from agentpay_server.chain.token_accounts import read_token_account
from agentpay_server.faults import ChainPoint, chain_fault_point

_HISTORY_TRANSACTIONS: Final = 4_096
_TRANSACTIONS_PER_BLOCKHASH: Final = 1_000  # Well inside the history, beyond which LiteSVM would replay.
_REMEMBERED_STATUSES: Final = 4_096  # More than one blockhash can land: whatever may still execute is known.
_CREDITS_PER_BATCH: Final = 100
_TREASURY_LAMPORTS: Final = 10**18
_LOCAL_RPC_URL: Final = "http://localhost:8899"
_SUCCEEDED: Final = SignatureStatus(is_final=True)
# Neither says that the transaction failed: it may have landed before, and the ledger knows of it.
_NOT_EXECUTED: Final = (
    TransactionErrorFieldless.AlreadyProcessed,
    TransactionErrorFieldless.BlockhashNotFound,
)

logger = logging.getLogger(__name__)


class EmbeddedChain:
    """A chain of its own, in the process.

    The block height is the number of blockhashes that expired so far: a transaction can land exactly while
    the height is the one its blockhash was read at, so "unknown, and the height is above the last valid one"
    proves that it never will. That holds across restarts: the sequence of blockhashes is always the same, and
    a chain that is made again from its ledger goes on beyond every one that was ever handed out.
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
        self._svm = _machine()
        self._slot = self._svm.get_clock().slot
        self._height = 0
        self._landed_under_blockhash = 0
        # LiteSVM forgets; what was executed once must stay known, and must never execute again.
        self._statuses: dict[str, SignatureStatus] = {}

        self._genesis = hashlib.sha256(f"{treasury} {mint_authority}".encode()).hexdigest()
        self._ledger = ledger
        # Whether the machine is not the ledger's: before the first look at it, and when a page was lost.
        self._is_astray = ledger is not None
        self._turns = asyncio.Lock()
        self._sent: list[VersionedTransaction] = []
        self._written: ChainState | None = None
        self._changed_accounts: dict[str, bytes | None] = {}
        self._changed_statuses: dict[str, SignatureStatus] = {}
        self._new_credits: list[Credit] = []
        # Without a ledger: what came in and nobody has passed yet.
        self._recent_credits = RecentCredits()
        self._listener: DepositListener | None = None
        if ledger is None:
            self._set_accounts(self._first_accounts())

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

    @property
    def usdc_mint(self) -> str:
        """The real mint's address: token accounts have the addresses that they have on mainnet."""
        return USDC_MINTS["mainnet-beta"]

    @property
    def is_test_chain(self) -> bool:
        """It is: whoever holds the mint authority makes its money."""
        return True

    def explorer_url(self, signature: str) -> str:
        """Return the page that the explorer would have, were this chain served at the usual local address."""
        return explorer_url(signature, _LOCAL_RPC_URL)

    async def latest_blockhash(self) -> Blockhash:
        """Return the one blockhash that is valid now."""
        await self._settled()
        return Blockhash(value=str(self._svm.latest_blockhash()), last_valid_block_height=self._height)

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

    async def send(self, raw: bytes) -> None:
        """Execute a transaction, unless it was executed before or its blockhash has expired.

        Raises:
            TransactionTooLargeError: `raw` is more than a packet.
            ValueError: `raw` is not a transaction, or one that takes accounts from a look-up table.
            ChainUnavailableError: the ledger does not answer; whether the transaction landed is unknown.
        """
        self._check_thread()
        if len(raw) > MAX_TRANSACTION_BYTES:
            raise TransactionTooLargeError(f"{len(raw)} bytes sent, the limit is {MAX_TRANSACTION_BYTES}")
        transaction = VersionedTransaction.from_bytes(raw)
        if not transaction.signatures:
            raise ValueError("a transaction without signatures was sent")
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

    async def deposits(self, token_account: str, *, after: str | None) -> AsyncIterator[DepositBatch]:
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
        account = self._account(address)
        return None if account is None else (account.lamports, len(account.data))

    async def rent_exemption(self, size: int) -> int:
        """Return the lamports that keep an account of `size` bytes of data alive for good."""
        await self._settled()
        return self._svm.minimum_balance_for_rent_exemption(size)

    def expire_blockhash(self) -> None:
        """Let the valid blockhash expire: what was signed with it and has not landed never will."""
        self._check_thread()
        self._svm.expire_blockhash()
        self._height += 1
        self._landed_under_blockhash = 0

    def _execute(self, transaction: VersionedTransaction) -> None:
        signature = transaction.signatures[0]
        # With a ledger, what is not remembered cannot execute again: its blockhash expired before it was
        # forgotten.
        if str(signature) in self._statuses:
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
        elif result.err() in _NOT_EXECUTED:
            return
        elif self._svm.get_transaction(signature) is not None:
            # Executed, charged and undone: it is in the chain's history, which makes the failure final.
            status = SignatureStatus(is_final=True, failure=_failure(transaction, result))
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
        self._landed_under_blockhash += 1
        if self._ledger is not None:
            self._note(transaction, signature, status)
        if self._landed_under_blockhash == _TRANSACTIONS_PER_BLOCKHASH:
            self.expire_blockhash()

    def _held(self, transaction: VersionedTransaction) -> dict[str, int]:
        """Return the micro-USDC in each token account that a transaction may change."""
        found = (self._token_account(str(address)) for address in _writable(transaction))
        return {account.address: account.amount_micro for account in found if account is not None}

    def _journal(self, transaction: VersionedTransaction, signature: str, before: Mapping[str, int]) -> None:
        """Keep what a transaction has brought, for whoever asks for deposits."""
        for deposit in deposits_of(signature, before, self._held(transaction)):
            credit = Credit(slot=self._slot + 1, deposit=deposit)
            if self._ledger is not None:
                self._new_credits.append(credit)
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
        for address in _writable(transaction):
            account = self._svm.get_account(address)
            self._changed_accounts[str(address)] = (
                bytes(account) if account is not None and account.lamports else None
            )
        self._changed_statuses[str(signature)] = status
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
        page = Page(
            before=self._written,
            after=self._state(),
            accounts=self._changed_accounts,
            statuses=self._changed_statuses,
            credits=self._new_credits,
        )
        chain_fault_point(ChainPoint.EXECUTED)
        await ledger.write(page)
        chain_fault_point(ChainPoint.WRITTEN)
        self._written, self._changed_accounts, self._changed_statuses = page.after, {}, {}
        self._new_credits = []
        for credit in page.credits:
            self._tell(credit.deposit)

    async def _restore(self, ledger: Ledger) -> None:
        """Make the machine again from the ledger, with a blockhash that nobody has seen yet."""
        found = await ledger.read()
        self._svm = _machine()
        self._statuses, self._changed_accounts, self._changed_statuses = {}, {}, {}
        self._new_credits = []
        if found is None:
            self._written, self._slot, self._height = None, self._svm.get_clock().slot, 0
            self._changed_accounts |= self._first_accounts()
            self._set_accounts(self._changed_accounts)
        else:
            self._written, accounts = found
            if self._written.genesis != self._genesis:
                raise ForeignLedgerError(
                    "the chain in this ledger began with other keys; give the server the keys that it had"
                )
            self._slot = self._written.slot
            # Whatever was handed out before, whether it was written or not, has expired.
            self._height = max(self._written.height, self._height) + 1
            self._set_accounts(accounts)
        for _ in range(self._height):
            self._svm.expire_blockhash()
        self._landed_under_blockhash = 0
        self._set_clock(self._slot)
        await self._write_page(ledger)
        self._is_astray = False
        # The page that nobody knows of may have been written after all.
        self._tell(None)

    def _state(self) -> ChainState:
        return ChainState(genesis=self._genesis, slot=self._slot, height=self._height)

    def _first_accounts(self) -> dict[str, bytes | None]:
        authority = Pubkey.from_string(self._mint_authority)
        mint = bytes(Mint(authority, 0, USDC_DECIMALS, is_initialized=True, freeze_authority=authority))
        rent = self._svm.minimum_balance_for_rent_exemption(len(mint))
        return {
            self._treasury: bytes(Account(_TREASURY_LAMPORTS, b"", SYSTEM_PROGRAM)),
            self.usdc_mint: bytes(Account(rent, mint, TOKEN_PROGRAM)),
        }

    def _set_accounts(self, accounts: Mapping[str, bytes | None]) -> None:
        for address, account in accounts.items():
            if account is not None:
                self._svm.set_account(Pubkey.from_string(address), Account.from_bytes(account))

    def _set_clock(self, slot: int) -> None:
        self._svm.set_clock(
            Clock(
                slot=slot,
                epoch_start_timestamp=0,
                epoch=0,
                leader_schedule_epoch=0,
                unix_timestamp=self._now_us() // 1_000_000,
            )
        )

    def _token_account(self, address: str) -> TokenAccount | None:
        account = self._account(address)
        if account is None:
            return None
        return read_token_account(
            address, program=str(account.owner), data=account.data, usdc_mint=self.usdc_mint
        )

    def _account(self, address: str) -> Account | None:
        try:
            pubkey = Pubkey.from_string(address)
        except ValueError:  # Nothing can be at what is no address.
            return None
        return self._svm.get_account(pubkey)

    def _check_thread(self) -> None:
        if get_ident() != self._owner_thread:
            raise RuntimeError("an EmbeddedChain was used outside the thread that made it")


def _machine() -> LiteSVM:
    return LiteSVM().with_transaction_history(_HISTORY_TRANSACTIONS)


def _writable(transaction: VersionedTransaction) -> list[Pubkey]:
    """Return the accounts that a transaction may have changed, the payer of its fee among them."""
    header, keys = transaction.message.header, transaction.message.account_keys
    signers = header.num_required_signatures
    return [
        *keys[: signers - header.num_readonly_signed_accounts],
        *keys[signers : len(keys) - header.num_readonly_unsigned_accounts],
    ]


def _failure(transaction: VersionedTransaction, result: FailedTransactionMetadata) -> Failure:
    error = result.err()
    logs = result.meta().logs()
    reason = FailureReason.OTHER
    if isinstance(error, TransactionErrorInstructionError):
        message = transaction.message
        program = message.account_keys[message.instructions[error.index].program_id_index]
        cause = error.err
        code = cause.code if isinstance(cause, InstructionErrorCustom) else str(cause).rpartition(".")[2]
        reason = failure_reason(str(program), code)
    return Failure(reason=reason, detail=f"{error}: {logs[-1]}" if logs else str(error))
