"""Cursors of lists: opaque strings, each valid for one list (interface R15).

A cursor holds the sequence number at which the previous page ended, and a digest over that number and the
list's name and owner. The digest detects forged cursors and cursors of other lists.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from attrs import frozen

from agentpay.contract.errors import FieldError
from agentpay.contract.pages import PageBody
from agentpay_server.platform.errors import invalid

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
        try:
            raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            raw = b""
        seq = int.from_bytes(raw[:_SEQ_BYTES], "big")
        # Comparing texts also refuses other base64 encodings of the same bytes.
        if len(raw) != _SEQ_BYTES + _DIGEST_BYTES or seq >= _START or self._cursor(seq) != cursor:
            raise invalid(FieldError(field="cursor", message="must be the cursor of a page of this list"))
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
            cursor=self._cursor(seq(shown[-1])) if has_more else "",
            has_more=has_more,
        )

    def _cursor(self, seq: int) -> str:
        text = f"{self.name}\0{self.owner}\0{seq}".encode()
        raw = seq.to_bytes(_SEQ_BYTES, "big") + hashlib.sha256(text).digest()[:_DIGEST_BYTES]
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
