"""The options and arguments that commands share, their types, and the variables of the environment.

Importing this module or a command loads nothing that only a run needs, so that help and completion are quick.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click
from click.core import ParameterSource

from agentpay.contract.identifiers import SESSION, TRANSFER

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal

    from click.shell_completion import CompletionItem

    from agentpay.contract.choices import EventType

T = TypeVar("T")
Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

URL_VARIABLE: Final = "AGENTPAY_BASE_URL"
KEY_VARIABLE: Final = "AGENTPAY_API_KEY"
PROFILE_VARIABLE: Final = "AGENTPAY_PROFILE"
CONFIG_VARIABLE: Final = "AGENTPAY_CONFIG"

DEFAULT_URL: Final = "http://127.0.0.1:8402"

IS_VISIBLE: Final = "Prefer the variable: other users of the machine may see command lines."
"""A sentence in the help of each option whose value is or contains a secret."""

_AGO: Final = re.compile(r"([0-9]{1,9})([mhdw])", re.ASCII)
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_TIMES: Final = "24h, yesterday, 2026-01-31 or 2026-01-31T12:00:00Z"
_YEAR_SECONDS: Final = 366 * 24 * 3600
_PLAIN: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_OPAQUE: Final = re.compile(r"[0-9A-Za-z_-]{1,128}", re.ASCII)
_PARAMETER: Final = re.compile(r"^[a-z_]+(?= must |$)")
"""The subject of a message about an argument; or the name of one, without a message."""


def export_lines(base_url: str, key: str | None) -> list[str]:
    """Return shell lines that set the variables for a server; without a key if it is secret or unknown."""
    import shlex

    variables = {URL_VARIABLE: base_url} | ({} if key is None else {KEY_VARIABLE: key})
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


# --- Types


class Seconds(click.FloatRange):
    """A duration in seconds, at most a year; NaN is refused."""

    def __init__(self, minimum: float = 0, maximum: float = _YEAR_SECONDS, *, min_open: bool = False) -> None:
        super().__init__(min=minimum, max=maximum, min_open=min_open)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the seconds."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


class Parsed(click.ParamType[T]):
    """A value that a function reads; the function's `ValueError` says why a value is refused.

    In help, an option has the name as its value, in capitals, or `metavar` if it is given. `completes` is the
    kind, in `agentpay.cli.naming`, of what the service knows and a shell completes.
    """

    def __init__(
        self, name: str, parse: Callable[[str], T], metavar: str | None = None, *, completes: str = ""
    ) -> None:
        self.name = name
        self._parse = parse
        self._metavar = metavar
        self._completes = completes

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002
        """Return the placeholder of the value in help."""
        return self._metavar

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> T:
        """Return the value."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete names and identifiers, from the service that is set up."""
        if not self._completes:
            return super().shell_complete(ctx, param, incomplete)
        from agentpay.cli.naming import completed

        return completed(ctx, self._completes, incomplete)


