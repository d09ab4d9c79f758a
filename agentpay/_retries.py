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
- A request with an idempotency key ends in `TransferOutcomeUnknownError` (or the equivalent for sessions) if
  an attempt may have been processed and no later response settled the question.
- After a response that belongs to another request, the current connections are not used again.
"""

import math
import random as _random
import time
from collections.abc import Callable, Generator
from enum import Enum
from itertools import count
from typing import Any, Final, NamedTuple

import attrs

from agentpay._requests import ANY_SUCCESS, PreparedRequest, read
from agentpay.contract.endpoints import CREATE_TRANSFER, Endpoint, Repeat
from agentpay.contract.responses import RawResponse
from agentpay.errors import (
    AgentPayError,
    AnswerMismatchError,
    APIConnectionError,
    APIError,
    ClosedClientError,
    ConfigurationError,
    OutcomeUnknownError,
    PaymentOutcomeUnknownError,
    SessionOutcomeUnknownError,
    TransferOutcomeUnknownError,
)

BACKOFF_BASE: Final = 0.5
"""Maximum of the first pause, in seconds; it doubles with every retry."""

BACKOFF_CAP: Final = 8.0
"""Maximum of a random pause, in seconds."""

RETRY_AFTER_CAP: Final = 30.0
"""Longest `Retry-After` that is waited for, in seconds."""

_RETRIED: Final = frozenset({408, 429, *range(500, 600)} - {501})
_TURNED_AWAY: Final = frozenset({401, 403, 429})
_LAST_WORDS: Final = frozenset({400, 402, 404, 405, 409, 413, 415, 422})


class Send: ...


class Sleep(NamedTuple):
    seconds: float


class Renew:
    """Use new connections from now on."""


SEND: Final = Send()
RENEW: Final = Renew()


class _Effect(Enum):
    NONE = "this attempt did nothing"
    POSSIBLE = "this attempt may have done it"
    SETTLED = "the service has decided on it"


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
    in_doubt = False
    known_id: str | None = None
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
        effect = _effect_of(result)
        in_doubt = effect is _Effect.POSSIBLE or (in_doubt and effect is _Effect.NONE)
        known_id = _subject_of(result) or known_id
        pause = None
        if retries < max_retries and _may_repeat(request, result, effect):
            pause = _pause(result, retries, random)
        if pause is not None and pause <= pause_max():
            yield Sleep(pause)
            continue
        result.retries_made = retries
        if in_doubt and request.idempotency_key is not None:
            unknown = _outcome_unknown(request.endpoint, request.idempotency_key, known_id)
            unknown.retries_made = retries
            raise unknown from result
        raise result
    raise AssertionError  # pragma: no cover - `count` has no end


def _subject_of(error: AgentPayError) -> str | None:
    return (error.transfer_id or error.session_id) if isinstance(error, APIError) else None


def unexpected(request: PreparedRequest, error: Exception) -> AgentPayError:
    """Return the exception for an unexpected error that was raised after a request was sent."""
    if request.idempotency_key is not None:
        return _outcome_unknown(request.endpoint, request.idempotency_key, None)
    return APIConnectionError(
        f"{request.endpoint.name} may have been processed, and then {type(error).__name__} was raised here. "
        "Report it, with the traceback",
        may_have_been_processed=True,
    )


def _outcome_unknown(endpoint: Endpoint, key: str, known_id: str | None) -> AgentPayError:
    if (endpoint.method, endpoint.path) == (CREATE_TRANSFER.method, CREATE_TRANSFER.path):
        return TransferOutcomeUnknownError(idempotency_key=key, transfer_id=known_id)
    if endpoint.name == "payments.authorize":
        return PaymentOutcomeUnknownError(idempotency_key=key, transfer_id=known_id)
    if endpoint.responses is ANY_SUCCESS:
        return OutcomeUnknownError(operation=endpoint.name, idempotency_key=key)
    return SessionOutcomeUnknownError(operation=endpoint.name, idempotency_key=key, session_id=known_id)


def _effect_of(error: AgentPayError) -> _Effect:
    if isinstance(error, ClosedClientError | ConfigurationError) or (
        isinstance(error, APIConnectionError) and not error.may_have_been_processed
    ):
        return _Effect.NONE
    if not isinstance(error, APIError):
        # The response is unreadable. It may have reported success.
        return _Effect.POSSIBLE
    if error.status_code in _TURNED_AWAY:
        return _Effect.NONE
    if error.status_code in _LAST_WORDS:
        # Without the service's error body it may come from a proxy, which has no information on earlier
        # attempts.
        return _Effect.NONE if error.code is None else _Effect.SETTLED
    if error.status_code == 503 and error.code == "chain_unavailable" and _subject_of(error) is None:
        # Nothing was stored, and nothing will be sent (interface E4, I5).
        return _Effect.NONE
    return _Effect.POSSIBLE


def is_transient(error: AgentPayError) -> bool:
    """Return whether a retry may succeed: there was no response, or a temporary error."""
    return isinstance(error, APIConnectionError) or (
        isinstance(error, APIError) and error.status_code in _RETRIED
    )


def retry_after(error: AgentPayError | None) -> float:
    """Return for how many seconds the service asks not to be called."""
    asked = error.retry_after if isinstance(error, APIError) else None
    return asked or 0.0


def _may_repeat(request: PreparedRequest, error: AgentPayError, effect: _Effect) -> bool:
    repeat = request.endpoint.repeat
    if repeat is Repeat.NEVER or not is_transient(error):
        return False
    return repeat is Repeat.ALWAYS or effect is _Effect.NONE


def _pause(error: AgentPayError, retries: int, random: Callable[[], float]) -> float | None:
    """Return the seconds to wait before the next attempt, or None if the service asks for too many."""
    asked = retry_after(error)
    if asked > RETRY_AFTER_CAP:
        return None
    # The exponent is bounded: 2**1024 overflows a float, and max_retries is unlimited.
    limit = min(BACKOFF_CAP, BACKOFF_BASE * 2.0 ** min(retries, 16))
    return max(asked, random() * limit)
