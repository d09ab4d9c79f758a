"""Accounts, transactions and their errors in the JSON of a Solana node. Pure functions.

The JSON that solders produces of an error differs from a node's, and clients cannot parse it.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from solders.account import Account
from solders.instruction import CompiledInstruction
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import TransactionMetadata
from solders.transaction_status import (
    InstructionErrorBorshIO,
    InstructionErrorCustom,
    InstructionErrorType,
    TransactionErrorDuplicateInstruction,
    TransactionErrorInstructionError,
    TransactionErrorInsufficientFundsForRent,
    TransactionErrorProgramExecutionTemporarilyRestricted,
    TransactionErrorType,
)

from agentpay_server.chain import parsing
from agentpay_server.chain.embedded.blocks import slot_at
from agentpay_server.chain.embedded.virtual_machine import Executed
from agentpay_server.plugins.node import parsed
from agentpay_server.plugins.node.jsonrpc import (
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
    Options,
    RpcError,
    invalid_params,
)
from agentpay_server.plugins.node.parsed import Decimals

TRANSACTION_ENCODINGS: Final = frozenset({"json", "jsonParsed", "base58", "base64", "binary"})
ACCOUNT_ENCODINGS: Final = frozenset({"binary", "base58", "base64", "base64+zstd", "jsonParsed"})
_MAX_BASE58_BYTES: Final = 128
_NEVER: Final = 2**64 - 1

Json = dict[str, Any]


AccountForm = tuple[str, slice]
"""The requested format of account data: an encoding, and which part."""


def account_form(options: Options, default: str = "binary") -> AccountForm:
    """Return the format that a call's options request."""
    encoding, part = options.choice("encoding", ACCOUNT_ENCODINGS, default), options.options("dataSlice")
    if part is None:
        return encoding, slice(None)
    offset, length = part.count("offset") or 0, part.count("length") or 0
    return encoding, slice(offset, offset + length)


def account_json(account: Account | None, form: AccountForm, decimals: Decimals) -> Json | None:
    """Return an account as JSON; None if it is missing.

    Raises:
        RpcError: its data is too long for the encoding.
    """
    if account is None or not account.lamports:
        return None
    return {
        "data": _data(account, form, decimals),
        "executable": account.executable,
        "lamports": account.lamports,
        "owner": str(account.owner),
        "rentEpoch": _NEVER,
        "space": len(account.data),
    }


def _data(account: Account, form: AccountForm, decimals: Decimals) -> object:
    encoding, part = form
    if encoding == "jsonParsed":
        found = parsed.parsed_account(account, decimals)
        if found is not None:
            return found
    data = account.data[part]
    if encoding in ("binary", "base58"):
        if len(data) > _MAX_BASE58_BYTES:
            raise RpcError(
                INVALID_REQUEST,
                "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding.",
            )
        text = parsing.to_base58(data)
        return text if encoding == "binary" else [text, "base58"]
    # Python 3.11 has no zstd, so `base64+zstd` is sent uncompressed and labelled so.
    return [base64.b64encode(data).decode("ascii"), "base64"]


def transaction_json(executed: Executed, encoding: str, most_version: int | None, decimals: Decimals) -> Json:
    """Return a transaction with all its known data.

    Raises:
        RpcError: the caller does not support its version.
    """
    return {
        "slot": slot_at(executed.height),
        "blockTime": executed.time_us // 1_000_000,
        **in_block(executed, encoding, most_version, decimals),
    }


def in_block(executed: Executed, encoding: str, most_version: int | None, decimals: Decimals) -> Json:
    """Return a transaction as a member of its block, which has slot and time.

    Raises:
        RpcError: the caller does not support its version.
    """
    return {
        "transaction": _encoded(executed.transaction, encoding),
        "meta": _meta(executed, encoding, decimals),
        **version_json(executed.transaction, most_version),
    }