def _amount(value: str) -> Decimal:
    from agentpay.contract.usdc import parse_amount

    try:
        return parse_amount(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not an amount of USDC: it {error}") from None


def _limit(value: str) -> Decimal | None:
    from decimal import Decimal

    from agentpay.contract.usdc import parse_number

    if value.lower() == "none":
        return None
    if not _PLAIN.fullmatch(value):
        raise ValueError(f"{value!r} is not a limit: it must be a number such as 25.50, or none")
    try:
        return parse_number(Decimal(value))
    except ValueError as error:
        raise ValueError(f"{value!r} is not a limit: it {error}, or none") from None


def _label(value: str) -> str:
    from agentpay.contract.fields import text

    return str(text(minimum=1, maximum=100, trim=True, control=False).parse(value))


def _moment(value: str) -> datetime:
    from datetime import UTC, datetime, timedelta

    from agentpay.contract.fields import parse_timestamp

    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    words = {"now": now, "today": today, "yesterday": today - timedelta(days=1)}
    try:
        if ago := _AGO.fullmatch(value):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return words.get(value) or parse_timestamp(value + "T00:00:00Z" if len(value) == 10 else value)
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a time such as {_TIMES}") from None


USDC: Final = Parsed("usdc", _amount)
"""An amount of USDC to move."""
LIMIT: Final = Parsed("usdc", _limit, "USDC|none")
"""A limit in USDC; `none` removes it."""
LABEL: Final = Parsed("label", _label)
"""A display name: 1 to 100 characters, no control characters; trimmed."""
MOMENT: Final = Parsed("time", _moment)
"""A time in the service's format, a day in UTC, `today`, `yesterday`, `now`, or how long ago: `24h`."""


def identifier(*prefixes: str, completes: str = "") -> Parsed[str]:
    """Return the type of an identifier with one of the prefixes, such as `acct_`."""

    def parse(value: str) -> str:
        if not is_identifier(value, *prefixes):
            forms = " or ".join(f"{prefix}…" for prefix in prefixes)
            raise ValueError(f"{value!r} is not an identifier such as {forms}")
        return value

    return Parsed("identifier", parse, completes=completes)


def is_identifier(text: str, *prefixes: str) -> bool:
    """Return whether a text has the form of an identifier with one of the prefixes."""
    return any(text.startswith(prefix) and _OPAQUE.fullmatch(text, len(prefix)) for prefix in prefixes)


class Named(Parsed[str]):
    """A name that people type in place of an identifier; the command is called with the identifier.

    `agentpay.cli.naming` finds it, by what `name` says.
    """

    def __init__(self, name: str, metavar: str) -> None:
        super().__init__(name, str, metavar, completes=name)


ACCOUNT: Final = Named("account", "ACCOUNT")
OWN_ACCOUNT: Final = Named("own account", "ACCOUNT")
"""An account; if it is omitted, that of the agent key."""
PAYEE: Final = Named("payee", "PAYEE")
"""An account, or an on-chain address."""
AGENT_KEY: Final = Named("agent key", "KEY_ID|NAME")
OPERATOR_KEY: Final = Named("operator key", "KEY_ID|NAME")
ANY_KEY: Final = Named("key", "KEY_ID|NAME")
"""An operator key or an agent key, revoked or not."""
WEBHOOK: Final = Named("webhook", "WEBHOOK")


def _event_types(value: str) -> tuple[EventType, ...]:
    from fnmatch import fnmatchcase

    from agentpay.contract.events import EVENTS

    patterns = [name.strip() for name in value.split(",")]
    unknown = [p for p in patterns if not any(fnmatchcase(each, p) for each in EVENTS)]
    if unknown:
        raise ValueError(
            f"unknown event type {', '.join(map(repr, unknown))}; available: {', '.join(EVENTS)}, and "
            "patterns such as transfer.*"
        )
    return tuple(each for each in EVENTS if any(fnmatchcase(each, p) for p in patterns))


def _complete_types(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the types that may follow the last comma."""
    from agentpay.contract.events import EVENTS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{each}" for each in EVENTS if each.startswith(last)]


# --- Options and arguments


TRANSFER_ID: Final = click.argument("transfer_id", type=identifier(TRANSFER))
SESSION_ID: Final = click.argument("session_id", type=identifier(SESSION))
ACCOUNT_ID: Final = click.argument("account_id", type=ACCOUNT)
TO: Final = click.option("--to", required=True, type=PAYEE, help="Payee: account, or USDC token account.")
CATEGORY: Final = click.option("--category", help="Spend category, 1 to 64 characters.")
IDEMPOTENCY_KEY: Final = click.option(
    "--idempotency-key",
    help="Idempotency key. Default: a new one. To resume an earlier attempt, pass its key.",
)

takes_json: Final = click.option("--json", "is_json", is_flag=True, help="Print JSON, one object per line.")
takes_quiet: Final = click.option(
    "-q",
    "--quiet",
    "is_quiet",
    is_flag=True,
    help="Print only what a script needs, such as an identifier or a new key.",
)
takes_yes: Final = click.option("-y", "--yes", "is_yes", is_flag=True, help="Do not ask on a terminal.")


def with_options(command: Function, *options: Decorator) -> Function:
    """Add options to a command, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command


def account_option(text: str) -> Decorator:
    """Return the option `--account`."""
    return click.option("--account", "account_id", type=ACCOUNT, help=text)


def by_option(text: str) -> Decorator:
    """Return the option `--by`, which names a key."""
    return click.option("--by", "key_id", type=ANY_KEY, help=text)


def payer_option(parameter: str, option: str = "--from") -> Decorator:
    """Return the option that names the payer, with the name of its parameter."""
    text = "Account that pays. Default: the agent key's."
    return click.option(option, parameter, type=OWN_ACCOUNT, help=text)


def status_option(statuses: object, things: str, more: str = "") -> Decorator:
    """Return the option `--status`; `statuses` is a `Literal` type, and `more` ends its help."""
    text = f"Only {things} with this status. {more}".strip()
    return click.option("--status", type=click.Choice(get_args(statuses)), help=text)


def events_option(
    *names: str,
    text: str,
    default: str | None = "*",
    **attributes: Any,  # noqa: ANN401 - as `click.option`
) -> Decorator:
    """Return the option `--events`: types separated by commas; `transfer.*` means all types that match it."""
    kind = Parsed("types", _event_types, "TYPE,…")
    return click.option(
        "--events",
        *names,
        type=kind,
        default=default,
        shell_complete=_complete_types,
        help=text,
        **attributes,
    )


def either(*options: str) -> Decorator:
    """Refuse two options that exclude each other."""

    def checked(command: Function) -> Function:
        @functools.wraps(command)
        def with_either(**given: Any) -> None:  # noqa: ANN401 - the values of all options
            params = click.get_current_context().command.params
            if all(is_given(str(each.name)) for each in params if set(options) & set(each.opts)):
                raise click.UsageError(f"pass either {' or '.join(options)}.")
            command(**given)

        return with_either

    return checked


def is_given(parameter: str) -> bool:
    """Return whether the option of a parameter is on the command line."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


def as_typed(message: str) -> str:
    """Return a message about an argument with the command's option in place of the client's parameter."""
    context = click.get_current_context()
    # The client has the name of the option, or that of the command's parameter.
    options = (each for param in context.command.params for each in param.opts if each.startswith("--"))
    typed = {each[2:].replace("-", "_"): each for each in options}
    typed |= {
        str(each.name): each.opts[0]
        if isinstance(each, click.Option)
        else each.make_metavar(context).strip("[]")
        for each in context.command.params
    }
    # The service's; a client's method has the URL of a webhook.
    typed.pop("url", None)
    return _PARAMETER.sub(lambda found: typed.get(found[0], found[0]), message)


def with_output(command: Function) -> Function:
    """Call a command with `output` in place of `is_json` and `is_quiet`."""

    @functools.wraps(command)
    def with_those(*, is_json: bool, is_quiet: bool = False, **others: Any) -> None:  # noqa: ANN401 - as above
        from agentpay.cli.output import CommandRefusedError, Output
        from agentpay.cli.profiles import ConfigError

        output = Output(is_json=is_json, is_quiet=is_quiet)
        try:
            command(output=output, **others)
        except ConfigError as error:
            raise CommandRefusedError(f"{error}.", output, error="config") from None

    return with_those


def takes_output(command: Function) -> Function:
    """Add `--json` and `--quiet` to a command; it is called with `output`."""
    return takes_json(takes_quiet(with_output(command)))


def takes_server(command: Function) -> Function:
    """Add the connection options to a command; it is called with `server` and `output`.

    An option that takes a name gives the command the identifier.
    """

    @functools.wraps(command)
    def with_server(
        *,
        output: Any,  # noqa: ANN401 - an Output
        url: str | None,
        key: str | None,
        profile: str | None,
        **others: Any,  # noqa: ANN401 - the values of other options
    ) -> None:
        from agentpay.cli.connection import address_of, client_of, reported_errors
        from agentpay.cli.naming import AccountNames, identified

        address = address_of(url, key, profile)
        with reported_errors(address, output), client_of(address) as server:
            output.names = AccountNames(server)
            command(server=server, output=output, **identified(server, output, others))

    return takes_address(takes_output(with_server))


def takes_address(command: Function) -> Function:
    """Add the options `--url`, `--key` and `--profile` to a command."""
    return with_options(
        command,
        click.option(
            "--url",
            envvar=URL_VARIABLE,
            show_envvar=True,
            callback=_refuse_url_of_a_webhook,
            help=f"URL of the server.  [default: {DEFAULT_URL}]",
        ),
        click.option(
            "--key",
            envvar=KEY_VARIABLE,
            show_envvar=True,
            is_eager=True,
            help=f"Operator key or agent key. {IS_VISIBLE} A profile hides the key, too.",
        ),
        click.option(
            "--profile",
            metavar="NAME",
            shell_complete=_complete_profile,
            help=f"Service of `profiles add` to use.  [env var: {PROFILE_VARIABLE}]",
        ),
    )


def _refuse_url_of_a_webhook(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Refuse a `--url` that may be a webhook's: the service's key must not be sent there."""
    has_path = re.search("[/?#]", (value or "").partition("://")[2].rstrip("/")) is not None
    is_of_webhooks = (ctx.parent is not None and ctx.parent.info_name == "webhooks") or (
        ctx.info_name == "listen" and has_path
    )
    given = [name for name in ("url", "key") if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    # While a shell completes, the value is ignored then.
    if is_of_webhooks and given == ["url"]:
        raise click.UsageError(
            "--url is the URL of the service, and needs --key here, so that no webhook gets its key. The URL "
            "of a webhook is an argument without a name, --endpoint or --forward-to.",
            ctx,
        )
    return value


def _complete_profile(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from agentpay.cli.profiles import ConfigError, read_config

    try:
        return [name for name in read_config().profiles if name.startswith(incomplete)]
    except ConfigError:
        return []


LISTING: Final[tuple[Decorator, ...]] = (
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        help="Largest number of items.",
    ),
    click.option(
        "--since", type=MOMENT, help=f"Only after this time, such as {_TIMES}; a day is its 00:00 UTC."
    ),
    click.option("--until", type=MOMENT, help="Only up to and including this time; a day is its 00:00 UTC."),
    click.option("--all", "is_all", is_flag=True, help="All items."),
    click.option("--csv", "is_csv", is_flag=True, help="Print CSV: all items, every field."),
    click.option("--wide", "is_wide", is_flag=True, help="Show every column, and exact times."),
    click.option("--watch", "is_watched", is_flag=True, help="Repeat until Ctrl-C; show changes."),
    click.option(
        "--interval",
        type=Seconds(0.05, 3600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="Pause between two refreshes with --watch.",
    ),
    either("--all", "--limit"),
    *(either("--csv", other) for other in ("--watch", "--json", "--quiet")),
)
"""The options of lists."""
