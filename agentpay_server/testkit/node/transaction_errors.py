"""Why a transaction failed, in a node's JSON and in its error texts. Pure functions.

The JSON that solders produces differs from a node's, and clients cannot parse it.
"""

from typing import Final

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
