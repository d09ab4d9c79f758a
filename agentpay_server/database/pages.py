"""Pages of lists: cursors, and filters by time.

A cursor is an opaque string, valid for one list (interface R15). It holds the sequence number at which the
previous page ended, in a sorted list also the value by which it is sorted, and a digest over these and the
list's name and owner. The digest detects forged cursors and cursors of other lists.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from attrs import frozen
from sqlalchemy import BigInteger, BindParameter, ColumnElement, Table, bindparam, func, literal, select

from agentpay.contract.errors import FieldError
from agentpay.contract.pages import PageBody
from agentpay_server.platform.clock import end_of_millisecond_us
from agentpay_server.platform.errors import Problem, invalid

_SEQ_BYTES: Final = 8
_DIGEST_BYTES: Final = 8
_START: Final = 2**63 - 1

Row = TypeVar("Row")
Item = TypeVar("Item")


@frozen
class List:
    """A list that can be paged through: its name and its owner."""

    name: str
    owner: str

    def before(self, cursor: str) -> int:
        """Return the sequence number below which the page after `cursor` starts.

        Raises:
            Problem: `invalid_request`: the cursor does not belong to this list.
        """
        if not cursor:
            return _START
        seq, value = _opened(self.name, self.owner, cursor)
        if value:
            raise _foreign()
        return seq

    def page(
        self,
        rows: Sequence[Row],
        limit: int,
        *,
        seq: Callable[[Row], int],
        item: Callable[[Row], Item],
    ) -> PageBody[Item]:
        """Return a page of at most `limit` items. An extra row indicates that there is a next page."""
        has_more = len(rows) > limit
        shown = rows[:limit]
        return PageBody(
            data=tuple(item(row) for row in shown),
            cursor=_sealed(self.name, self.owner, seq(shown[-1]), b"") if has_more else "",
            has_more=has_more,
        )


@frozen
class Place:
    """Where a page of a sorted list ends: the sequence number and the value of its last row."""

    seq: int
    value: str | int


@frozen
class SortedList:
    """A list in the order of a value, then newest first. Its name says the order."""

    name: str
    owner: str

    def after(self, cursor: str) -> Place | None:
        """Return the place after which the page after `cursor` starts; None for the first.

        Raises:
            Problem: `invalid_request`: the cursor does not belong to this list.
        """
        if not cursor:
            return None
        seq, value = _opened(self.name, self.owner, cursor)
        try:
            return Place(seq, json.loads(value))
        except ValueError:
            raise _foreign() from None

    def page(
        self,
        rows: Sequence[Row],
        limit: int,
        *,
        place: Callable[[Row], Place],
        item: Callable[[Row], Item],
    ) -> PageBody[Item]:
        """Return a page of at most `limit` items. An extra row indicates that there is a next page."""
        has_more = len(rows) > limit
        shown = rows[:limit]
        cursor = ""
        if has_more:
            last = place(shown[-1])
            value = json.dumps(last.value, ensure_ascii=False).encode()
            cursor = _sealed(self.name, self.owner, last.seq, value)
        return PageBody(data=tuple(item(row) for row in shown), cursor=cursor, has_more=has_more)


def _sealed(name: str, owner: str, seq: int, value: bytes) -> str:
    text = f"{name}\0{owner}\0{seq}".encode() + value
    raw = seq.to_bytes(_SEQ_BYTES, "big") + value + hashlib.sha256(text).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _opened(name: str, owner: str, cursor: str) -> tuple[int, bytes]:
    """Return the sequence number and the value of a cursor.

    Raises:
        Problem: `invalid_request`: the cursor does not belong to this list.
    """
    try:
        raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raw = b""
    if len(raw) < _SEQ_BYTES + _DIGEST_BYTES:
        raise _foreign()
    seq, value = int.from_bytes(raw[:_SEQ_BYTES], "big"), raw[_SEQ_BYTES:-_DIGEST_BYTES]
    # Comparing texts also refuses other base64 encodings of the same bytes.
    if seq >= _START or _sealed(name, owner, seq, value) != cursor:
        raise _foreign()
    return seq, value


def _foreign() -> Problem:
    return invalid(FieldError(field="cursor", message="must be the cursor of a page of this list"))


# --- Filters by time, for lists that are read in order of sequence numbers.
#
# Times follow the numbers only roughly: a transaction takes its number before it commits, and the clocks of
# several servers differ. So an index of times gives the numbers around a moment, with some slack, and the
# times within are compared exactly. The cost does not grow with the list.

SLACK_US: Final = 600_000_000
"""How far times may be out of order."""

_END: Final = 2**63 - 1

_OPERATOR: Final[BindParameter[str]] = bindparam("operator_id")
# Without a type they would have that of the slack, and PostgreSQL refuses a time as an INTEGER.
_SINCE: Final[BindParameter[int]] = bindparam("since_us", type_=BigInteger)
_UNTIL: Final[BindParameter[int]] = bindparam("until_us", type_=BigInteger)


def since(table: Table) -> tuple[ColumnElement[Any], ...]:
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


def until(table: Table) -> tuple[ColumnElement[Any], ...]:
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
