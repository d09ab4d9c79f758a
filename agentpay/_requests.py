"""Sans-IO: an endpoint and its arguments become a request; an answer becomes a model or an exception.

Nothing here sends, waits or knows the API key. Exceptions are returned as values: whether one is raised, or
the request is sent again, is decided by `agentpay._retries`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from attrs import field, frozen

from agentpay import errors
from agentpay.contract import codec, json_text
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import HTTP_STATUS, ErrorBody, ErrorCode
from agentpay.contract.fields import format_timestamp
from agentpay.contract.requests import UNSET, Request

MESSAGE_MAX_CHARACTERS: Final = 2000
"""How much of the service's message an exception keeps."""


@frozen(kw_only=True)
class PreparedRequest:
    """A request that is ready to be sent, any number of times.

    Attributes:
        endpoint: what it asks for.
        target: path and query, from the slash on.
        content: body; None for none.
        if_match: value of the `If-Match` header; None for none.
        idempotency_key: the key that makes repeating it safe; None for none.
    """

    endpoint: Endpoint
    target: str
    content: bytes | None = field(default=None, repr=False)
    if_match: str | None = None
    idempotency_key: str | None = None


@frozen
class Reply:
    """An answer of the service.

    Attributes:
        status: HTTP status.
        headers: headers, looked up by their lower-case names.
        body: the whole body; kept out of `repr`, since a webhook's secret may be in it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def prepare(
    endpoint: Endpoint,
    *,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, object] | None = None,
    body: Request | None = None,
    if_match: str | None = None,
    idempotency_key: str | None = None,
) -> PreparedRequest:
    """Return the request for an endpoint and its arguments.

    Args:
        endpoint: what to ask for.
        path: values of the path's parameters, unquoted.
        query: the query; what is None is left out.
        body: the body's model.
        if_match: the version that a write demands, as the service gave it.
        idempotency_key: the key within `body`, where it has one.

    Raises:
        TypeError: an identifier is not a string, or a value of the body has no exact JSON form.
        ValueError: an identifier is empty or would reach another path; a datetime has no UTC offset.
    """
    target = endpoint.path
    if path:
        target = target.format(**{name: _quoted(name, value) for name, value in path.items()})
    if query:
        given = {name: _query_text(name, value) for name, value in query.items() if value is not None}
        if given:
            target = f"{target}?{urlencode(given)}"
    return PreparedRequest(
        endpoint=endpoint,
        target=target,
        content=None if body is None else json_text.print_json(codec.unstructure(body)),
        if_match=if_match,
        idempotency_key=idempotency_key,
    )


def _quoted(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    # Quoting alone is not enough: servers and proxies take dot segments and %2F apart again.
    if value in ("", ".", "..") or not value.isprintable() or "/" in value or "\\" in value:
        raise ValueError(f"{name} must be an identifier as the service returned it, not {value[:64]!r}")
    return quote(value, safe="")


def _query_text(name: str, value: object) -> str:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{name} must have a UTC offset: use datetime(..., tzinfo=UTC)")
        return format_timestamp(value)
    return str(value)


def etag_of(reply: Reply) -> str | None:
    """Return the version that an answer carries, for `if_match`; None without one that can be sent back."""
    etag = reply.headers.get("etag")
    return etag if etag and etag.isascii() and etag.isprintable() else None


def read(endpoint: Endpoint, reply: Reply, *, now: float) -> Any:  # noqa: ANN401 - the endpoint's own model
    """Return what an answer means: the endpoint's model, or the exception to raise.

    Args:
        endpoint: what was asked for.
        reply: the answer.
        now: seconds since the epoch, against which a date in `Retry-After` is read.
    """
    model = endpoint.responses.get(reply.status, UNSET)
    if model is None:
        return None
    if model is UNSET:
        if reply.status >= 400:
            return _api_error(reply, now)
        problem = f"the status {reply.status} is not one of this operation"
    else:
        try:
            return codec.structure(json_text.parse_json(reply.body), model)
        except (json_text.InvalidJsonError, codec.InvalidValueError) as error:
            problem = f"the body {error}" if isinstance(error, json_text.InvalidJsonError) else str(error)
    return errors.DecodingError(
        f"the answer to {endpoint.name} ({reply.status}) is not what the contract says: "
        f"{problem[:MESSAGE_MAX_CHARACTERS]}. Check that base_url is the address of the service",
        status=reply.status,
        request_id=reply.headers.get("x-request-id"),
    )


_BY_CODE: Final[dict[str, type[errors.APIError]]] = {
    ErrorCode.POLICY_VIOLATION: errors.PolicyViolationError,
    ErrorCode.ACCOUNT_PAUSED: errors.AccountPausedError,
    ErrorCode.INSUFFICIENT_BALANCE: errors.InsufficientBalanceError,
    ErrorCode.TRANSFER_FAILED: errors.TransferFailedError,
    ErrorCode.SESSION_CAP_EXCEEDED: errors.SessionCapExceededError,
    ErrorCode.IDEMPOTENCY_CONFLICT: errors.IdempotencyConflictError,
    ErrorCode.SESSION_CLOSED: errors.SessionClosedError,
    ErrorCode.CHAIN_UNAVAILABLE: errors.ChainUnavailableError,
    ErrorCode.SERVICE_UNAVAILABLE: errors.ServiceUnavailableError,
}
"""The codes with an exception of their own among those of one status."""

_BY_STATUS: Final[dict[int, type[errors.APIError]]] = {
    400: errors.InvalidRequestError,
    401: errors.AuthenticationError,
    402: errors.TransferRejectedError,
    403: errors.PermissionDeniedError,
    404: errors.NotFoundError,
    405: errors.InvalidRequestError,
    409: errors.ConflictError,
    412: errors.PreconditionFailedError,
    413: errors.InvalidRequestError,
    415: errors.InvalidRequestError,
    422: errors.InvalidRecipientError,
    429: errors.RateLimitedError,
}


def _api_error(reply: Reply, now: float) -> errors.APIError:
    status = reply.status
    body = _error_body(reply.body)
    request_id = (body and body.request_id) or reply.headers.get("x-request-id")
    retry_after = _retry_after(reply.headers.get("retry-after"), now)
    kind = _BY_STATUS.get(status, errors.ServerError if status >= 500 else errors.APIError)
    if body is None:
        message = "the answer has no error body as the service would send: a proxy may have given it"
        return kind(message, status=status, request_id=request_id, retry_after=retry_after)
    # A code counts only with its own status, so that a contradictory answer is not taken for a known one.
    if body.error in _BY_CODE and HTTP_STATUS[ErrorCode(body.error)] == status:
        kind = _BY_CODE[body.error]
    session_id = None if body.session_id is UNSET else body.session_id
    is_of_session = body.session_id is not UNSET
    return kind(
        body.message[:MESSAGE_MAX_CHARACTERS],
        status=status,
        code=body.error,
        request_id=request_id,
        transfer_id=body.transfer_id,
        transfer_status=None if is_of_session else body.status,
        session_id=session_id,
        session_status=body.status if is_of_session else None,
        details=body.details or (),
        retry_after=retry_after,
    )


def _error_body(content: bytes) -> ErrorBody | None:
    try:
        return codec.structure(json_text.parse_json(content), ErrorBody)
    except (json_text.InvalidJsonError, codec.InvalidValueError):
        return None


def _retry_after(value: str | None, now: float) -> float | None:
    """Seconds that `Retry-After` asks for: it holds seconds, or an HTTP date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:12])
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - now)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
