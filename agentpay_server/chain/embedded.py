"""The embedded chain: LiteSVM, a Solana virtual machine inside the process, behind the `Chain` protocol.

It runs the real System, Token, Token-2022 and Memo programs, and holds a USDC mint at its mainnet address,
under an authority of ours. A send executes at once and its outcome is final at once, so no coroutine here
suspends, but for the wait for nothing. It keeps nothing beyond the process, and belongs to the thread that
made it.
"""

import asyncio
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Final

from solders.account import Account
from solders.clock import Clock
from solders.litesvm import LiteSVM
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

from agentpay_server.chain.base import Blockhash, Failure, FailureReason, SignatureStatus, TokenAccount
from agentpay_server.chain.explorer import explorer_url
from agentpay_server.chain.failures import failure_reason
from agentpay_server.chain.instructions import SYSTEM_PROGRAM, TOKEN_PROGRAM, USDC_DECIMALS, USDC_MINTS
from agentpay_server.chain.signing import MAX_TRANSACTION_BYTES, TransactionTooLargeError
from agentpay_server.chain.token_accounts import read_token_account

_HISTORY_TRANSACTIONS: Final = 4_096
_TRANSACTIONS_PER_BLOCKHASH: Final = 1_000  # Well inside the history, beyond which LiteSVM would replay.
_TREASURY_LAMPORTS: Final = 10**18
_LOCAL_RPC_URL: Final = "http://localhost:8899"
_SUCCEEDED: Final = SignatureStatus(is_final=True)


class EmbeddedChain:
    """A chain of its own, in memory.

    The block height is the number of blockhashes that expired so far: a transaction can land exactly while
    the height is the one its blockhash was read at, so "unknown, and the height is above the last valid one"
    proves that it never will.
    """

    def __init__(self, *, treasury: str, mint_authority: str, now_us: Callable[[], int]) -> None:
        """Start an empty chain, owned by the calling thread.

        Args:
            treasury: address that starts with SOL for every fee and rent.
            mint_authority: address that may mint and freeze the USDC of this chain.
            now_us: the time of each transaction, in microseconds since the epoch.
        """
        self._owner_thread = get_ident()
        self._now_us = now_us
        self._svm = LiteSVM().with_transaction_history(_HISTORY_TRANSACTIONS)
        self._slot = self._svm.get_clock().slot
        self._height = 0
        self._landed_under_blockhash = 0
        # LiteSVM forgets; what was executed once must stay known, and must never execute again.
        self._statuses: dict[str, SignatureStatus] = {}

        authority = Pubkey.from_string(mint_authority)
        mint = Mint(authority, 0, USDC_DECIMALS, is_initialized=True, freeze_authority=authority)
        self._svm.set_account(Pubkey.from_string(treasury), Account(_TREASURY_LAMPORTS, b"", SYSTEM_PROGRAM))
        data = bytes(mint)
        rent = self._svm.minimum_balance_for_rent_exemption(len(data))
        self._svm.set_account(Pubkey.from_string(self.usdc_mint), Account(rent, data, TOKEN_PROGRAM))

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
        self._check_thread()
        return Blockhash(value=str(self._svm.latest_blockhash()), last_valid_block_height=self._height)

    async def block_height(self) -> int:
        """Return how many blockhashes have expired."""
        self._check_thread()
        return self._height

    async def signature_status(self, signature: str) -> SignatureStatus | None:
        """Return what became of a transaction, however long ago; None when it never landed."""
        self._check_thread()
        return self._statuses.get(signature)

    async def first_known_height(self) -> int:
        """Return 0: it forgets nothing."""
        return 0

    async def wait_for_notice(self, signature: str, seconds: float) -> None:  # noqa: ARG002
        """Wait for `seconds`: what executes does so at once, and there is nothing to notice later."""
        await asyncio.sleep(seconds)

    async def send(self, raw: bytes) -> None:
        """Execute a transaction, unless it was executed before or its blockhash has expired.

        Raises:
            TransactionTooLargeError: `raw` is more than a packet.
            ValueError: `raw` is not a transaction.
        """
        self._check_thread()
        if len(raw) > MAX_TRANSACTION_BYTES:
            raise TransactionTooLargeError(f"{len(raw)} bytes sent, the limit is {MAX_TRANSACTION_BYTES}")
        transaction = VersionedTransaction.from_bytes(raw)
        if not transaction.signatures:
            raise ValueError("a transaction without signatures was sent")
        signature = transaction.signatures[0]
        if str(signature) not in self._statuses:
            self._execute(transaction, signature)

    async def token_accounts(self, addresses: Sequence[str]) -> list[TokenAccount | None]:
        """Return the USDC token accounts at `addresses`; None where there is none, or one of another mint."""
        self._check_thread()
        return [self._token_account(address) for address in addresses]

    async def account_size(self, address: str) -> tuple[int, int] | None:
        """Return lamports and bytes of data of any account; None where there is none."""
        self._check_thread()
        account = self._account(address)
        return None if account is None else (account.lamports, len(account.data))

    async def rent_exemption(self, size: int) -> int:
        """Return the lamports that keep an account of `size` bytes of data alive for good."""
        self._check_thread()
        return self._svm.minimum_balance_for_rent_exemption(size)

    def expire_blockhash(self) -> None:
        """Let the valid blockhash expire: what was signed with it and has not landed never will."""
        self._check_thread()
        self._svm.expire_blockhash()
        self._height += 1
        self._landed_under_blockhash = 0

    def _execute(self, transaction: VersionedTransaction, signature: Signature) -> None:
        self._svm.set_clock(
            Clock(
                slot=self._slot + 1,
                epoch_start_timestamp=0,
                epoch=0,
                leader_schedule_epoch=0,
                unix_timestamp=self._now_us() // 1_000_000,
            )
        )
        result = self._svm.send_transaction(transaction)
        if not isinstance(result, FailedTransactionMetadata):
            self._record(signature, _SUCCEEDED)
        elif self._svm.get_transaction(signature) is not None:
            # Executed, charged and undone: it is in the chain's history, which makes the failure final.
            self._record(signature, SignatureStatus(is_final=True, failure=_failure(transaction, result)))
        elif result.err() != TransactionErrorFieldless.BlockhashNotFound:
            # Refused before execution for want of a signature or of the fee. A real chain's height would rise
            # until it expires; here nothing but this makes the wait for it end.
            self.expire_blockhash()

    def _record(self, signature: Signature, status: SignatureStatus) -> None:
        self._statuses[str(signature)] = status
        self._slot += 1
        self._landed_under_blockhash += 1
        if self._landed_under_blockhash == _TRANSACTIONS_PER_BLOCKHASH:
            self.expire_blockhash()

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
