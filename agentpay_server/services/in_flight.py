"""Waiting for all that may yet leave an account's balance: its submitted transfers, its opening sessions.

Whoever finds a balance that may be less than it looks waits here, and reads it again.
"""

from agentpay_server.context import Context
from agentpay_server.database.connection import Connection
from agentpay_server.services.sessions.opening import OpeningSteps
from agentpay_server.services.settlement import Settlement
from agentpay_server.services.transfers.settling import TransferSteps
from agentpay_server.store import sessions, transfers
from agentpay_server.store.sessions import SessionRecord
from agentpay_server.store.transfers import TransferRecord


async def finish_in_flight(
    context: Context, settlement: Settlement, account_id: str, deadline: float
) -> None:
    """Bring what is in flight out of an account to its end, as far as that goes until `deadline`."""
    submitted, opening = await context.database.read(_in_flight, account_id)
    for transfer in submitted:
        await settlement.settle(
            transfer.transfer_id,
            transfer.signed,
            TransferSteps(context, transfer),
            is_new=False,
            deadline=deadline,
        )
    for session in opening:
        if session.signed is not None:
            steps = OpeningSteps(context, session)
            await settlement.settle(
                session.session_id, session.signed, steps, is_new=False, deadline=deadline
            )


def _in_flight(connection: Connection, account_id: str) -> tuple[list[TransferRecord], list[SessionRecord]]:
    return transfers.submitted(connection, account_id), sessions.opening(connection, account_id)