def version_json(transaction: VersionedTransaction, most_version: int | None) -> Json:
    """Return the member `version` of a transaction, if requested.

    Raises:
        RpcError: the caller does not support it.
    """
    version = _version(transaction)
    if version is not None and (most_version is None or version > most_version):
        raise RpcError(
            UNSUPPORTED_VERSION,
            f"Transaction version ({version}) is not supported by the requesting client. Please try the "
            'request again with the following configuration parameter: "maxSupportedTransactionVersion": '
            f"{version}",
        )
    return {} if most_version is None else {"version": "legacy" if version is None else version}


def memo_text(transaction: VersionedTransaction) -> str | None:
    """Return a transaction's memos in the format of an address's history; None if it has none."""
    message = transaction.message
    memos = [
        bytes(step.data)
        for step in message.instructions
        if message.account_keys[step.program_id_index] in parsed.MEMO_PROGRAMS
    ]
    return "; ".join(f"[{len(memo)}] {memo.decode('utf-8', 'replace')}" for memo in memos) or None


def inner_instructions(
    meta: TransactionMetadata, keys: Sequence[Pubkey], encoding: str = "jsonParsed"
) -> list[Json]:
    """Return the instructions that a transaction's programs invoked."""
    return [
        {
            "index": index,
            "instructions": [
                instruction(step.instruction(), keys, encoding, step.stack_height()) for step in steps
            ],
        }
        for index, steps in enumerate(meta.inner_instructions())
        if steps
    ]


def return_data(meta: TransactionMetadata) -> Json | None:
    """Return the last program's return data; None if empty."""
    returned = meta.return_data()
    if not returned.data:
        return None
    data = base64.b64encode(returned.data).decode("ascii")
    return {"programId": str(returned.program_id), "data": [data, "base64"]}


def _version(transaction: VersionedTransaction) -> int | None:
    if isinstance(transaction.message, Message):
        return None
    return 0 if isinstance(transaction.message, MessageV0) else 1


def _encoded(transaction: VersionedTransaction, encoding: str) -> object:
    if encoding == "base64":
        return [base64.b64encode(bytes(transaction)).decode("ascii"), "base64"]
    if encoding in ("base58", "binary"):
        text = parsing.to_base58(bytes(transaction))
        return text if encoding == "binary" else [text, "base58"]
    message = transaction.message
    header, keys = message.header, message.account_keys
    rendered: Json = {}
    if encoding == "json":
        rendered["header"] = {
            "numRequiredSignatures": header.num_required_signatures,
            "numReadonlySignedAccounts": header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": header.num_readonly_unsigned_accounts,
        }
        rendered["accountKeys"] = [str(key) for key in keys]
    else:
        rendered["accountKeys"] = [
            {
                "pubkey": str(key),
                "signer": index < header.num_required_signatures,
                "writable": _is_writable(transaction, index),
                "source": "transaction",
            }
            for index, key in enumerate(keys)
        ]
    rendered["recentBlockhash"] = str(message.recent_blockhash)
    rendered["instructions"] = [instruction(step, keys, encoding, 1) for step in message.instructions]
    if isinstance(message, MessageV0):
        rendered["addressTableLookups"] = []
    return {"signatures": [str(signature) for signature in transaction.signatures], "message": rendered}


def _is_writable(transaction: VersionedTransaction, index: int) -> bool:
    header, count = transaction.message.header, len(transaction.message.account_keys)
    signers = header.num_required_signatures
    if index < signers:
        return index < signers - header.num_readonly_signed_accounts
    return index < count - header.num_readonly_unsigned_accounts


def instruction(
    step: CompiledInstruction, keys: Sequence[Pubkey], encoding: str, stack_height: int | None
) -> Json:
    """Return an instruction."""
    data = bytes(step.data)
    if encoding != "jsonParsed":
        return {
            "programIdIndex": step.program_id_index,
            "accounts": list(step.accounts),
            "data": parsing.to_base58(data),
            "stackHeight": stack_height,
        }
    program, accounts = keys[step.program_id_index], [str(keys[index]) for index in step.accounts]
    rendered: Json = {"programId": str(program), "stackHeight": stack_height}
    found = parsed.parsed_instruction(program, accounts, data)
    return {**rendered, **(found or {"accounts": accounts, "data": parsing.to_base58(data)})}


