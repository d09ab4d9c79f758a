"""What the fees of an account are by the books (interface F1)."""

from agentpay_server.database.connection import Connection
from agentpay_server.engine import funding
from agentpay_server.ledger import accounts
from agentpay_server.ledger.context import Context


async def counted(context: Context, account_id: str, *, by_operator: bool = True) -> tuple[int, int]:
    """Return the lamports that operators' or agents' work has burned, and that unfinished work may burn."""
    now_us = context.clock.now_us()

    def unit(connection: Connection) -> tuple[int, int]:
        record = accounts.ACCOUNTS.existing(connection, account_id)
        return (
            funding.burned(connection, record, now_us, by_operator=by_operator),
            funding.reserved(connection, account_id, by_operator=by_operator),
        )

    return await context.database.run(unit)


async def budget(context: Context) -> int | None:
    """Return the lamports that an account may burn in a day; None if it has no limit."""
    return funding.budget_lamports(context)
