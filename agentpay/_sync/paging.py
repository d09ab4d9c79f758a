# Generated from _async by scripts/unasync.py. Edit that one.
"""Pages of a list: the items of one response, and access to the next page. Fetching is a parameter."""

from collections.abc import Iterator, Callable
from typing import Generic, TypeVar

from agentpay.contract.pages import PageBody
from agentpay.contract.responses import RawResponse
from agentpay.errors import ResponseValidationError

T = TypeVar("T")


class Page(Generic[T]):
    """One page of a list, newest first. Iterating over it goes through this page and all following ones.

    Its truth value is whether the list has any items. It has no length, because the following pages are not
    known yet; `len(page.data)` is that of this page. It can be pickled and copied. A copy has no client, so
    its next page must be requested with its `cursor`.

    Attributes:
        data: the items of this page.
        cursor: pass it as `cursor` to get the next page; empty on the last.
        has_more: whether there is a next page.
        response: the HTTP response of this page.
        request_id: the request that returned this page, for support, or None.
    """

    __module__ = "agentpay.resources"

    def __init__(
        self,
        fetch: Callable[[str | None], PageBody[T]],
        cursor: str | None,
        body: PageBody[T],
        places: dict[str, int] | None = None,
    ) -> None:
        self._fetch: Callable[[str | None], PageBody[T]] | None = fetch
        # The page number that each cursor of this list leads to, to detect cycles.
        self._places: dict[str, int] = {cursor or "": 0} if places is None else places
        self._place: int = self._places[cursor or ""]
        self.data: tuple[T, ...] = body.data
        self.cursor: str = body.cursor
        self.has_more: bool = body.has_more
        self.response: RawResponse | None = body.response
        self.request_id: str | None = body.request_id

    @classmethod
    def first(
        cls, fetch: Callable[[str | None], PageBody[T]], cursor: str | None
    ) -> "Page[T]":
        """Fetch the page at `cursor`."""
        return cls(fetch, cursor, fetch(cursor))

    def next_page(self) -> "Page[T]":
        """Fetch the next page, with the filters of this one.

        Raises:
            RuntimeError: this is the last page (check `has_more`), or a copy.
            ResponseValidationError: the service's cursor leads back to an earlier page.
            AgentPayError: the request failed.
        """
        if not self.has_more:
            raise RuntimeError("this is the last page: check has_more before next_page")
        if self._fetch is None:
            raise RuntimeError(
                "this page was pickled or copied and has no client: call the list method again with "
                "cursor=page.cursor"
            )
        place = self._places.setdefault(self.cursor, self._place + 1)
        if self.cursor == "" or place <= self._place:
            raise ResponseValidationError(
                "the service says that the list has more, but its cursor leads back to a page that was read. "
                "Report it to the service's operators"
            )
        return type(self)(self._fetch, self.cursor, self._fetch(self.cursor), self._places)

    def iter_pages(self) -> "Iterator[Page[T]]":
        """Yield this page and all following ones, each fetched on demand.

        Raises:
            AgentPayError: a request failed.
        """
        page = self
        while True:
            yield page
            if not page.has_more:
                return
            page = page.next_page()

    def __iter__(self) -> Iterator[T]:
        for page in self.iter_pages():
            for item in page.data:
                yield item

    def __bool__(self) -> bool:
        return bool(self.data) or self.has_more

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_fetch": None}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.data)}, has_more={self.has_more}>"