def _meta(executed: Executed, encoding: str, decimals: Decimals) -> Json:
    keys, meta = executed.transaction.message.account_keys, executed.meta
    error = None if executed.error is None else error_json(executed.error)
    rendered: Json = {
        "err": error,
        "status": status_json(error),
        "fee": meta.fee(),
        "preBalances": _balances(keys, executed.before, executed.read_only_lamports),
        "postBalances": _balances(keys, executed.after, executed.read_only_lamports),
        "preTokenBalances": _token_balances(keys, executed.before, decimals),
        "postTokenBalances": _token_balances(keys, executed.after, decimals),
        "innerInstructions": inner_instructions(meta, keys, encoding),
        "logMessages": meta.logs(),
        "rewards": [],
        "computeUnitsConsumed": meta.compute_units_consumed(),
    }
    if encoding != "jsonParsed":
        rendered["loadedAddresses"] = {"writable": [], "readonly": []}
    returned = return_data(meta)
    return rendered if returned is None else {**rendered, "returnData": returned}


def status_json(error: object) -> Json:
    """Return the status in the legacy format that preceded `err`."""
    return {"Ok": None} if error is None else {"Err": error}


def _balances(
    keys: Sequence[Pubkey], accounts: Mapping[Pubkey, Account | None], read_only: Mapping[Pubkey, int]
) -> list[int]:
    balances = []
    for key in keys:
        account = accounts.get(key)
        balances.append(read_only.get(key, 0) if account is None else account.lamports)
    return balances


def _token_balances(
    keys: Sequence[Pubkey], accounts: Mapping[Pubkey, Account | None], decimals: Decimals
) -> list[Json]:
    balances: list[Json] = []
    for index, key in enumerate(keys):
        account = accounts.get(key)
        held = None if account is None else parsed.token_account(account)
        if account is not None and held is not None:
            balances.append(
                {
                    "accountIndex": index,
                    "mint": str(held.mint),
                    "owner": str(held.owner),
                    "programId": str(account.owner),
                    "uiTokenAmount": parsed.token_amount(held.amount, decimals(held.mint)),
                }
            )
    return balances


def read_transaction(text: str, encoding: str) -> VersionedTransaction:
    """Parse an encoded transaction, signed or not.

    Raises:
        RpcError: it is malformed.
    """
    most = _MAX_TRANSACTION_TEXT[encoding]
    if len(text) > most:
        raise invalid_params(
            f"{encoding} encoded transaction too large: {len(text)} characters (max: {most})"
        )
    try:
        raw = base64.b64decode(text, validate=True) if encoding == "base64" else parsing.from_base58(text)
    except ValueError:
        raise invalid_params(f"invalid {encoding} encoding") from None
    if len(raw) > _MAX_TRANSACTION_BYTES:
        raise invalid_params(
            f"decoded transaction too large: {len(raw)} bytes (max: {_MAX_TRANSACTION_BYTES})"
        )
    try:
        transaction = VersionedTransaction.from_bytes(raw)
        transaction.sanitize()
    except Exception as error:  # noqa: BLE001 - solders has several kinds of it
        raise invalid_params(f"failed to deserialize the transaction: {str(error)[:200]}") from None
    return transaction


_MAX_TRANSACTION_BYTES: Final = 1_232
_MAX_TRANSACTION_TEXT: Final = {"base58": 1_683, "base64": 1_644}


