"""SQL statements that count the accounts of each operator, for `max_accounts_per_day` (interface F4).

An account costs the treasury rent. It is counted before it is provisioned, so that accounts created together
never exceed the limit, and a crash between the two counts as one. Counted accounts are numbered: the limit is
reached while the account that is `max_accounts_per_day` numbers back was counted within 24 hours.
"""

import math
from typing import Final

from sqlalchemy import bindparam, func, select

from agentpay.contract.errors import ErrorCode
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import ClaimRecord
from agentpay_server.database.tables import account_claims as table
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import DAY_US, SECOND_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.settings import PUBLIC_ACCOUNTS_PER_DAY, limit_in_force

CLAIMS: Final = Rows(ClaimRecord, "operator_id", "number")
_NEWEST: Final = select(func.max(table.c.number)).where(table.c.operator_id == bindparam("operator_id"))


def claim(context: Context, connection: Connection, operator_id: str) -> None:
    """Count an account that an operator creates. The caller holds a lock that all such callers take.

    Raises:
        Problem: `rate_limited`, `service_unavailable` while the clocks differ; nothing was counted.
    """
    limit = limit_in_force(
        context.settings.max_accounts_per_day,
        on_public_clusters=PUBLIC_ACCOUNTS_PER_DAY,
        is_test_chain=context.chain.is_test_chain,
    )
    now_us = context.clock.now_us()
    context.clock_check.require(now_us)
    number = (connection.execute(_NEWEST, {"operator_id": operator_id}).scalar_one_or_none() or 0) + 1
    if limit is not None:
        earlier = CLAIMS.get(connection, (operator_id, number - limit))
        if earlier is not None and earlier.created_us > now_us - DAY_US:
            raise Problem(
                ErrorCode.RATE_LIMITED,
                f"The limit is {limit} new accounts in 24 hours (max_accounts_per_day).",
                retry_after_seconds=math.ceil((earlier.created_us + DAY_US - now_us) / SECOND_US),
            )
    CLAIMS.insert(connection, ClaimRecord(operator_id, number, now_us))
