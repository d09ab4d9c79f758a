"""The virtual machine of the embedded chain: made, read through, and brought back to what it held before.

What is executed on it, under which blockhash, and what of it is remembered is the chain's business.
"""

from collections.abc import Mapping
from typing import Final

from solders.account import Account
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain.instructions import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM

HISTORY_TRANSACTIONS: Final = 4_096
_PROGRAMS: Final = (SYSTEM_PROGRAM, TOKEN_PROGRAM, TOKEN_2022_PROGRAM)
"""The owners of all accounts that a transaction of this service's can change."""
_NO_ACCOUNT: Final = Account(0, b"", SYSTEM_PROGRAM)
"""What a machine takes for nothing at all."""


def new_machine() -> LiteSVM:
    """Return a machine with the programs and nothing else; the caller says which blockhashes are valid."""
    # Its own check knows one sequence of blockhashes, from its start, and cannot go back in it.
    return LiteSVM().with_transaction_history(HISTORY_TRANSACTIONS).with_blockhash_check(check=False)


def accounts_of(machine: LiteSVM) -> dict[Pubkey, Account]:
    """Return every account that a transaction can change."""
    return {address: account for program in _PROGRAMS for address, account in _owned(machine, program)}


def bring_back(machine: LiteSVM, accounts: Mapping[Pubkey, Account]) -> None:
    """Let a machine hold these accounts and no others, and forget which transactions it has executed.

    Those that were executed before the accounts were read must be known to the caller: the machine would
    execute them again. Those that were executed since may be executed again, since what they did is undone.
    """
    present = accounts_of(machine)
    for address, account in accounts.items():
        if present.get(address) != account:
            machine.set_account(address, account)
    for address in present.keys() - accounts.keys():
        machine.set_account(address, _NO_ACCOUNT)
    machine.with_transaction_history(0)
    machine.with_transaction_history(HISTORY_TRANSACTIONS)


def writable_accounts(transaction: VersionedTransaction) -> list[Pubkey]:
    """Return the accounts that a transaction may have changed, the payer of its fee among them."""
    header, keys = transaction.message.header, transaction.message.account_keys
    signers = header.num_required_signatures
    return [
        *keys[: signers - header.num_readonly_signed_accounts],
        *keys[signers : len(keys) - header.num_readonly_unsigned_accounts],
    ]


def _owned(machine: LiteSVM, program: Pubkey) -> list[tuple[Pubkey, Account]]:
    found: list[tuple[Pubkey, Account]] = machine.get_program_accounts(program)
    return found
