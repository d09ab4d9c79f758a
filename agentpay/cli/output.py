"""Printing of results: lines for people, JSON for programs, only identifiers for scripts.

With `--json` one line of JSON per object, with `--quiet` one identifier per line. Notes and progress go to
standard error. Text from a server is escaped, so that a name or a memo cannot control the terminal. Colours
are used only on terminals, and not if `NO_COLOR` is set.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO, TextIOWrapper
from typing import IO, Any, Final, TextIO

import attrs
import click
from rich.console import Console
from rich.text import Text

from agentpay.cli import FAILED, UNWRITTEN, tables
from agentpay.cli.commands import Column
from agentpay.cli.tables import styled
from agentpay.contract import codec
from agentpay.contract.events import Event
from agentpay.contract.printable import printable
from agentpay.errors import AgentPayError

_WIDE: Final = 100_000
"""Width for files and pipes, so that no line is wrapped there."""

_SECRETS: Final = ("key", "secret")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled: by default the process would end here, without a message."""
        raise  # noqa: PLE0704


class Output:
    """Prints a command's results: as JSON, or identifiers only if quiet.

    `names` puts names in place of the identifiers of accounts in texts, for lists and questions.
    """

    def __init__(self, *, is_json: bool, is_quiet: bool = False) -> None:
        self.is_json = is_json
        self.is_quiet = is_quiet
        self.names: Callable[..., Sequence[str]] = lambda texts, **_: texts
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)

    @property
    def is_terminal(self) -> bool:
        """Whether results are printed on a terminal, as text."""
        return self._out.is_terminal and not self.is_json and not self.is_quiet

    def document(self, value: object, *, is_error: bool = False) -> None:
        """Print a model, or a value of models, as one line of JSON."""
        click.echo(codec.print_json(codec.unstructure(value)).decode("ascii"), err=is_error)

    def record(self, model: object, title: str) -> None:
        """Print a model that was read: one field per line, or only its identifier if quiet."""
        with self._reporting_unwritten():
            self._record(model, _fields(model), title)

    def result(self, model: object, title: str) -> None:
        """Print what the command has made or changed, as `record` does."""
        fields = _fields(model)
        with self._reporting_unwritten(fields):
            self._record(model, fields, title)

    def _record(self, model: object, fields: Mapping[str, Any], title: str) -> None:
        if self.is_json:
            self.document(model)
            return
        if self.is_quiet:
            click.echo(printable(identifier_of(model)))
            return
        rows = [
            (f"{name}.{part}" if part else name, item)
            for name, value in fields.items()
            for part, item in (value.items() if isinstance(value, dict) and value else [("", value)])
        ]
        width = max(len(name) for name, _ in rows)
        self._out.print(Text(printable(title), style="italic"))
        for name, item in rows:
            # Not wrapped, so that a long value can be copied from a terminal.
            line = Text.assemble((f"{printable(name):<{width}}  ", "dim"), styled(_shown(name, item)))
            self._out.print(line, soft_wrap=True)

    def record_once(self, model: object, title: str) -> None:
        """Print a model with a key or a secret that cannot be shown again; only that if quiet."""
        if self.is_quiet and not self.is_json:
            fields = _fields(model)
            with self._reporting_unwritten(fields):
                click.echo(printable(next(str(fields[name]) for name in _SECRETS if name in fields)))
            return
        self.result(model, title)
        if not self.is_json:
            self.note("Store it now: it is shown only once.")

    def done(self, field: str, identifier: str, status: str) -> None:
        """Report the new status of an object that is not printed, such as a revoked key.

        `field` is the name of its identifier in JSON.
        """
        with self._reporting_unwritten({field: identifier}):
            if self.is_json:
                self.document({field: identifier, "status": status})
            elif self.is_quiet:
                click.echo(printable(identifier))
            else:
                self.line(identifier, "is", status)

    def items(
        self, models: Sequence[object], columns: Sequence[Column], *, empty: str, is_wide: bool = False
    ) -> None:
        """Print a list of models: one line each; JSON has all of their fields."""
        with self._reporting_unwritten():
            if self.is_json:
                for model in models:
                    self.document(model)
            elif self.is_quiet:
                for model in models:
                    click.echo(printable(identifier_of(model)))
            elif models:
                for line in self._lines(models, columns, is_wide=is_wide):
                    self._out.print(line, soft_wrap=True)
            else:
                self._out.print(Text(empty, style="dim"), soft_wrap=True)

    def csv(self, models: Iterable[Any], *, empty: str) -> None:
        """Print a list of models as CSV while it is read. One that breaks off exits with 3."""
        from agentpay.contract.csv_text import CsvPrinter

        printed, printer = 0, None
        try:
            for model in models:
                if printer is None:
                    printer = CsvPrinter(Event if isinstance(model, Event) else type(model))
                    _write_csv(printer.heading)
                _write_csv(printer.lines([model]))
                printed += 1
        except (AgentPayError, OSError) as error:
            if isinstance(error, OSError):
                _discard(sys.stdout)
                if error.errno == errno.EPIPE:
                    raise click.exceptions.Exit(0) from None
            elif not printed:
                raise
            with contextlib.suppress(OSError):
                self.note(f"The list broke off after {printed} items and is incomplete: {error}")
            raise click.exceptions.Exit(UNWRITTEN) from None
        if not printed:
            self.note(empty)

    @contextlib.contextmanager
    def redrawn(
        self, columns: Sequence[Column], *, empty: str, is_wide: bool
    ) -> Iterator[Callable[[Sequence[object], str], None]]:
        """Let the block redraw a list in the same place, with a line of text below it."""
        from rich.live import Live

        with Live(console=self._out, auto_refresh=False) as live:

            def draw(models: Sequence[object], below: str) -> None:
                found = self._lines(models, columns, is_wide=is_wide) or [Text(empty, style="dim")]
                text = Text("\n").join([*found, Text(printable(below), style="dim")])
                text.no_wrap, text.overflow = True, "ignore"
                live.update(text, refresh=True)

            yield draw

    def line(self, *words: object) -> None:
        """Print one line of text; known words, such as statuses, are coloured."""
        self._out.print(Text(" ").join(styled(word) for word in words), soft_wrap=True)

    def lines(self, lines: Iterable[Sequence[object]]) -> None:
        """Print lines of what was read, each as `line` does."""
        with self._reporting_unwritten():
            for words in lines:
                self.line(*words)

    def note(self, text: str) -> None:
        """Print a note on standard error."""
        if self.is_json:
            self.document({"note": text}, is_error=True)
        else:
            self._err.print(printable(text), soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show progress on a terminal, unless output is JSON; the block can update the text."""
        if self.is_json or not self._err.is_terminal:
            yield lambda _: None
            return
        with self._err.status(Text(printable(text))) as status:
            yield lambda now: status.update(Text(printable(now)))

    def confirm(self, question: Callable[[], str]) -> None:
        """Ask on a terminal before what cannot be undone, and end the command if the answer is no.

        A script is never asked. `question` may ask the server, and is only called to be shown.
        """
        if not self.is_json and sys.stdin.isatty() and sys.stderr.isatty():
            click.confirm(printable(self.names([question()], in_full=True)[0]), abort=True, err=True)

    @contextlib.contextmanager
    def _reporting_unwritten(self, fields: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Report that a result could not be written, for example to a full disk.

        With `fields`, of what the command has changed, a script must not take it for one that failed. Of what
        was only read, a reader that has enough closes the pipe, which is no failure.
        """
        try:
            yield
        except OSError as error:
            _discard(sys.stdout)
            if fields is None and error.errno == errno.EPIPE:
                raise click.exceptions.Exit(0) from None
            text = f"The result could not be written to standard output: {error.strerror}."
            known = {} if fields is None else _known(fields)
            if known:
                named = ", ".join(f"{name} {value}" for name, value in known.items())
                text += f" The command itself succeeded: do not repeat it as a new one, but look up {named}."
            with contextlib.suppress(OSError):
                if self.is_json:
                    self.document({**known, "message": text}, is_error=True)
                else:
                    self.note(text)
            raise click.exceptions.Exit(FAILED if fields is None else UNWRITTEN) from None

    def fits(self, width: int) -> bool:
        """Return whether a line of this width fits."""
        return width <= self._out.width

    def _lines(self, models: Sequence[object], columns: Sequence[Column], *, is_wide: bool) -> list[Text]:
        if not models:
            return []
        now = datetime.now(UTC)
        return tables.lines(
            models, columns, width=self._out.width, is_wide=is_wide, now=now, names=self.names
        )


class CommandRefusedError(click.ClickException):
    """The server refused, failed or cannot be reached."""

    def __init__(self, message: str, output: Output, *, exit_code: int = FAILED, **fields: object) -> None:
        super().__init__(message)
        # For this error only: the base declares it for the class.
        vars(self)["exit_code"] = exit_code
        self._output = output
        self._fields = fields

    def format_message(self) -> str:
        """Make escape sequences from the server harmless."""
        return printable(self.message)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print on standard error, as text or as one line of JSON."""
        if self._output.is_json:
            fields = {name: value for name, value in self._fields.items() if value is not None}
            self._output.document({**fields, "message": self.message}, is_error=True)
        else:
            super().show(file)


def identifier_of(model: object) -> str:
    """Return the first field of a model that is an identifier, or its first field without any."""
    fields = _fields(model)
    names = (name for name in fields if name == "id" or name.endswith("_id"))
    return str(fields[next(names, next(iter(fields)))])


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result can be found by: its first identifier, and its idempotency key."""
    names = [name for name in fields if name == "id" or name.endswith("_id")][:1]
    return {name: fields[name] for name in (*names, "idempotency_key") if fields.get(name) is not None}


def _write_csv(line: str) -> None:
    """Write a line unchanged; on a terminal, without what would control it."""
    is_shown = sys.stdout.isatty()
    click.echo(printable(line.rstrip("\r\n")) if is_shown else line, nl=is_shown, color=True)


def _discard(stream: TextIO) -> None:
    """Discard what a stream still holds, which would fail again when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _fields(model: object) -> dict[str, Any]:
    """Return the fields of a model as in JSON, but in the order in which the model declares them."""
    fields: dict[str, Any] = codec.unstructure(model)
    kind = type(model)
    declared = [each.name.removesuffix("_") for each in attrs.fields(kind)] if attrs.has(kind) else []
    return {name: fields[name] for name in (*declared, *fields) if name in fields}


def _shown(name: str, value: object) -> object:
    if isinstance(value, (list, tuple)):
        # A webhook without account_ids receives the events of all; an empty allowlist allows nothing.
        return ", ".join(map(str, value)) or ("all" if name == "account_ids" else "none")
    return value


def _console(stream: TextIO | None) -> Console:
    if stream is None:
        # The process was started without this stream.
        stream = StringIO()
    if isinstance(stream, TextIOWrapper):
        # A name or a memo may contain characters that the terminal's encoding lacks.
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() else _WIDE
    return _Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
