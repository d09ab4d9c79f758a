"""Sans-IO: when to retry a request, how long to wait before, and when the outcome is unknown.

`attempts` is a generator that its driver controls. It yields `Send`, and the driver sends back a
`RawResponse`, or an exception if there was none. It yields `Sleep`, and the driver sends back None. At the
end it returns the model and its response, or raises. It has no shared state, so any number of calls can run
concurrently. The rules:

- Retry at most `max_retries` times, on: no connection, timeout, 408, 429, and 5xx except 501.
- A request whose repetition would have another effect (`Repeat.IF_NOT_PROCESSED`) is retried only if it was
  certainly not processed.
- The pause is random, from 0 to an exponentially growing limit (full jitter), and never shorter than
  `Retry-After`. A `Retry-After` above `RETRY_AFTER_CAP` ends the attempts and is left to the caller.
- No pause is longer than `pause_max`. A deadline ends the attempts, but does not change how they are
  interpreted.
- A write ends in `OutcomeUnknownError` if an attempt may have been processed and no later response decided
  the question. `AgentPayError.outcome` says what an attempt means.
- After a response that belongs to another request, the current connections are not used again.
"""

import contextlib
import math
import random as _random
import time
from collections.abc import Callable, Generator, Mapping
from itertools import count
from typing import Any, Final, NamedTuple

import attrs

from agentpay._calls.requests import PreparedRequest, read
from agentpay.contract.endpoints import CREATE_TRANSFER, Repeat
from agentpay.contract.responses import RawResponse
from agentpay.errors import (
    AgentPayError,
    AnswerMismatchError,
    APIConnectionError,
    APIError,
    OutcomeUnknownError,
    TransferOutcomeUnknownError,
)

BACKOFF_BASE: Final = 0.5
"""Maximum of the first pause, in seconds; it doubles with every retry."""

BACKOFF_CAP: Final = 8.0
"""Maximum of a random pause, in seconds."""

RETRY_AFTER_CAP: Final = 30.0
"""Longest `Retry-After` that is waited for, in seconds."""


class Send: ...


class Sleep(NamedTuple):
    seconds: float


class Renew:
    """Use new connections from now on."""


SEND: Final = Send()
RENEW: Final = Renew()


def attempts(
    request: PreparedRequest,
    *,
    max_retries: int,
    pause_max: Callable[[], float] = lambda: math.inf,
    now: Callable[[], float] = time.time,
    random: Callable[[], float] = _random.random,
) -> Generator[Send | Sleep | Renew, Any, tuple[Any, RawResponse]]:
    """Yield the next step until there is a response; return its model and the reply.

    `pause_max` returns the maximum seconds of a pause at this time; a longer one ends the attempts. `now` is
    in seconds since the epoch, `random` from 0 up to 1.
    """
    doubt: AgentPayError | None = None
    known: dict[str, str] = {}
    for retries in count():
        outcome = yield SEND
        result = outcome
        if isinstance(outcome, RawResponse):
            outcome = attrs.evolve(outcome, retries_made=retries) if retries else outcome
            result = read(request, outcome, now=now())
        if not isinstance(result, AgentPayError):
            return result, outcome
        if isinstance(result, AnswerMismatchError):
            yield RENEW
        if result.outcome != "not_done":
            doubt = result if result.outcome == "unknown" else None
        known |= _identifiers(result)
        pause = None
        if retries < max_retries and _may_repeat(request, result):
            pause = _pause(result, retries, random)
        if pause is not None and pause <= pause_max():
            yield Sleep(pause)
            continue
        result.retries_made, result.idempotency_key = retries, request.idempotency_key
        if request.endpoint.is_read:
            if doubt is result:
                result.outcome = "not_done"
        elif doubt is not None:
            unknown = _outcome_unknown(request, doubt, known)
            unknown.retries_made = retries
            raise unknown from result
        raise result
    raise AssertionError  # pragma: no cover - `count` has no end


def _identifiers(error: AgentPayError) -> dict[str, str]:
    """Return the transfer or session that an error names."""
    found = {name: getattr(error, name, None) for name in ("transfer_id", "session_id")}
    return {name: value for name, value in found.items() if value is not None}


def unexpected(request: PreparedRequest, error: Exception) -> AgentPayError:
    """Return the exception for an unexpected error that was raised after a request was sent."""
    failure = APIConnectionError(
        f"{request.endpoint.name} may have been processed, and then {type(error).__name__} was raised here. "
        "Report it, with the traceback",
        may_have_been_processed=True,
    )
    failure.retryable = False
    if not request.endpoint.is_read:
        return _outcome_unknown(request, failure, {})
    failure.outcome = "not_done"
    return failure


def note_key(error: BaseException, request: PreparedRequest) -> None:
    """Let an exception that leaves a call have its key: cancellations and interrupts too."""
    key = request.idempotency_key
    with contextlib.suppress(AttributeError):  # of a foreign class that takes none
        error.idempotency_key = key  # type: ignore[attr-defined]
    if not isinstance(error, Exception):
        # Money may be in flight: the key is needed to resume.
        error.add_note(
            f"{request.endpoint.name} may have been processed. Do not pay again under a new key: call it "
            f"with the same parameters and idempotency_key={key!r} to resume it."
        )


def _outcome_unknown(
    request: PreparedRequest, doubt: AgentPayError, known: Mapping[str, str]
) -> OutcomeUnknownError:
    endpoint, key = request.endpoint, request.idempotency_key
    if key is not None and (endpoint.method, endpoint.path) == (CREATE_TRANSFER.method, CREATE_TRANSFER.path):
        return TransferOutcomeUnknownError(
            idempotency_key=key, transfer_id=known.get("transfer_id"), cause=doubt
        )
    return OutcomeUnknownError(
        operation=endpoint.name,
        idempotency_key=key,
        cause=doubt,
        is_repeatable=endpoint.repeat is Repeat.ALWAYS,
        **known,
    )


def retry_after(error: AgentPayError | None) -> float:
    """Return for how many seconds the service asks not to be called."""
    asked = error.retry_after if isinstance(error, APIError) else None
    return asked or 0.0


def _may_repeat(request: PreparedRequest, error: AgentPayError) -> bool:
    repeat = request.endpoint.repeat
    if repeat is Repeat.NEVER or not error.retryable or error.outcome == "decided":
        return False
    return repeat is Repeat.ALWAYS or error.outcome == "not_done"


def _pause(error: AgentPayError, retries: int, random: Callable[[], float]) -> float | None:
    """Return the seconds to wait before the next attempt, or None if the service asks for too many."""
    asked = retry_after(error)
    if asked > RETRY_AFTER_CAP:
        return None
    # The exponent is bounded: 2**1024 overflows a float, and max_retries is unlimited.
    limit = min(BACKOFF_CAP, BACKOFF_BASE * 2.0 ** min(retries, 16))
    return max(asked, random() * limit)
