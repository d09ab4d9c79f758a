"""Lists: their common options, and following a list as it changes."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

from attrs import frozen

from agentpay import errors
from agentpay.cli.commands import Column
from agentpay.cli.output import Output, identifier_of

PASSING: Final = (errors.APIConnectionError, errors.ServerError, errors.RateLimitError)
"""Errors that are retried while a command follows a server: it may be restarting."""

_PAGE_MAX: Final = 100


@frozen(kw_only=True)
class Listing:
    """How a list is printed: with `is_wide` every column, nothing shortened.

    `limit` None prints all items. `since` and `until` are for the service where it takes them, else for
    `show`. With `is_csv` the list is printed as CSV while it is read.
    `watch_seconds` is the pause between two refreshes; None prints the list once.
    """

    limit: int | None
    since: datetime | None
    until: datetime | None
    is_csv: bool
    is_wide: bool
    watch_seconds: float | None

    @property
    def page(self) -> int:
        """Items per page to request."""
        return _PAGE_MAX if self.limit is None else min(self.limit, _PAGE_MAX)

    def show(
        self,
        output: Output,
        items: Callable[[], Iterable[object]],
        columns: Sequence[Column],
        *,
        empty: str,
        moment: str | None = None,
        note: Callable[[Sequence[Any]], str | None],
    ) -> None:
        """Print a list, and again whenever it changes if it is watched.

        `items` reads the list, newest first, at each refresh; `empty` is printed for an empty one. `moment`
        is the field with the time of an item, where the service takes no `since`. `note` returns what to say
        after the list, unless it is watched.
        """
        if moment is not None:
            items = _within(items, self.since, self.until, moment)
        if self.is_csv:
            output.csv(islice(items(), self.limit), empty=empty)
            return
        if self.watch_seconds is None:
            with output.progress("Reading"):
                found, has_more = self._read(items)
            output.items(found, columns, empty=empty, is_wide=self.is_wide)
            if has_more:
                output.note(
                    f"There are more than {self.limit}. Pass a larger --limit, or --all, to see them."
                )
            if text := note(found):
                output.note(text)
            return
        # Ctrl-C is the normal way to stop watching.
        with contextlib.suppress(KeyboardInterrupt):
            if output.is_terminal:
                with output.redrawn(columns, empty=empty, is_wide=self.is_wide) as draw:
                    for found, trouble in self._looks(items, output):
                        draw(found, trouble or "Press Ctrl-C to stop.")
            else:
                self._follow(output, items, columns)

    def _follow(
        self, output: Output, items: Callable[[], Iterable[object]], columns: Sequence[Column]
    ) -> None:
        """Print items that are new or have changed, oldest first."""
        known: dict[str, object] = {}
        for found, _ in self._looks(items, output):
            now = {identifier_of(item): item for item in found}
            changed = [item for name, item in reversed(now.items()) if known.get(name) != item]
            known = now
            if changed:
                output.items(changed, columns, empty="", is_wide=self.is_wide)

    def _looks(
        self, items: Callable[[], Iterable[object]], output: Output
    ) -> Iterator[tuple[list[object], str | None]]:
        """Yield the list at each refresh, and the error if it cannot be read."""
        found: list[object] = []
        trouble: str | None = None
        while True:
            try:
                found, _ = self._read(items)
                trouble = None
            except PASSING as error:
                if trouble is None and not output.is_terminal:
                    output.note(f"Cannot read the list, retrying: {error}")
                trouble = f"Cannot read the list, retrying: {error}"
            yield found, trouble
            time.sleep(self.watch_seconds or 0)

    def _read(self, items: Callable[[], Iterable[object]]) -> tuple[list[object], bool]:
        found: list[object] = []
        for item in items():
            if len(found) == self.limit:
                return found, True
            found.append(item)
        return found, False


def _within(
    items: Callable[[], Iterable[Any]],
    since: datetime | None,
    until: datetime | None,
    moment: str,
) -> Callable[[], Iterable[Any]]:
    """Read a list from `until` on, until an item is not after `since`."""

    def read() -> Iterator[Any]:
        for item in items():
            at: datetime | None = getattr(item, moment)
            if at is not None and since is not None and at <= since:
                return
            if at is None or until is None or at <= until:
                yield item

    return read
