"""An executed transaction of the embedded chain, with everything that an RPC node reports."""

import struct
from collections.abc import Iterator, Mapping
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

_SUCCEEDED: Final = SignatureStatus(is_final=True)
_NO_SIGNATURE: Final = Signature.default()


@frozen(kw_only=True, eq=False)
class Executed:
    """An executed transaction, successful or not.

    Attributes:
        result: what the machine returned.
        before: its writable accounts before execution; None for a missing one.
        after: the same accounts after execution.
        read_only_lamports: lamports of its read-only accounts.
    """

    signature: str
    transaction: VersionedTransaction
    height: int
    time_us: int
    result: TransactionMetadata | FailedTransactionMetadata
    before: Mapping[Pubkey, Account | None]
    after: Mapping[Pubkey, Account | None]
    read_only_lamports: Mapping[Pubkey, int]

    @property
    def error(self) -> TransactionErrorType | None:
        """Why it failed; None if it succeeded."""
        return self.result.err() if isinstance(self.result, FailedTransactionMetadata) else None

    @property
    def meta(self) -> TransactionMetadata:
        """Its logs, fee and inner instructions."""
        return self.result.meta() if isinstance(self.result, FailedTransactionMetadata) else self.result

    @property
    def status(self) -> SignatureStatus:
        """Final: a failed transaction has paid its fee and was rolled back."""
        if isinstance(self.result, FailedTransactionMetadata):
            return SignatureStatus(is_final=True, failure=failure_of(self.transaction, self.result))
        return _SUCCEEDED

    def __bytes__(self) -> bytes:
        """Serialize it, for `from_bytes`."""
        failed = isinstance(self.result, FailedTransactionMetadata)
        parts = [bytes([failed]), bytes(self.transaction), bytes(self.result)]
        for address, account in self.before.items():
            parts += [bytes(address), _account_bytes(account), _account_bytes(self.after[address])]
        parts.append(b"")
        for address, lamports in self.read_only_lamports.items():
            parts += [bytes(address), lamports.to_bytes(8, "little")]
        return b"".join(_LENGTH.pack(len(part)) + part for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes, *, height: int, time_us: int) -> "Executed":
        """Parse a serialized transaction that executed at a height and a time."""
        parts = _parts(data)
        is_failed, transaction = next(parts) == b"\x01", VersionedTransaction.from_bytes(next(parts))
        kind = FailedTransactionMetadata if is_failed else TransactionMetadata
        result = kind.from_bytes(next(parts))
        before, after = {}, {}
        while address := next(parts):
            key = Pubkey.from_bytes(address)
            before[key], after[key] = _account(next(parts)), _account(next(parts))
        return cls(
            signature=str(transaction.signatures[0]),
            transaction=transaction,
            height=height,
            time_us=time_us,
            result=result,
            before=before,
            after=after,
            read_only_lamports={
                Pubkey.from_bytes(address): int.from_bytes(next(parts), "little") for address in parts
            },
        )


_LENGTH: Final = struct.Struct("<I")


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        yield data[at - length : at]


def _account_bytes(account: Account | None) -> bytes:
    return b"" if account is None else bytes(account)


def _account(data: bytes) -> Account | None:
    return Account.from_bytes(data) if data else None


def execute(
    machine: LiteSVM, transaction: VersionedTransaction, *, height: int, time_us: int
) -> Executed | None:
    """Execute a transaction, and return its effects; None if the machine refuses to execute it."""
    writable = writable_accounts(transaction)
    read_only = read_only_accounts(transaction, writable)
    before = {address: machine.get_account(address) for address in writable}
    result = machine.send_transaction(transaction)
    meta = result.meta() if isinstance(result, FailedTransactionMetadata) else result
    signature = transaction.signatures[0]
    # The machine reports a refusal under the default signature, which an unsigned transaction has too.
    if meta.signature() != signature or signature == _NO_SIGNATURE:
        return None
    return Executed(
        signature=str(signature),
        transaction=transaction,
        height=height,
        time_us=time_us,
        result=result,
        before=before,
        after={address: machine.get_account(address) for address in writable},
        read_only_lamports={address: machine.get_balance(address) or 0 for address in read_only},
    )
