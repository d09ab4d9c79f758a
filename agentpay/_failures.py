"""What a failed exchange becomes: an exception that says whether the request may have been processed.

The exceptions of the HTTP library, and of whatever is plugged into it, are not kept: their frames hold the
API key. What they say is kept, with the line that raised it.
"""

from pathlib import PurePath
from typing import Final

from agentpay._given import class_names
from agentpay._pools import CONNECTIONS_MAX
from agentpay._requests import PreparedRequest
from agentpay.errors import AgentPayError, APIConnectionError, APITimeoutError, DecodingError

_NOT_SENT: Final = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"}
)
"""Exceptions of httpx and httpx2 that are raised before the first byte of a request has left."""

_DETAIL_MAX_CHARACTERS: Final = 500


def of_exception(
    error: Exception,
    request: PreparedRequest,
    timeout: float | None,
    waited: float,
    *,
    secret: str,
    is_of_request: bool,
) -> AgentPayError:
    """Return what stands for an exception that was raised after a request was handed over.

    Args:
        error: what was raised, by any library.
        request: what was sent.
        timeout: seconds that the exchange could take.
        waited: seconds of these that it waited for a connection.
        secret: the API key, which is never repeated.
        is_of_request: whether the exception is about this request; one that a hook raised about a request of
            its own says nothing about this one.
    """
    names = class_names(error)
    if "DecodingError" in names:
        return of_body("cannot be decompressed", request, None)
    is_sent = not (is_of_request and names & _NOT_SENT)
    processed = "The request may have been processed" if is_sent else "The request was not sent"
    if "TimeoutException" in names or isinstance(error, TimeoutError):
        return APITimeoutError(
            f"no answer to {request.endpoint.name} within {_seconds(timeout, waited)} "
            f"({type(error).__name__}). {processed}. Call again later, or with a longer timeout",
            may_have_been_processed=is_sent,
        )
    detail = _said(error).replace(secret, "[secure]")[:_DETAIL_MAX_CHARACTERS] or "connection lost"
    where = "" if names else f" at {_place_of(error)}"
    return APIConnectionError(
        f"no answer to {request.endpoint.name}: {detail} ({type(error).__name__}{where}). "
        f"{processed}. Check the network and base_url, then call again",
        may_have_been_processed=is_sent,
    )


def no_connection(request: PreparedRequest, timeout: float | None) -> APITimeoutError:
    """Return what stands for a request that waited for a free connection in vain."""
    return APITimeoutError(
        f"{request.endpoint.name} waited for a free connection until its timeout of {timeout or 0:g} s: all "
        f"{CONNECTIONS_MAX} are busy. The request was not sent. Make fewer calls at a time, or allow a "
        "longer timeout",
        may_have_been_processed=False,
    )


def of_body(problem: str, request: PreparedRequest, status: int | None) -> DecodingError:
    """Return what stands for a response whose body is refused."""
    return DecodingError(
        f"the answer to {request.endpoint.name} {problem}. Check that base_url is the address of the service",
        status=status,
    )


def _seconds(timeout: float | None, waited: float) -> str:
    seconds = f"{timeout or 0:g} s"
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
    """The line that raised an exception: it is all that is left of the traceback."""
    traceback = error.__traceback__
    if traceback is None:
        return "an unknown line"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{PurePath(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
