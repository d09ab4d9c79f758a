"""The transactions of payments: how they are found on chain, and what their outcomes change."""

import json
from typing import Any, Final

from attrs import evolve

from agentpay.contract.errors import ErrorCode
from agentpay_server.chain.protocol import Chain, Cosigned, FailureReason, SignatureStatus
from agentpay_server.database.tables import TransferRecord
from agentpay_server.engine.broadcast import first_landing_height
from agentpay_server.engine.movement import Ending, Movement
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger.transactions import Kind, StoredTransaction
from agentpay_server.transfers.outcomes import TRANSFER, failed

EXPIRED: Final = Refusal(
    code=ErrorCode.PAYMENT_EXPIRED,
    message="This payment did not land on chain in time, and nothing was moved. A new "
    "purchase needs a new idempotency_key.",
)
_FAILED: Final = "The chain refused this payment when the seller broadcast it: {}. Nothing was moved. A new "
_REASONS: Final = {
    FailureReason.INSUFFICIENT_FUNDS: "the balance had fallen below the amount",
    FailureReason.ACCOUNT_FROZEN: "one of its token accounts was frozen",
    FailureReason.ACCOUNT_MISSING: "one of its token accounts did not exist",
}


def failure_of(ending: Ending[Any]) -> Refusal:
    """Return why the chain refused the transaction of a payment."""
    assert ending.failure is not None  # noqa: S101 - it has failed
    reason = _REASONS.get(ending.failure.reason, "the transaction failed")
    message = f"{_FAILED.format(reason)}purchase needs a new idempotency_key."
    return Refusal(code=ErrorCode.PAYMENT_FAILED, message=message)


async def cosigned_status(
    chain: Chain, tx: StoredTransaction, *, proof_height: int | None
) -> SignatureStatus | None:
    """Look up a transaction that a seller broadcasts: by its signature if known, else by its message."""
    if tx.chain_signature is None:
        return await chain.find_cosigned(cosigned_of(tx), proof_height=proof_height)
    status = await chain.signature_status(tx.chain_signature)
    return None if status is None else evolve(status, chain_signature=tx.chain_signature)


def detail_of(cosigned: Cosigned) -> str:
    """Encode the search criteria of a payment for its transaction row."""
    found_by = {
        "source": cosigned.token_account,
        "message_hash": cosigned.message_hash,
        "after": cosigned.after,
    }
    return json.dumps(found_by)


def cosigned_of(tx: StoredTransaction) -> Cosigned:
    """Decode the search criteria of a payment."""
    found_by = json.loads(tx.detail or "{}")
    return Cosigned(
        token_account=found_by["source"],
        signature=tx.signature,
        message_hash=found_by["message_hash"],
        after=found_by["after"],
        first_height=first_landing_height(tx.last_valid_block_height),
    )


PAYMENT: Final[Movement[TransferRecord]] = evolve(
    TRANSFER,
    kind=Kind.PAYMENT,
    find=cosigned_status,
    failed=lambda ending: failed(ending, failure_of(ending)),
    expired=lambda ending: failed(ending, EXPIRED),
    announced=None,
    # The seller holds the bytes: an undone transaction could land again, and the service may not resend it.
    resign=None,
    must_be_irreversible=True,
)
"""The transaction of a payment, which the service signs and the seller broadcasts."""
