"""Sans-IO: converts an endpoint and its arguments to a request, and a response to a model or an exception.

Nothing here sends, waits or has the API key. Exceptions are returned: `retries.py` decides whether to raise
one or to retry.
"""

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import parse_qs, quote, urlencode

import attrs
from attrs import field, frozen

from agentpay import errors
from agentpay._calls.arguments import check_text, converted, request_of, timestamp
from agentpay._calls.invalid import InvalidArgumentError
from agentpay.contract import choices, codec, json_text
from agentpay.contract.endpoints import Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorBody, ErrorCode, FieldError
from agentpay.contract.fields import parse_timestamp
from agentpay.contract.headers import IDEMPOTENCY_REPLAYED, is_header_value
from agentpay.contract.models import with_response
from agentpay.contract.printable import printable
from agentpay.contract.requests import UNSET
from agentpay.contract.responses import RawResponse

MESSAGE_MAX_CHARACTERS: Final = 2000
"""How much of the service's message an exception keeps."""

_SHOWN_CHARACTERS: Final = 128


@frozen(kw_only=True)
class PreparedRequest:
    """A request that can be sent any number of times.

    `target` is path and query, from the slash on. `idempotency_key` makes retrying it safe.
    """

    endpoint: Endpoint[Any]
    target: str
    content: bytes | None = field(default=None, repr=False)
    if_match: str | None = None
    idempotency_key: str | None = None


def prepare(
    endpoint: Endpoint[Any], arguments: Mapping[str, object], *, if_match: str | None = None
) -> PreparedRequest:
    """Build the request for an endpoint and the arguments of its method.

    The endpoint declares which of them its path, query and body take; others are ignored. `if_match` is the
    version that a write requires, as the service returned it.

    Raises:
        InvalidRequestError: an argument is invalid, or an identifier is empty or would change the path.
        TypeError: a value of the body has no exact JSON form.
    """
    target = endpoint.path
    if "{" in target:
        quoted = _free_text if endpoint.takes_rest_of_path else _quoted
        target = _PARAMETER.sub(lambda found: quoted(found[1], arguments[found[1]]), target)
    if endpoint.query is not None:
        target += _query(converted(endpoint.query, arguments, is_query=True))
    body = None if endpoint.request is None else request_of(endpoint.request, arguments)
    return PreparedRequest(
        endpoint=endpoint,
        target=target,
        content=None if body is None else json_text.print_json(codec.unstructure(body)),
        if_match=if_match,
        idempotency_key=getattr(body, "idempotency_key", None),
    )


_PARAMETER: Final = re.compile(r"{(\w+)}")

ANY_SUCCESS: Final[Mapping[int, Any]] = MappingProxyType({})
"""The responses of a request without a described endpoint: any 2xx, with an unparsed body."""

_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


def prepare_undescribed(
    method: str, path: str, *, params: Mapping[str, object] | None = None, json: object = UNSET
) -> PreparedRequest:
    """Build a request without a described endpoint.

    With a string `idempotency_key` in `json`, an unknown outcome can be resumed.

    Raises:
        TypeError: an argument has a wrong type, or the body has no exact JSON form.
        ValueError: the method is not an HTTP method, or the path is invalid.
    """
    method = check_text("method", method).upper()
    if method not in _METHODS:
        raise ValueError(f"method must be one of {', '.join(_METHODS)}, not {method!r}")
    segments = check_text("path", path).split("/")
    if (
        not path.startswith("/")
        or not path.isprintable()
        or not {".", ".."}.isdisjoint(segments)
        or set(path) & set("?#\\ ")
    ):
        raise ValueError(
            f"path must begin with a slash, such as /v1/accounts, and have no query, fragment, blanks or dot "
            f"segments, not {path[:64]!r}; pass a query as params"
        )
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(f"params must be a mapping of names to values, not {type(params).__name__}")
    key = json.get("idempotency_key") if isinstance(json, Mapping) else None
    endpoint: Endpoint[Any] = Endpoint(
        name=f"{method} {path}",
        method=method,
        path=path,
        scope=Scope.ACCOUNT,
        repeat=Repeat.ALWAYS if method == "GET" else Repeat.NEVER,
        responses=ANY_SUCCESS,
        summary="",
    )
    return PreparedRequest(
        endpoint=endpoint,
        target=path + _query(params),
        content=None if json is UNSET else json_text.print_json(json),
        idempotency_key=key if isinstance(key, str) else None,
    )


def extended(
    request: PreparedRequest, query: Mapping[str, object], body: Mapping[str, object]
) -> PreparedRequest:
    """Return a request with more parameters and fields than its endpoint has.

    Raises:
        TypeError: one of them is an argument of the method, or has no exact form; or the request has no body.
    """
    endpoint, content = request.endpoint, request.content
    path, _, own = request.target.partition("?")
    _refuse_known("extra_query", query, {*parse_qs(own), *_fields(endpoint.query)})
    target = path + "?" + "&".join(filter(None, (own, _query(query).removeprefix("?"))))
    if body:
        given = {} if content is None else json_text.parse_json(content)
        if endpoint.method == "GET" or not isinstance(given, dict):
            raise TypeError(
                f"extra_body needs a JSON object as the body, which {endpoint.name} does not send"
            )
        _refuse_known("extra_body", body, {*given, *_fields(endpoint.request)})
        content = json_text.print_json({**given, **body})
    return attrs.evolve(request, target=target.rstrip("?"), content=content)


