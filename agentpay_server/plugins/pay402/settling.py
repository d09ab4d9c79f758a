"""The transactions of payments: how they are found on chain, and what their outcomes change.

Sellers broadcast them at any time. The embedded chain reports every transaction that it executes. A remote
cluster is polled every few seconds of real time while a payment may still land. Expiries are scheduled on the
server's clock. Waiting for a seller is not work in progress, so a stop or a snapshot does not wait for it.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve
from solders.transaction import VersionedTransaction

from agentpay.contract.errors import ErrorCode
from agentpay_server.chain.protocol import Chain, Cosigned, FailureReason, SignatureStatus
from agentpay_server.database.tables import TransferRecord
from agentpay_server.engine.authorization import Gate
from agentpay_server.engine.broadcast import first_landing_height
from agentpay_server.engine.movement import Ending, Movement
from agentpay_server.engine.policy import Refusal
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import transactions
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.scheduler import Every
from agentpay_server.plugins.pay402.building import PreparedPayment
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

_BATCH: Final = 32
_SIGNATURES: Final = 2
"""A payment has two signatures: the payer's and the fee payer's."""

_LOOK_EVERY_SECONDS: Final = 2.0
_ROUND_SECONDS: Final = 5.0
"""How long a round waits for the slowest account: spam transfers may have made its history long."""

_QUIET_SECONDS: Final = 10.0
"""Polling interval while this process has no open payments; a process that died may have left some."""


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


def handed_out(
    gate: Gate, prepared: PreparedPayment, *, kind: str, subject_id: str, name: str | None = None
) -> StoredTransaction:
    """Return the row of a transaction that a seller will broadcast.

    `name` is the signature that names it on chain, if that is known.
    """
    source, context = gate.source, gate.context
    found_by = {
        "source": source.usdc_token_account,
        "message_hash": prepared.message_hash,
        "after": gate.preflight.newest_signature,
    }
    return StoredTransaction(
        signature=prepared.signature,
        kind=kind,
        subject_id=subject_id,
        account_id=source.account_id,
        raw=prepared.raw,
        last_valid_block_height=prepared.last_valid_block_height,
        detail=json.dumps(found_by),
        announced_us=gate.now_us,
        created_us=gate.now_us,
        expires_us=gate.now_us + round(context.chain.usual_life_seconds * SECOND_US),
        chain_signature=name,
        fee=prepared.fee_lamports,
    )


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
    kind=Operation.PAYMENT,
    find=cosigned_status,
    failed=lambda ending: failed(ending, failure_of(ending)),
    expired=lambda ending: failed(ending, EXPIRED),
    announced=None,
    # The seller holds the bytes: an undone transaction could land again, and the service may not resend it.
    resign=None,
    must_be_irreversible=True,
)
"""The transaction of a payment, which the service signs and the seller broadcasts."""


class PaymentWatch:
    """Posts payments that have landed, failed or expired."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._clock = context.clock
        self._settlement = settlement
        self._every = Every(_QUIET_SECONDS)

    def expect(self) -> None:
        """Schedule polling for a payment that was handed out."""
        self._every.hasten(_LOOK_EVERY_SECONDS)

    def executed(self, transaction: VersionedTransaction) -> None:
        """Check a transaction that the embedded chain has executed."""
        signatures = [str(signature) for signature in transaction.signatures]
        if len(signatures) == _SIGNATURES and not self._settlement.is_driven(signatures[0]):
            self._context.tasks.start(self._poll_for(signatures))

    async def poll(self) -> tuple[bool, bool]:
        """Check every open payment; return whether any ended, and whether any is still open.

        Payments of different accounts do not wait for each other. A check that takes too long continues in
        the background, and its account is skipped until it ends.
        """
        seq, is_any_ended = 0, False
        seen: set[str] = set()
        while page := await self._database.read(transactions.payments_after, seq, _BATCH):
            accounts = list(dict.fromkeys(tx.account_id for tx in page))
            is_any_ended |= await self._poll_accounts(accounts, seen)
            seq = page[-1].seq
        return is_any_ended, bool(await self._database.read(transactions.payments_after, 0, 1))

    async def _poll_accounts(self, accounts: list[str], seen: set[str]) -> bool:
        """Check the payments of the accounts that are not in `seen`; return whether any has ended in time."""
        polls = [
            self._settlement.poll_payments(account_id)
            for account_id in accounts
            if account_id not in seen and not self._settlement.is_polling_payments(account_id)
        ]
        seen.update(accounts)
        if not polls:
            return False
        # On a manual clock nothing else checks again, and the chain is in this process: wait for all.
        seconds = None if self._clock.is_manual else _ROUND_SECONDS
        done, _ = await asyncio.wait(polls, timeout=seconds)
        return any(poll.result() for poll in done if not poll.cancelled() and poll.exception() is None)

    async def next_due_us(self) -> int | None:
        """Return when to check next; on a manual clock, when the next payment expires."""
        wait_us = self._every.wait_us
        if not self._clock.is_manual:
            return self._clock.now_us() + wait_us
        due_us = await self._database.read(transactions.next_expiry_us)
        # Advancing the clock does not end a payment that is due and has no outcome.
        return None if due_us is not None and due_us <= self._clock.now_us() and wait_us else due_us

    async def run_due(self) -> bool:
        """Check every payment that may still land, if it is time."""
        if self._clock.is_manual:
            due_us = await self._database.read(transactions.next_expiry_us)
            if due_us is None or due_us > self._clock.now_us():
                return False
        elif not self._every.is_due:
            return False
        is_any_ended, is_any_left = await self.poll()
        self._every.restart(_LOOK_EVERY_SECONDS if is_any_left else None)
        return is_any_ended

    async def _poll_for(self, signatures: Sequence[str]) -> Any:  # noqa: ANN401 - the result is not used
        tx: StoredTransaction | None = await self._database.read(transactions.payment_signed, signatures)
        return None if tx is None else await self._settlement.poll_one(tx)
