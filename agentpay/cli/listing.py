"""Lists: printing them, and following them as they change."""

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

PAGE: Final = 100
"""The most items per request."""

PASSING: Final = (errors.APIConnectionError, errors.ServerError, errors.RateLimitError)
"""Errors that are retried while a command follows a server: it may be restarting."""


@frozen(kw_only=True)
class Listing:
    """A list to print.

    Attributes:
        items: reads the list, newest first, at each call.
        columns: its columns; with `is_wide` all of them, nothing shortened.
        empty: what is printed for an empty list.
        limit: the most items; None prints all.
    """

    output: Output
    items: Callable[[], Iterable[Any]]
    columns: Sequence[Column]
    empty: str
    is_wide: bool
    limit: int | None

    def print(self, note: Callable[[Sequence[Any]], str | None]) -> None:
        """Print the list once; `note` returns what to say after it."""
        with self.output.progress("Reading"):
            found, has_more = self._read()
        self.output.items(found, self.columns, empty=self.empty, is_wide=self.is_wide)
        if has_more:
            self.output.note(
                f"There are more than {self.limit}. Pass a larger --limit, or --all, to see them."
            )
        if text := note(found):
            self.output.note(text)

    def print_csv(self) -> None:
        """Print the list as CSV while it is read."""
        self.output.csv(islice(self.items(), self.limit), empty=self.empty)

    def watch(self, seconds: float) -> None:
        """Print the list again whenever it changes, with a pause between two looks, until Ctrl-C."""
        # Ctrl-C is the normal way to stop watching.
        with contextlib.suppress(KeyboardInterrupt):
            if self.output.is_terminal:
                with self.output.redrawn(self.columns, empty=self.empty, is_wide=self.is_wide) as draw:
                    for found, trouble in self._looks(seconds):
                        draw(found, trouble or "Press Ctrl-C to stop.")
            else:
                self._follow(seconds)

    def _follow(self, seconds: float) -> None:
        """Print items that are new or have changed, oldest first."""
        known: dict[str, object] = {}
        for found, _ in self._looks(seconds):
            now = {identifier_of(item): item for item in found}
            changed = [item for name, item in reversed(now.items()) if known.get(name) != item]
            known = now
            if changed:
                self.output.items(changed, self.columns, empty="", is_wide=self.is_wide)

    def _looks(self, seconds: float) -> Iterator[tuple[list[Any], str | None]]:
        """Yield the list at each refresh, and the error if it cannot be read."""
        found: list[Any] = []
        trouble: str | None = None
        while True:
            try:
                found, _ = self._read()
                trouble = None
            except PASSING as error:
                if trouble is None and not self.output.is_terminal:
                    self.output.note(f"Cannot read the list, retrying: {error}")
                trouble = f"Cannot read the list, retrying: {error}"
            yield found, trouble
            time.sleep(seconds)

    def _read(self) -> tuple[list[Any], bool]:
        """Return the items, and whether there are more."""
        items = iter(self.items())
        found = list(islice(items, self.limit))
        return found, next(items, None) is not None


def within(
    items: Callable[[], Iterable[Any]],
    since: datetime | None,
    until: datetime | None,
    moment: str | None,
    *,
    is_sorted: bool,
) -> Callable[[], Iterable[Any]]:
    """Read a list from `until` on, until an item is not after `since`: `moment` is the field with its time.

    Without `moment` the service does that. A list that `is_sorted` by something else is read to its end.
    """

    def read() -> Iterator[Any]:
        for item in items():
            at: datetime | None = getattr(item, moment) if moment else None
            if at is not None and since is not None and at <= since:
                if is_sorted:
                    continue
                return
            if at is None or until is None or at <= until:
                yield item

    return read