def _fields(model: type | None) -> list[str]:
    return [] if model is None else [each.name.removesuffix("_") for each in attrs.fields(cast("Any", model))]


def _refuse_known(option: str, given: object, known: Collection[str]) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{option} must be a mapping of names to values, not {type(given).__name__}")
    for name in given:
        if check_text(f"a name of {option}", name) in known:
            raise TypeError(f"{option} must not set {name!r}: pass it as an argument")


def _query(query: Mapping[str, object] | None) -> str:
    given = {
        check_text("a name of the query", name): _query_text(name, value)
        for name, value in (query or {}).items()
        if value is not None
    }
    return f"?{urlencode(given)}" if given else ""


def _quoted(name: str, value: object) -> str:
    value = check_text(name, value)
    # Quoting is not sufficient: servers and proxies decode dot segments and %2F.
    if value in ("", ".", "..") or not value.isprintable() or "/" in value or "\\" in value:
        handle = ", or a handle" if name == "account_id" else ""
        raise InvalidArgumentError(
            f"{name} must be an identifier as the service returned it{handle}, not {value[:64]!r}"
        )
    return quote(value, safe="")


def _free_text(name: str, value: object) -> str:
    """Quote text that may contain slashes, which stay as they are: some proxies do not pass `%2F`.

    The slashes of an origin are quoted: proxies merge two slashes in a row.
    """
    scheme, separator, host = check_text(name, value).partition("://")
    if separator:
        if "/" in host:
            raise InvalidArgumentError(
                f"{name} must be an origin without a path, such as https://api.example, not {value!r:.80}"
            )
        return _quoted(name, scheme) + quote(separator, safe="") + _quoted(name, host)
    return "/".join(_quoted(name, part) for part in check_text(name, value).split("/"))


def refusal_of(request: PreparedRequest, reply: RawResponse, now: float) -> errors.AgentPayError:
    if reply.status_code >= 400:
        return error_of(request.endpoint, reply, now)
    return errors.ResponseValidationError(
        f"the response to {request.endpoint.name} ({reply.status_code}) is not a stream. Check that base_url "
        "is the address of the service",
        status_code=reply.status_code,
        request_id=reply.request_id,
    )


def _query_text(name: str, value: object) -> str:
    if isinstance(value, datetime):
        return timestamp(name, value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, str):
        return check_text(name, value)
    raise InvalidArgumentError(
        f"{name} must be a string, an integer, a Decimal, a boolean or a datetime, not {type(value).__name__}"
    )


def etag_of(reply: RawResponse) -> str | None:
    """Return the version in a response, for `if_match`; None without one that can be sent back."""
    etag = reply.headers.get("etag")
    return etag if etag and is_header_value(etag) else None


def read(request: PreparedRequest, reply: RawResponse, *, now: float) -> Any:  # noqa: ANN401 - the endpoint's own model
    """Return the endpoint's model, or the exception to raise.

    `now` is in seconds since the epoch, to interpret a date in `Retry-After`.
    """
    endpoint, status = request.endpoint, reply.status_code
    if not 200 <= status < 300:
        if status >= 400:
            return error_of(endpoint, reply, now)
        problem = f"the status {status} is not one of this operation"
    elif endpoint.responses is ANY_SUCCESS:
        return UNSET
    else:
        # Any success counts: the money has moved, and a proxy may change the status.
        model = endpoint.responses.get(status, UNSET)
        if model is UNSET:
            model = next(iter(endpoint.responses.values()))
        if model is None:
            return None
        try:
            answer = codec.structure(json_text.parse_json(reply.content), model)
            return _mismatch(request, reply, answer) or with_response(answer, reply)
        except (json_text.InvalidJsonError, codec.InvalidValueError) as error:
            problem = f"the body {error}" if isinstance(error, json_text.InvalidJsonError) else str(error)
    return errors.ResponseValidationError(
        f"the response to {endpoint.name} ({status}) is not what the contract says: "
        f"{problem[:MESSAGE_MAX_CHARACTERS]}. Check that base_url is the address of the service",
        status_code=status,
        request_id=reply.request_id,
        outcome="unknown",  # It may report success.
        **_identifiers(reply.content),
    )


def _identifiers(content: bytes) -> dict[str, str]:
    """Return what a body names that is not readable otherwise, so that it can be looked up."""
    try:
        value = json_text.parse_json(content)
    except json_text.InvalidJsonError:
        return {}
    found = {name: value.get(name) if isinstance(value, dict) else None for name in _IDENTIFIERS}
    return {
        name: text for name, text in found.items() if isinstance(text, str) and _IDENTIFIER.fullmatch(text)
    }


