"""Lists of a server that break off: their first page is read, no other."""

import pytest

from agentpay.contract.errors import ErrorCode
from agentpay_server.database.pages import List
from agentpay_server.platform.errors import Problem


def break_off(patch: pytest.MonkeyPatch) -> None:
    """Let every page but the first of a list be refused, until the patch is undone."""
    before = List.before

    def first_only(self: List, cursor: str) -> int:
        if cursor:
            raise Problem(ErrorCode.INVALID_REQUEST, "The list broke off.")
        return before(self, cursor)

    patch.setattr(List, "before", first_only)
