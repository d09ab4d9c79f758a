"""One page of a list (interface R14)."""

from typing import Generic, TypeVar

from attrs import frozen

from agentpay.contract.models import Model

T_co = TypeVar("T_co", covariant=True)


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
