"""Printing of results: tables for people, JSON for programs.

Results go to standard output, with `--json` as one line of JSON per document. Notes and progress go to
standard error. Text from a server is escaped, so that a name or a memo cannot control the terminal. Colours
are used only on terminals.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from io import StringIO, TextIOWrapper
from typing import Any, Final, TextIO, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentpay.contract import codec
from agentpay.contract.fields import format_timestamp
from agentpay.contract.printable import printable

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Item = TypeVar("_Item")

_WIDE: Final = 100_000
"""Width for files and pipes, so that no line is wrapped there."""

_STYLES: Final[Mapping[str, str]] = {
    "active": "green",
    "balance.low_threshold": "yellow",
    "delivered": "green",
    "escalation.required": "yellow",
    "settled": "green",
    "pending": "yellow",
    "pending_approval": "yellow",
    "retrying": "yellow",
    "failed": "red",
    "paused": "red",
    "rejected": "red",
    "session.cap_reached": "yellow",
    "session.cap_warning": "yellow",
    "session.settled": "green",
    "transfer.rejected": "red",
    "transfer.settled": "green",
    "undelivered": "red",
}


class Output:
    """Prints a command's results.

    Attributes:
        is_json: whether to print JSON.
    """

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)

    def document(self, value: object, *, is_error: bool = False) -> None:
        """Print a model, or a value of models, as one line of JSON."""
        click.echo(codec.print_json(codec.unstructure(value)).decode("ascii"), err=is_error)

    def record(self, model: object, title: str) -> None:
        """Print a model, one field per line."""
        if self.is_json:
            self.document(model)
            return
        table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in codec.unstructure(model).items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            for part, item in inner:
                table.add_row(Text(f"{name}.{part}" if part else name), styled(item))
        self._out.print(table)

    def record_once(self, model: object, title: str) -> None:
        """Print a model with a key that cannot be shown again."""
        self.record(model, title)
        if not self.is_json:
            self.note("Store the key: it is shown only once.")

    def revoked(self, key_id: str) -> None:
        """Report that a key is revoked."""
        if self.is_json:
            self.document({"key_id": key_id, "status": "revoked"})
        else:
            self.line(key_id, "is revoked")

    def table(
        self, models: Sequence[object], columns: Mapping[str, Callable[[Any], object]], *, empty: str
    ) -> None:
        """Print a list of models.

        Args:
            models: the models; JSON has all of their fields.
            columns: the columns of the table, by heading.
            empty: text to print for an empty list.
        """
        if self.is_json:
            self.document(list(models))
            return
        if not models:
            self._out.print(Text(empty, style="dim"))
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in columns:
            table.add_column(heading, overflow="fold")
        for model in models:
            table.add_row(*(styled(look(model)) for look in columns.values()))
        self._out.print(table)

    def line(self, *words: object) -> None:
        """Print one line of text; known words, such as statuses, are coloured."""
        self._out.print(Text(" ").join(styled(word) for word in words), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a note on standard error."""
        if self.is_json:
            self.document({"note": text}, is_error=True)
        else:
            self._err.print(printable(text), soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show progress on a terminal; the block can update the text."""
        if not self._err.is_terminal:
            yield lambda _: None
            return
        with self._err.status(Text(printable(text))) as status:
            yield lambda now: status.update(Text(printable(now)))


def takes_json(command: _Command) -> _Command:
    """Add the option `--json` to a command; it is called with `is_json`."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON.")(command)


def up_to(items: Iterable[_Item], limit: int, output: Output) -> list[_Item]:
    """Return the first items of a list, and print a note if there are more."""
    found: list[_Item] = []
    for item in items:
        if len(found) == limit:
            output.note(f"There are more than {limit}. Pass a larger --limit to see them.")
            break
        found.append(item)
    return found


def takes_limit(command: _Command) -> _Command:
    """Add the option `--limit` to a command."""
    return click.option(
        "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Largest number of items."
    )(command)


def styled(value: object) -> Text:
    """Return a value as text for the terminal."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, datetime):
        return Text(format_timestamp(value))
    text = printable(str(value))
    return Text(text, style=_STYLES.get(text, ""))


def _console(stream: TextIO | None) -> Console:
    if stream is None:
        # The process was started without this stream.
        stream = StringIO()
    if isinstance(stream, TextIOWrapper):
        # A name or a memo may contain characters that the terminal's encoding lacks.
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
