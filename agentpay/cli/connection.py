"""Connecting a command to a running server, and reporting the server's errors."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Final, NoReturn

import click
from attrs import field, frozen

from agentpay import AgentPay, errors
from agentpay._calls.invalid import InvalidArgumentError
from agentpay.cli import FAILED, OUTCOME_UNKNOWN, REFUSED
from agentpay.cli.options import DEFAULT_URL, KEY_VARIABLE, PROFILE_VARIABLE, URL_VARIABLE, as_typed
from agentpay.cli.output import CommandRefusedError, Output
from agentpay.cli.profiles import Config, ConfigError, config_path, is_shared, read_config
from agentpay.contract.fields import format_timestamp

_NOT_ALLOWED: Final = (
    errors.PolicyViolationError,
    errors.AccountPausedError,
    errors.InsufficientBalanceError,
    errors.SessionCapExceededError,
)


_OF_ANOTHER_SERVER: Final = (404, 405, 501)
"""Statuses that, without the service's error body, come from a server that is no service or proxy of one."""


@frozen(kw_only=True)
class ServerAccess:
    """A server's URL and the operator or agent key to use."""

    url: str
    key: str = field(repr=False)


def address_of(url: str | None, key: str | None, profile: str | None = None) -> ServerAccess:
    """Return the address to call, or raise UsageError.

    `--profile` comes first, then `--url` and `--key` or their variables, then `AGENTPAY_PROFILE`, then the
    current profile. Both parts come from one source: the key of a profile is never sent to another URL.
    """
    if profile is not None:
        _refuse_both()
        return _of_profile(_config(), profile, "--profile")
    if url is None and key is None:
        named = os.environ.get(PROFILE_VARIABLE)
        config = _config()
        if named:
            return _of_profile(config, named, PROFILE_VARIABLE)
        if config.current is not None:
            return _of_profile(config, config.current, "the current profile")
    if not key:
        raise click.UsageError(
            f"no operator key: set --key or {KEY_VARIABLE} to the operator_key that the server printed at "
            f"its first start, or store it with agentpay profiles add NAME."
        )
    return ServerAccess(url=url or DEFAULT_URL, key=key)


def client_of(address: ServerAccess) -> AgentPay:
    """Return a client for an address."""
    return AgentPay(api_key=address.key, base_url=address.url)


@contextlib.contextmanager
def reported_errors(address: ServerAccess, output: Output) -> Iterator[None]:
    """Turn exceptions of the SDK into messages with an exit code."""
    try:
        yield
    except errors.ConfigurationError as error:
        raise click.UsageError(str(error).replace("base_url", "--url").replace("api_key", "--key")) from None
    except InvalidArgumentError as error:
        raise click.UsageError(f"{as_typed(str(error))}.") from None
    except errors.OutcomeUnknownError as error:
        _outcome_unknown(error, output)
    except errors.APIConnectionError as error:
        if error.may_have_been_processed:
            raise CommandRefusedError(str(error), output, error="no_answer") from None
        _not_answered("server", address, output)
    except errors.APIError as error:
        if error.body is None and error.status_code in _OF_ANOTHER_SERVER:
            _not_answered("agentpay service", address, output)
        raise CommandRefusedError(
            _sentences(error),
            output,
            exit_code=REFUSED if isinstance(error, _NOT_ALLOWED) else FAILED,
            error=error.code or "error",
            transfer_id=error.transfer_id,
            session_id=error.session_id,
            request_id=error.request_id,
            refusal=error.body and error.body.refusal and error.body.refusal.to_dict(),
            decided_at=None if error.decided_at is None else format_timestamp(error.decided_at),
        ) from None
    except errors.AgentPayError as error:
        raise CommandRefusedError(str(error), output, error=type(error).__name__) from None


def _config() -> Config:
    try:
        config = read_config()
    except ConfigError as error:
        raise click.UsageError(f"{error}.") from None
    if is_shared():
        path = config_path()
        click.echo(f"Warning: other users can read the keys in {path}: run chmod 600 {path}.", err=True)
    return config


def _of_profile(config: Config, name: str, source: str) -> ServerAccess:
    profile = config.profiles.get(name)
    if profile is None:
        known = ", ".join(config.profiles) or "none"
        raise click.UsageError(
            f"{source} names profile {name!r}; stored: {known}. Add it with agentpay profiles add {name}."
        )
    return ServerAccess(url=profile.base_url, key=profile.api_key)


def _refuse_both() -> None:
    context = click.get_current_context()
    for name in ("url", "key"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--profile has a URL and a key: omit --{name}.")


def _outcome_unknown(error: errors.OutcomeUnknownError, output: Output) -> NoReturn:
    if error.idempotency_key is not None:
        message = (
            f"{error.operation} may have been processed. Repeat the command with "
            f"{as_typed('idempotency_key')} {error.idempotency_key}: this resumes it and never pays twice."
        )
    else:
        what = f"transfer {error.transfer_id}" if error.transfer_id else "whether it was done"
        message = f"{str(error).rpartition('. ')[0]}. Check {what} before you try again."
    raise CommandRefusedError(
        message,
        output,
        exit_code=OUTCOME_UNKNOWN,
        error="outcome_unknown",
        idempotency_key=error.idempotency_key,
        transfer_id=error.transfer_id,
        session_id=error.session_id,
        request_id=error.request_id,
    ) from None


def _not_answered(what: str, address: ServerAccess, output: Output) -> NoReturn:
    raise CommandRefusedError(
        f"no {what} responds at {address.url}. Start one with agentpay-server serve, or set --url or "
        f"{URL_VARIABLE}.",
        output,
        error="no_answer",
    ) from None


def _sentences(error: errors.APIError) -> str:
    # The details are shown here.
    said = re.sub(r"; details [^.]+|\. [^.]+ in details[^.]*", "", error.message).rstrip(".")
    shown = [fault for fault in error.details if fault.message not in error.message]
    if error.code == "invalid_request":
        said = as_typed(said)
    said += (": " if shown else "") + "; ".join(as_typed(f"{each.field} {each.message}") for each in shown)
    if isinstance(error, errors.TransferRejectedError):
        said += errors.possible_again(error.available_at)
    # The message of most errors says it already.
    is_said = error.advice in said or " in details" in error.advice
    advice = "" if is_said else error.advice.replace("the same idempotency key", as_typed("idempotency_key"))
    if isinstance(error, errors.AuthenticationError):
        advice = f"Set --key or {KEY_VARIABLE} to the operator key of this server"
    if error.decided_at is not None:
        decided = f"That was decided at {format_timestamp(error.decided_at)}"
        advice = f"{decided}, and is repeated for its idempotency key. {advice}"
    parts = [f"{said}."] + ([f"{advice}."] if advice else [])
    if error.status_code >= 500 and error.request_id is not None:
        parts.append(f"Request {error.request_id}.")
    return f"{error.code or error.status_code}: " + " ".join(parts)
