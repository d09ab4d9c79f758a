"""Commands as data: most are one call of the client with their options, and print what it returns.

    command("get", "Show a session.", SESSION_ID, call=lambda client: client.sessions.get, reads="Session")

An option is passed as the parameter of its name. What people name, such as an account, is looked up; what is
not given is not passed. Commands that do more are functions with the same options.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from agentpay.cli import Group
from agentpay.cli.options import LISTING, is_given, takes_server, takes_yes, with_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from agentpay import AgentPay
    from agentpay.cli.options import Decorator
    from agentpay.cli.output import Output


class Show(Enum):
    """When a column is shown."""

    ALWAYS = "always"
    IF_IT_FITS = "if it fits"
    WIDE = "only with --wide"


class Column(NamedTuple):
    """A column of a list.

    Attributes:
        heading: its heading.
        look: the name of a field of an item, by default the heading, or what returns the value for an item.
        show: when it is shown.
        is_text: the value may be shortened.
        is_account: identifiers of accounts in the value are shown as names.
    """

    heading: str
    look: str | Callable[[Any], object] = ""
    show: Show = Show.ALWAYS
    is_text: bool = False
    is_account: bool = False

    def value(self, item: object) -> object:
        """Return the value for an item."""
        return self.look(item) if callable(self.look) else getattr(item, self.look or self.heading)


def group(name: str, text: str, *commands: click.Command) -> click.Group:
    """Return a group of commands."""
    return Group(name, help=cleandoc(text), commands=commands)


def command(
    name: str,
    text: str,
    *options: Decorator,
    call: Callable[[AgentPay], Callable[..., Any]],
    reads: str = "",
    makes: str = "",
    makes_secret: str = "",
    ends: str = "",
    prints: Callable[[Output, Any], None] | None = None,
    progress: str = "Reading",
    asks: Callable[..., str] | None = None,
    exit_code: Callable[[Any], int] | None = None,
) -> click.Command:
    """Return a command that calls one method and prints what it returned.

    Args:
        name: the command's name in its group.
        text: the help; its first paragraph is the summary.
        options: the options and arguments, of which each is named as a parameter of the method.
        call: returns the method of the client.
        reads: the title of an object that is only read.
        makes: the title of an object that is made or changed.
        makes_secret: the title of an object with a key or a secret, which is shown only once.
        ends: what becomes of the object that the only argument names, where the method returns nothing.
        prints: prints what is returned, where that is more than an object.
        progress: what a terminal shows meanwhile; it may contain options by their names.
        asks: returns the question to confirm on a terminal, from the client and the options.
        exit_code: returns the exit code for what is printed.
    """

    def run(*, server: AgentPay, output: Output, is_yes: bool = True, **given: Any) -> None:  # noqa: ANN401
        if asks is not None and not is_yes:
            output.confirm(partial(asks, server, **given))
        with output.progress(progress.format(**given)):
            found = call(server)(**_passed(given))
        if prints is not None:
            prints(output, found)
        elif ends:
            ((field, identifier),) = given.items()
            output.done(field, identifier, ends)
        elif makes_secret:
            output.record_once(found, makes_secret)
        elif makes:
            output.result(found, makes)
        else:
            output.record(found, reads.format(found))
        if exit_code is not None and (code := exit_code(found)):
            click.get_current_context().exit(code)

    yes = (takes_yes,) if asks else ()
    return click.command(name, help=cleandoc(text))(with_options(takes_server(run), *options, *yes))


def listing(
    name: str,
    text: str,
    *options: Decorator,
    call: Callable[[AgentPay], Callable[..., Any]],
    columns: Sequence[Column],
    empty: str,
    moment: str | None = None,
    note: Callable[[AgentPay, dict[str, Any], Sequence[Any]], str | None] | None = None,
) -> click.Command:
    """Return a command that prints a list of the client, newest first.

    Args:
        name: the command's name in its group.
        text: the help; its first paragraph is the summary.
        options: the options and arguments, of which each is named as a parameter of the method.
        call: returns the method of the client.
        columns: the columns.
        empty: what is printed for an empty list.
        moment: the field with the time of an item, where the method takes no `since` and `until`.
        note: returns what to say after the list, from the client, the options and the items.
    """

    def run(
        *,
        server: AgentPay,
        output: Output,
        limit: int,
        since: datetime | None,
        until: datetime | None,
        is_all: bool,
        is_csv: bool,
        is_wide: bool,
        is_watched: bool,
        interval: float,
        **given: Any,  # noqa: ANN401 - the values of other options
    ) -> None:
        from agentpay.cli.listing import PAGE, Listing, within

        most = None if is_all or (is_csv and not is_given("limit")) else limit
        period = {} if moment else {"since": since, "until": until}
        passed = _passed({**given, **period, "limit": min(most or PAGE, PAGE)})
        found = Listing(
            output=output,
            items=within(lambda: call(server)(**passed), since, until, moment, is_sorted="sort" in passed),
            columns=columns,
            empty=empty,
            is_wide=is_wide,
            limit=most,
        )
        if is_csv:
            found.print_csv()
        elif is_watched:
            found.watch(interval)
        else:
            found.print(lambda items: note and note(server, given, items))

    return click.command(name, help=cleandoc(text))(with_options(takes_server(run), *options, *LISTING))


def _passed(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None and value != ()}
