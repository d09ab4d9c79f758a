"""Converts failures of the HTTP library to exceptions that say whether the request may have been processed.

The original exceptions are not chained: their frames hold the API key. Their text is kept, with the line that
raised them.
"""

from pathlib import PurePath
from typing import Final

from agentpay._calls.requests import PreparedRequest
from agentpay._http.passed import class_names
from agentpay._http.pools import CONNECTIONS_MAX
from agentpay.errors import AgentPayError, APIConnectionError, APITimeoutError, ResponseValidationError

_NOT_SENT: Final = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"}
)
"""Exceptions of httpx and httpx2 that are raised before the first byte of a request is sent."""

_DETAIL_MAX_CHARACTERS: Final = 500
_LOOK: Final = "Check the network and base_url, then call again"


def of_exception(
    error: Exception,
    request: PreparedRequest,
    timeout: float | None,
    waited: float,
    *,
    secret: str,
    is_of_request: bool,
    is_past_deadline: bool = False,
) -> AgentPayError:
    """Convert an exception that was raised after a request was handed to the HTTP library.

    Args:
        error: of any library.
        request: the request.
        timeout: seconds that the exchange was allowed to take.
        waited: how many of these seconds were spent waiting for a connection.
        secret: the API key, which is removed from all text.
        is_of_request: the exception is about this request. A hook may send requests too, and their exceptions
            say nothing about this one.
        is_past_deadline: the total_timeout of the call has passed.
    """
    names = class_names(error)
    if "DecodingError" in names:
        return of_body("cannot be decompressed", request, None)
    is_sent = not (is_of_request and names & _NOT_SENT)
    processed = "The request may have been processed" if is_sent else "The request was not sent"
    if "TimeoutException" in names or isinstance(error, TimeoutError):
        when, limit = f"within {_seconds(timeout, waited)}", "timeout"
        if is_past_deadline:
            when, limit = "within the total_timeout of the call", "total_timeout"
        return APITimeoutError(
            f"no answer to {request.endpoint.name} {when} ({type(error).__name__}). {processed}. Call again "
            f"later, or with a longer {limit}",
            may_have_been_processed=is_sent,
        )
    detail = _said(error).replace(secret, "[secure]")[:_DETAIL_MAX_CHARACTERS] or "connection lost"
    where = "" if names else f" at {_place_of(error)}"
    # What OpenSSL says of a port that does not speak TLS.
    is_plain = "WRONG_VERSION_NUMBER" in detail or "record layer failure" in detail
    do = "The port speaks http: let base_url begin with http://" if is_plain else _LOOK
    failure = APIConnectionError(
        f"no answer to {request.endpoint.name}: {detail} ({type(error).__name__}{where}). {processed}. {do}",
        may_have_been_processed=is_sent,
    )
    if is_plain or "UnsupportedProtocol" in names or getattr(error, "is_permanent", False) is True:
        failure.retryable = False  # It would fail in the same way.
    return failure


def no_connection(request: PreparedRequest, timeout: float | None) -> APITimeoutError:
    return APITimeoutError(
        f"{request.endpoint.name} waited for a free connection until its timeout of {timeout or 0:g} s: all "
        f"{CONNECTIONS_MAX} are busy. The request was not sent. Make fewer calls at a time, or allow a "
        "longer timeout",
        may_have_been_processed=False,
    )


def of_body(problem: str, request: PreparedRequest, status: int | None) -> ResponseValidationError:
    return ResponseValidationError(
        f"the response to {request.endpoint.name} {problem}. Check that base_url points to the service",
        status_code=status,
        outcome="unknown",  # It may report success.
    )


def _seconds(timeout: float | None, waited: float) -> str:
    if timeout is None:
        return "its time"
    seconds = f"{timeout:g} s"
    return (
        f"{seconds}, of which {waited:.1f} s passed before a connection was free"
        if waited >= 0.05
        else seconds
    )


def _said(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - of a foreign class, whose text may fail as well
        return ""


def _place_of(error: Exception) -> str:
    """Return the line that raised an exception, since the traceback is not kept."""
    traceback = error.__traceback__
    if traceback is None:
        return "an unknown line"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{PurePath(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
