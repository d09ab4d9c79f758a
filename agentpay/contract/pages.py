"""One page of a list (interface R14)."""

from typing import Generic, TypeVar

from attrs import frozen

from agentpay.contract.models import Model

T = TypeVar("T")


@frozen(kw_only=True)
class PageBody(Model, Generic[T]):
    """What a list endpoint returns.

    Attributes:
        data: the items, newest first.
        cursor: passed as `cursor`, fetches the next page; empty on the last.
        has_more: whether there is a next page.
    """

    data: tuple[T, ...]
    cursor: str
    has_more: bool
