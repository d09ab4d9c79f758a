"""Pages of a list: what one answer held, and the way to the next one. How a page is fetched is given."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Generic, TypeVar

from agentpay.contract.pages import PageBody
from agentpay.errors import DecodingError

T = TypeVar("T")


class AsyncPage(Generic[T]):
    """One page of a list, newest first. Iterating over it goes through this page and all that follow.

    Attributes:
        data: the items of this page.
        cursor: passed as `cursor`, fetches the next page; empty on the last.
        has_more: whether there is a next page.
        request_id: the request that returned this page, for the service's operators, or None.
    """

    __module__ = "agentpay"

    def __init__(
        self,
        fetch: Callable[[str | None], Awaitable[PageBody[T]]],
        cursor: str | None,
        body: PageBody[T],
        places: dict[str, int] | None = None,
    ) -> None:
        self._fetch = fetch
        # Where each cursor of this list leads: to its first page, 0, to its second, and so on.
        self._places: dict[str, int] = {cursor or "": 0} if places is None else places
        self._place: int = self._places[cursor or ""]
        self.data: tuple[T, ...] = body.data
        self.cursor: str = body.cursor
        self.has_more: bool = body.has_more
        self.request_id: str | None = body.request_id

    @classmethod
    async def first(
        cls, fetch: Callable[[str | None], Awaitable[PageBody[T]]], cursor: str | None
    ) -> "AsyncPage[T]":
        """Fetch the page at `cursor`."""
        return cls(fetch, cursor, await fetch(cursor))

    async def next_page(self) -> "AsyncPage[T]":
        """Fetch the next page, with the filters of this one.

        Raises:
            RuntimeError: this is the last page; ask `has_more` before.
            DecodingError: the service promised more, but its cursor leads back.
            AgentPayError: the request failed.
        """
        if not self.has_more:
            raise RuntimeError("this is the last page: ask has_more before next_page")
        place = self._places.setdefault(self.cursor, self._place + 1)
        if self.cursor == "" or place <= self._place:
            raise DecodingError(
                "the service says that the list has more, but its cursor leads back to a page that was read. "
                "Report it to the service's operators"
            )
        return type(self)(self._fetch, self.cursor, await self._fetch(self.cursor), self._places)

    async def __aiter__(self) -> AsyncIterator[T]:
        page = self
        while True:
            for item in page.data:
                yield item
            if not page.has_more:
                return
            page = await page.next_page()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.data)}, has_more={self.has_more}>"


# unasync: async only
class AsyncPages(Generic[T]):
    """A list that is about to be read: `await` it for its first page, or iterate through all of its items."""

    __module__ = "agentpay"

    def __init__(self, fetch: Callable[[str | None], Awaitable[PageBody[T]]], cursor: str | None) -> None:
        self._fetch = fetch
        self._cursor = cursor

    def __await__(self) -> Generator[object, None, AsyncPage[T]]:
        return AsyncPage.first(self._fetch, self._cursor).__await__()

    async def __aiter__(self) -> AsyncIterator[T]:
        async for item in await self:
            yield item


# unasync: end of async only
