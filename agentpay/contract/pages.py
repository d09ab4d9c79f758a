"""One page of a list, and the query for it (interface R14)."""

from typing import Annotated, Generic, TypeVar

from attrs import frozen

from agentpay.contract.fields import Cursor, query_integer
from agentpay.contract.models import Model
from agentpay.contract.requests import Request

T_co = TypeVar("T_co", covariant=True)


@frozen(kw_only=True)
class PageQuery(Request):
    """Query of a list.

    Attributes:
        limit: page size; default 20, max 100.
        cursor: `cursor` of the previous page; empty for the first.
    """

    limit: Annotated[int, query_integer(minimum=1, maximum=100)] = 20
    cursor: Cursor = ""


@frozen(kw_only=True)
class PageBody(Model, Generic[T_co]):
    """One page of a list.

    Attributes:
        data: the items, newest first.
        cursor: pass it as `cursor` to get the next page; empty on the last.
        has_more: whether there is a next page.
    """

    data: tuple[T_co, ...]
    cursor: str
    has_more: bool
