"""Sans-IO: when a request is sent again, for how long to wait before, and when its outcome is unknown.

`attempts` is a generator. It yields `Send` and is answered with a `Reply` or with the exception that stands
for a missing one; it yields `Sleep` and is answered with nothing. It returns the model and its reply, or
raises. All of its state is its own, so that any number of calls run side by side on one client. The rules:

- Sent again, at most `max_retries` times: no connection, no answer in time, 408, 429, and 5xx but 501.
- What would do a thing twice (`Repeat.IF_NOT_PROCESSED`) is sent again only when the request certainly did
  nothing.
- The pause is drawn from 0 to an exponentially growing limit (full jitter), and is never shorter than
  `Retry-After`. A `Retry-After` above `RETRY_AFTER_CAP` ends the attempts: the caller knows better.
- No pause is longer than `pause_max`: a deadline ends the attempts, and changes nothing of what they mean.
- A request with an idempotency key ends in `TransferOutcomeUnknownError`, or its twin of sessions, when an
  attempt may have done its work and no later answer settled the question.
- After an answer to another request nothing more is sent on the connections there are.

It neither sends nor sleeps, and knows no clock and no randomness but those that it is given.
"""

import math
import random as _random
import time
from collections.abc import Callable, Generator
from enum import Enum
from itertools import count
from typing import Any, Final, NamedTuple

import attrs

from agentpay._requests import ANY_SUCCESS, PreparedRequest, Reply, read
from agentpay.contract.endpoints import CREATE_TRANSFER, Endpoint, Repeat
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
"""Longest first pause, in seconds; it doubles with every retry."""

BACKOFF_CAP: Final = 8.0
"""Longest pause that is drawn, in seconds."""

RETRY_AFTER_CAP: Final = 30.0
"""Longest `Retry-After` that is waited for, in seconds."""

_RETRIED: Final = frozenset({408, 429, *range(500, 600)} - {501})
_TURNED_AWAY: Final = frozenset({401, 403, 429})
_LAST_WORDS: Final = frozenset({400, 402, 404, 405, 409, 413, 415, 422})


class Send:
    """Send the request now."""


class Sleep(NamedTuple):
    """Wait for `seconds`."""

    seconds: float


class Renew:
    """Use new connections from now on."""


SEND: Final = Send()
RENEW: Final = Renew()


class _Effect(Enum):
    """What a failed attempt says about the work that was asked for."""

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
) -> Generator[Send | Sleep | Renew, Any, tuple[Any, Reply]]:
    """Yield what to do next until the request is answered; return its model and its reply.

    Args:
        request: what to send.
        max_retries: how often to send it again.
        pause_max: seconds that a pause may take now; with a longer one, the request is not sent again.
        now: seconds since the epoch.
        random: a number from 0 up to 1.

    Raises:
        AgentPayError: the request failed for good.
    """
    in_doubt = False
    known_id: str | None = None
    for retries in count():
        outcome = yield SEND
        result = read(request, outcome, now=now()) if isinstance(outcome, Reply) else outcome
        if not isinstance(result, AgentPayError):
            return result, (attrs.evolve(outcome, retries_made=retries) if retries else outcome)
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
    """The transfer or the session that an answer names."""
    return (error.transfer_id or error.session_id) if isinstance(error, APIError) else None


def unexpected(request: PreparedRequest, error: Exception) -> AgentPayError:
    """Return what stands for an exception of no declared kind that was raised after a request was sent."""
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
    if (endpoint.method, endpoint.path) == ("POST", "/payments"):
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
        # Something was answered that cannot be read. It may have been "done".
        return _Effect.POSSIBLE
    if error.status in _TURNED_AWAY:
        return _Effect.NONE
    if error.status in _LAST_WORDS:
        # Without the service's body it is a proxy's word, which knows nothing of earlier attempts.
        return _Effect.NONE if error.code is None else _Effect.SETTLED
    if error.status == 503 and error.code == "chain_unavailable" and _subject_of(error) is None:
        # Nothing was stored and nothing will be sent (interface E4, I5).
        return _Effect.NONE
    return _Effect.POSSIBLE


def is_transient(error: AgentPayError) -> bool:
    """Whether the same request may fare better later: no answer came, or one that asks for patience."""
    return isinstance(error, APIConnectionError) or (isinstance(error, APIError) and error.status in _RETRIED)


def retry_after(error: AgentPayError | None) -> float:
    """Seconds for which the service asks not to be called again; 0 when it does not ask."""
    asked = error.retry_after if isinstance(error, APIError) else None
    return asked or 0.0


def _may_repeat(request: PreparedRequest, error: AgentPayError, effect: _Effect) -> bool:
    repeat = request.endpoint.repeat
    if repeat is Repeat.NEVER or not is_transient(error):
        return False
    return repeat is Repeat.ALWAYS or effect is _Effect.NONE


def _pause(error: AgentPayError, retries: int, random: Callable[[], float]) -> float | None:
    """Seconds to wait before the next attempt, or None when the service asks for too many."""
    asked = retry_after(error)
    if asked > RETRY_AFTER_CAP:
        return None
    # The exponent is bounded: 2**1024 is no float, and any number of retries may be asked for.
    limit = min(BACKOFF_CAP, BACKOFF_BASE * 2.0 ** min(retries, 16))
    return max(asked, random() * limit)
