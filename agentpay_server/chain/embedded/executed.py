"""The embedded chain's newest transactions, with everything that an RPC node reports. In memory only.

The status of every signature is stored elsewhere, without a limit.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from attrs import frozen
from solders.account import Account
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from solders.transaction_status import TransactionErrorType

from agentpay_server.chain.embedded.virtual_machine import failure_of, read_only_accounts, writable_accounts
from agentpay_server.chain.protocol import SignatureStatus

HISTORY_LENGTH: Final = 5_000
"""Maximum number of transactions kept, at about 5 KB each."""

_SUCCEEDED: Final = SignatureStatus(is_final=True)
_NO_SIGNATURE: Final = Signature.default()


@frozen(kw_only=True, eq=False)
class Executed:
    """An executed transaction, successful or not.

    Attributes:
        before: its writable accounts before execution; None for a missing one.
        after: the same accounts after execution.
        read_only_lamports: lamports of its read-only accounts.
    """

    signature: str
    transaction: VersionedTransaction
    height: int
    time_us: int
    error: TransactionErrorType | None
    status: SignatureStatus
    meta: TransactionMetadata
    before: Mapping[Pubkey, Account | None]
    after: Mapping[Pubkey, Account | None]
    read_only_lamports: Mapping[Pubkey, int]


def execute(
    machine: LiteSVM, transaction: VersionedTransaction, *, height: int, time_us: int
) -> Executed | None:
    """Execute a transaction, and return its effects; None if the machine refuses to execute it."""
    writable, read_only = writable_accounts(transaction), read_only_accounts(transaction)
    before = {address: machine.get_account(address) for address in writable}
    result = machine.send_transaction(transaction)
    failed = result if isinstance(result, FailedTransactionMetadata) else None
    meta = result.meta() if isinstance(result, FailedTransactionMetadata) else result
    signature = transaction.signatures[0]
    # The machine reports a refusal under the default signature, which an unsigned transaction has too.
    if meta.signature() != signature or signature == _NO_SIGNATURE:
        return None
    # A failed transaction has paid its fee and was rolled back, which is final on this chain.
    status = (
        _SUCCEEDED
        if failed is None
        else SignatureStatus(is_final=True, failure=failure_of(transaction, failed))
    )
    return Executed(
        signature=str(signature),
        transaction=transaction,
        height=height,
        time_us=time_us,
        error=None if failed is None else failed.err(),
        status=status,
        meta=meta,
        before=before,
        after={address: machine.get_account(address) for address in writable},
        read_only_lamports={address: machine.get_balance(address) or 0 for address in read_only},
    )


class History:
    """The newest transactions of a chain, oldest first.

    Attributes:
        first_height: the history is complete from this block height on.
    """

    def __init__(self) -> None:
        self.first_height: int = 0
        self._executed: dict[str, Executed] = {}
        # Transactions by address; built at the first query.
        self._by_address: dict[Pubkey, deque[Executed]] | None = None
        self._listeners: list[Callable[[Executed], None]] = []

    def add(self, executed: Executed) -> None:
        """Add a transaction, and notify the listeners."""
        self._executed[executed.signature] = executed
        if self._by_address is not None:
            _index(self._by_address, executed)
        if len(self._executed) > HISTORY_LENGTH:
            self._forget(next(iter(self._executed.values())))
        for listener in tuple(self._listeners):
            listener(executed)

    def get(self, signature: str) -> Executed | None:
        """Return a transaction; None if it is not in the history."""
        return self._executed.get(signature)

    def of_address(self, address: Pubkey) -> Iterator[Executed]:
        """Return the transactions that name an address, newest first."""
        if self._by_address is None:
            self._by_address = {}
            for executed in self._executed.values():
                _index(self._by_address, executed)
        return reversed(self._by_address.get(address, deque()))

    def __len__(self) -> int:
        return len(self._executed)

    def listen(self, listener: Callable[[Executed], None]) -> Callable[[], None]:
        """Notify `listener` of every transaction from now on, and return a function that stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def capture(self) -> Callable[[], None]:
        """Return a function that restores the current content."""
        executed, first_height = self._executed.copy(), self.first_height

        def restore() -> None:
            self._executed, self.first_height = executed.copy(), first_height
            self._by_address = None

        return restore

    def _forget(self, oldest: Executed) -> None:
        del self._executed[oldest.signature]
        self.first_height = oldest.height + 1
        if self._by_address is not None:
            for key in set(oldest.transaction.message.account_keys):
                its = self._by_address[key]
                its.popleft()
                if not its:
                    del self._by_address[key]


def _index(by_address: dict[Pubkey, deque[Executed]], executed: Executed) -> None:
    for key in set(executed.transaction.message.account_keys):
        by_address.setdefault(key, deque()).append(executed)
