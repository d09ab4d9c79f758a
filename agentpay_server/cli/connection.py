"""Connecting a command to a running server, and reporting the server's errors."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final, NoReturn, TypeVar

import click
from attrs import field, frozen

from agentpay import AgentPay, errors
from agentpay.contract.printable import printable
from agentpay_server.cli.output import Output, takes_json
from agentpay_server.cli.variables import KEY_VARIABLE, URL_VARIABLE

_Command = TypeVar("_Command", bound=Callable[..., Any])

_ADVICE: Final[Mapping[type[errors.APIError], str]] = {
    errors.AuthenticationError: f"Set --key or {KEY_VARIABLE} to the operator key of this server",
    errors.PermissionDeniedError: "",
    errors.TransferRejectedError: "No money moved",
    errors.InsufficientBalanceError: "No money moved. Fund the account and try again",
    errors.ConflictError: "",
    errors.InvalidRecipientError: "",
    errors.RateLimitedError: "Wait a moment and try again",
    errors.ServiceUnavailableError: "Check whether it was done, then try again",
    errors.ServerError: "Try again in a moment",
}
"""Advice for people, in place of an exception's own, which is for programs. Empty: nothing to add."""


@frozen(kw_only=True)
class Address:
    """A server's URL and the key to use.

    Attributes:
        url: base URL of the server.
        key: an operator key.
    """

    url: str
    key: str = field(repr=False)


class RefusedError(click.ClickException):
    """The server refused, failed or cannot be reached: exit code 1."""

    def __init__(self, message: str, output: Output, **fields: object) -> None:
        super().__init__(message)
        self._output = output
        self._fields = fields

    def format_message(self) -> str:
        """Return the message, with escape sequences from the server made harmless."""
        return printable(self.message)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message on standard error, as text or as one line of JSON."""
        if self._output.is_json:
            fields = {name: value for name, value in self._fields.items() if value is not None}
            self._output.document({**fields, "message": self.message}, is_error=True)
        else:
            super().show(file)


def takes_server(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command; it is called with `server` and `output`."""

    @functools.wraps(command)
    def with_server(
        *,
        url: str,
        key: str | None,
        is_json: bool,
        **others: Any,  # noqa: ANN401 - the values of other options
    ) -> None:
        output, address = Output(is_json=is_json), address_of(url, key)
        with reported_errors(address, output), _client(address) as server:
            command(server=server, output=output, **others)

    return takes_address(takes_json(with_server))


def takes_address(command: _Command) -> _Command:
    """Add the options `--url` and `--key` to a command."""
    command = click.option(
        "--key",
        envvar=KEY_VARIABLE,
        show_envvar=True,
        help="Operator key. Prefer the variable: other users of the machine may see command lines.",
    )(command)
    return click.option(
        "--url",
        envvar=URL_VARIABLE,
        show_envvar=True,
        default="http://127.0.0.1:8402",
        show_default=True,
        help="URL of the server.",
    )(command)


def address_of(url: str, key: str | None) -> Address:
    """Return the address to call.

    Raises:
        UsageError: `key` is missing.
    """
    if not key:
        raise click.UsageError(
            f"no operator key: set --key or {KEY_VARIABLE} to the operator_key that the server printed at "
            "its first start."
        )
    return Address(url=url, key=key)


@contextlib.contextmanager
def reported_errors(address: Address, output: Output) -> Iterator[None]:
    """Turn exceptions of the SDK into messages with an exit code.

    Raises:
        UsageError: the URL or the key is invalid.
        RefusedError: any other error.
    """
    try:
        yield
    except errors.ConfigurationError as error:
        raise click.UsageError(str(error).replace("base_url", "--url").replace("api_key", "--key")) from None
    except errors.APIConnectionError as error:
        _not_answered(error, address, output)
    except errors.APIError as error:
        raise RefusedError(
            _sentences(error),
            output,
            error=error.code or "error",
            transfer_id=error.transfer_id,
            session_id=error.session_id,
            request_id=error.request_id,
        ) from None
    except errors.AgentPayError as error:
        raise RefusedError(str(error), output, error=type(error).__name__) from None


def _client(address: Address) -> AgentPay:
    return AgentPay(api_key=address.key, base_url=address.url)


def _not_answered(error: errors.APIConnectionError, address: Address, output: Output) -> NoReturn:
    if error.may_have_been_processed:
        message = f"{error}. Check whether it was done before you try again."
    else:
        message = (
            f"no server responds at {address.url}. Start one with agentpay-server serve, or set --url or "
            f"{URL_VARIABLE}."
        )
    raise RefusedError(message, output, error="no_answer")


def _sentences(error: errors.APIError) -> str:
    said = error.message.rstrip(".")
    said += "".join(f"; {fault.field} {fault.message}" for fault in error.details)
    kinds = (kind for kind in type(error).__mro__ if kind in _ADVICE)
    advice = _ADVICE.get(next(kinds, errors.APIError), error.advice)
    parts = [f"{said}."] + ([f"{advice}."] if advice else [])
    if error.status >= 500:
        if error.transfer_id is not None:
            parts[-1] = f"The outcome is unknown: check transfer {error.transfer_id} before you try again."
        if error.request_id is not None:
            parts.append(f"Request {error.request_id}.")
    return f"{error.code or error.status}: " + " ".join(parts)