_IDENTIFIERS: Final = ("transfer_id", "session_id")
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z_-]{1,128}", re.ASCII)


def _mismatch(
    request: PreparedRequest, reply: RawResponse, answer: object
) -> errors.AnswerMismatchError | None:
    """Return the error for a response to another request: one that names another idempotency key."""
    # Of most models without the field: the error of a missing one names similar ones, which takes long.
    told = answer.idempotency_key if hasattr(type(answer), "idempotency_key") else None  # type: ignore[attr-defined]
    asked = request.idempotency_key
    if asked is None or told is None or asked == told:
        return None
    return errors.AnswerMismatchError(
        operation=request.endpoint.name,
        difference=f"idempotency_key is {_brief(told)}, not {_brief(asked)}",
        may_have_been_processed=not request.endpoint.is_read,
        status_code=reply.status_code,
        request_id=reply.request_id,
    )


def _brief(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def error_of(endpoint: Endpoint[Any], reply: RawResponse, now: float) -> errors.APIError:
    """Arguments are as for `read`."""
    status = reply.status_code
    sent = _error_body(status, reply.content)
    body = sent and _printable(sent)
    request_id = (body and body.request_id) or reply.request_id
    retry_after = _retry_after(reply.headers.get("retry-after"), now)
    kind = errors.kind_of(status, None if body is None else body.error)
    if _is_not_offered(endpoint, status, body):
        return errors.NotSupportedError(
            f"{endpoint.name} is an extension, and this service has no {endpoint.operation}",
            status_code=status,
            code=None if body is None else cast("choices.ErrorCode", body.error),
            request_id=request_id,
            body=sent,
        )
    if body is None:
        message = "the response has no error body as the service would send; a proxy may have sent it"
        return kind(message, status_code=status, request_id=request_id, retry_after=retry_after)
    session_id = None if body.session_id is UNSET else body.session_id
    is_of_session = body.session_id is not UNSET
    return kind(
        body.message[:MESSAGE_MAX_CHARACTERS],
        status_code=status,
        code=cast("choices.ErrorCode", body.error),
        request_id=request_id,
        transfer_id=body.transfer_id,
        transfer_status=None if is_of_session else body.status,
        session_id=session_id,
        session_status=body.status if is_of_session else None,
        charge_id=body.charge_id,
        details=body.details or (),
        retry_after=retry_after,
        body=sent,
        decided_at=_timestamp(reply.headers.get(IDEMPOTENCY_REPLAYED.name.lower())),
    )


def _timestamp(header: str | None) -> datetime | None:
    try:
        return None if header is None else parse_timestamp(header)
    except ValueError:
        return None


def _is_not_offered(endpoint: Endpoint[Any], status: int, body: ErrorBody | None) -> bool:
    """Return whether the service lacks the endpoint, rather than the object."""
    if status != 404 or not endpoint.is_extension or endpoint.responses is ANY_SUCCESS:
        return False
    # If the request has an identifier, a 404 from the service is about that.
    return body is None or ErrorCode.NOT_FOUND not in endpoint.every_error


def _error_body(status: int, content: bytes) -> ErrorBody | None:
    try:
        value = json_text.parse_json(content)
    except json_text.InvalidJsonError:
        return None
    try:
        return codec.structure(value, ErrorBody)
    except codec.InvalidValueError as error:
        faults = {re.split(r"[.[]", fault.field)[0] for fault in error.faults}
    if not isinstance(value, dict):
        return None
    # The contract shows the rest of a body only for a 402. Other codes need one: a proxy may respond with an
    # `error` such as `not_found`.
    code = ErrorCode.of(status, value.get("error"))
    if code is None or (code.mark != "contract" and not faults <= _EXPLANATIONS):
        return None
    # A chain_unavailable without an identifier would mean that nothing was done.
    if status == 503 and not faults.isdisjoint(("transfer_id", "session_id")):
        return None
    valid = {name: item for name, item in value.items() if name not in faults}
    return codec.structure({"message": code.meaning, **valid}, ErrorBody)


_EXPLANATIONS: Final = frozenset(("refusal", "price_usdc", "max_amount_usdc"))
"""Fields that only explain an error: without them it says the same."""


def _printable(body: ErrorBody) -> ErrorBody:
    # The service's text is printed on terminals, which interpret control characters.
    details = body.details and tuple(
        FieldError(field=printable(fault.field), message=printable(fault.message)) for fault in body.details
    )
    texts: dict[str, Any] = {
        name: printable(value) for name in _TEXTS if isinstance(value := getattr(body, name), str)
    }
    return attrs.evolve(body, details=details, **texts)


_TEXTS: Final = tuple(field.name for field in attrs.fields(ErrorBody) if field.name != "details")


def _retry_after(value: str | None, now: float) -> float | None:
    """A number or an HTTP date (RFC 9110, 10.2.3)."""
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
