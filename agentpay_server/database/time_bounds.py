"""Filters by time, for lists that are read in order of sequence numbers.

Times follow the numbers only roughly: a transaction takes its number before it commits, and the clocks of
several servers differ. So an index of times gives the numbers around a moment, with some slack, and the times
within are compared exactly. The cost does not grow with the list.
"""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Table, bindparam, func, literal, select

from agentpay_server.platform.clock import end_of_millisecond_us

SLACK_US: Final = 600_000_000
"""How far times may be out of order."""

_END: Final = 2**63 - 1

_OPERATOR: Final[BindParameter[str]] = bindparam("operator_id")
# Without a type they would have that of the slack, and PostgreSQL refuses a time as an INTEGER.
_SINCE: Final[BindParameter[int]] = bindparam("since_us", type_=BigInteger)
_UNTIL: Final[BindParameter[int]] = bindparam("until_us", type_=BigInteger)


def after(table: Table) -> tuple[ColumnElement[Any], ...]:
    """Return the conditions for rows after `since_us`."""
    near = table.alias("near_since")
    well_before = (
        select(near.c.seq)
        .where(near.c.operator_id == _OPERATOR, near.c.created_us <= _SINCE - literal(SLACK_US, BigInteger))
        .order_by(near.c.created_us.desc(), near.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    return table.c.seq > func.coalesce(well_before, literal(0, BigInteger)), table.c.created_us > _SINCE


def up_to(table: Table) -> tuple[ColumnElement[Any], ...]:
    """Return the conditions for rows up to `until_us`."""
    near = table.alias("near_until")
    well_after = (
        select(near.c.seq)
        .where(near.c.operator_id == _OPERATOR, near.c.created_us > _UNTIL + literal(SLACK_US, BigInteger))
        .order_by(near.c.created_us, near.c.seq)
        .limit(1)
        .scalar_subquery()
    )
    return table.c.seq < func.coalesce(well_after, literal(_END, BigInteger)), table.c.created_us <= _UNTIL


def period(since: datetime | None, until: datetime | None) -> dict[str, int | None]:
    """Return the parameters for rows after `since`, up to and including `until`, to the millisecond."""
    return {
        "since_us": None if since is None else end_of_millisecond_us(since),
        "until_us": None if until is None else end_of_millisecond_us(until),
    }