_WORDS: Final = {
    "AccountInUse": "Account in use",
    "AccountLoadedTwice": "Account loaded twice",
    "AccountNotFound": "Attempt to debit an account but found no record of a prior credit.",
    "ProgramAccountNotFound": "Attempt to load a program that does not exist",
    "InsufficientFundsForFee": "Insufficient funds for fee",
    "InvalidAccountForFee": "This account may not be used to pay transaction fees",
    "AlreadyProcessed": "This transaction has already been processed",
    "BlockhashNotFound": "Blockhash not found",
    "MissingSignatureForFee": "Transaction requires a fee but has no signature present",
    "InvalidAccountIndex": "Transaction contains an invalid account reference",
    "SignatureFailure": "Transaction did not pass signature verification",
    "InvalidProgramForExecution": "This program may not be used for executing instructions",
    "SanitizeFailure": "Transaction failed to sanitize accounts offsets correctly",
    "AddressLookupTableNotFound": "Transaction loads an address table account that doesn't exist",
    "UnbalancedTransaction": "Sum of account balances before and after transaction do not match",
}
_INSTRUCTION_WORDS: Final = {
    "GenericError": "generic instruction error",
    "InvalidArgument": "invalid program argument",
    "InvalidInstructionData": "invalid instruction data",
    "InvalidAccountData": "invalid account data for instruction",
    "AccountDataTooSmall": "account data too small for instruction",
    "InsufficientFunds": "insufficient funds for instruction",
    "IncorrectProgramId": "incorrect program id for instruction",
    "MissingRequiredSignature": "missing required signature for instruction",
    "AccountAlreadyInitialized": "instruction requires an uninitialized account",
    "UninitializedAccount": "instruction requires an initialized account",
    "NotEnoughAccountKeys": "insufficient account keys for instruction",
    "InvalidAccountOwner": "Invalid account owner",
    "ComputationalBudgetExceeded": "Computational budget exceeded",
    "ProgramFailedToComplete": "Program failed to complete",
    "InvalidSeeds": "Provided seeds do not result in a valid address",
    "AccountNotRentExempt": "An account does not have enough lamports to be rent-exempt",
    "IllegalOwner": "Provided owner is not allowed",
    "MissingAccount": "An account required by the instruction is missing",
    "UnsupportedProgramId": "Unsupported program id",
    "BorshIoError": "Failed to serialize or deserialize account data",
}


def error_json(error: TransactionErrorType) -> object:
    """Return an error in a node's JSON."""
    if isinstance(error, TransactionErrorInstructionError):
        return {"InstructionError": [error.index, _instruction_error_json(error.err)]}
    if isinstance(error, TransactionErrorDuplicateInstruction):
        return {"DuplicateInstruction": error.index}
    if isinstance(error, TransactionErrorInsufficientFundsForRent):
        return {"InsufficientFundsForRent": {"account_index": error.account_index}}
    if isinstance(error, TransactionErrorProgramExecutionTemporarilyRestricted):
        return {"ProgramExecutionTemporarilyRestricted": {"account_index": error.account_index}}
    return _name(error)


def error_words(error: TransactionErrorType) -> str:
    """Return an error in a node's words."""
    if isinstance(error, TransactionErrorInstructionError):
        cause = error.err
        if isinstance(cause, InstructionErrorCustom):
            words = f"custom program error: {cause.code:#x}"
        else:
            name = "BorshIoError" if isinstance(cause, InstructionErrorBorshIO) else _name(cause)
            words = _INSTRUCTION_WORDS.get(name, name)
        return f"Error processing Instruction {error.index}: {words}"
    if isinstance(error, TransactionErrorDuplicateInstruction):
        return f"Transaction contains a duplicate instruction ({error.index}) that is not allowed"
    if isinstance(error, TransactionErrorInsufficientFundsForRent):
        index = error.account_index
        return f"Transaction results in an account ({index}) with insufficient funds for rent"
    name = _name(error)
    return _WORDS.get(name, name)


def _instruction_error_json(error: InstructionErrorType) -> object:
    if isinstance(error, InstructionErrorCustom):
        return {"Custom": error.code}
    return "BorshIoError" if isinstance(error, InstructionErrorBorshIO) else _name(error)


def _name(error: object) -> str:
    return str(error).rpartition(".")[2]
