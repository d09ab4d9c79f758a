"""Parses an ASGI request: endpoint, principal, body and query as models (interface K1, E7, R9 to R11).

All servers of a process share the patterns of paths.
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, Final, TypeGuard
from urllib.parse import parse_qsl, quote

import attrs
from starlette.types import Receive

from agentpay.contract import codec, json_text
from agentpay.contract.accounts import METADATA_MAX_BYTES, CreateAccount
from agentpay.contract.codec import InvalidValueError
from agentpay.contract.endpoints import EXTENSIONS, Endpoint
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.identifiers import ACCOUNT
from agentpay.contract.json_text import InvalidJsonError
from agentpay.contract.requests import BODY_MAX_BYTES
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS
from agentpay_server.feature import Core
from agentpay_server.ledger.accounts import named_accounts
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import account_with_key
from agentpay_server.operators import feature as operators
from agentpay_server.platform.errors import Problem, invalid, unauthorized
from agentpay_server.platform.principals import Principal

DROP: Final = "agentpay.drop"
"""ASGI scope key, set by a port: closes the connection without a response."""

REFUSED: Final = "agentpay.refused"
"""ASGI scope key, set by a port: the problem with which the application must refuse a request."""

SHARE: Final = "agentpay.share"
"""ASGI scope key, set by a port: how many requests of one operator may be worked on."""

WHOLE: Final = "agentpay.whole"
"""ASGI scope key, set by a port and by callers in process: a function that says whether the body is complete.

If it is, nothing else runs while it is read: what was read before is as good as read now."""

_MAX_KEY_CHARACTERS: Final = 128
_LENGTH_MAX_DIGITS: Final = 18


class DroppedError(Exception):
    """Close the connection without a response."""


async def authenticated(headers: Mapping[str, str], core: Core, request_id: str) -> Principal:
    """Raise `unauthorized` for a missing, too long, malformed, unknown or revoked key."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    principal = None
    if scheme.lower() == "bearer" and len(key) <= _MAX_KEY_CHARACTERS:
        principal = await core.of(operators.FEATURE).keys.authenticate(key.strip(" "), request_id)
    if principal is None:
        raise unauthorized()
    return principal


class DisconnectedError(Exception):
    """The caller disconnected before the request was complete."""


async def read_body(headers: Mapping[str, str], receive: Receive, *, timeout_seconds: float | None) -> bytes:
    """Return the complete body; `DisconnectedError` if it is incomplete."""
    length = headers.get("content-length", "").lstrip("0")
    # The number of digits first: `int` raises on thousands of them.
    if length.isdecimal() and (len(length) > _LENGTH_MAX_DIGITS or int(length) > BODY_MAX_BYTES):
        raise _too_large()
    chunks, size, is_more = [], 0, True
    try:
        async with nullcontext() if timeout_seconds is None else asyncio.timeout(timeout_seconds):
            while is_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise DisconnectedError
                chunk, is_more = message.get("body", b""), message.get("more_body", False)
                size += len(chunk)
                if size > BODY_MAX_BYTES:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError:
        raise Problem(
            ErrorCode.REQUEST_TIMEOUT,
            f"The body did not arrive within {timeout_seconds:g} s.",
        ) from None
    return b"".join(chunks)


def _too_large() -> Problem:
    return Problem(ErrorCode.PAYLOAD_TOO_LARGE, f"The body is larger than {BODY_MAX_BYTES} bytes.")


def require_json(headers: Mapping[str, str]) -> None:
    """Refuse a media type other than JSON in UTF-8. A missing one is accepted."""
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "The body must not be compressed: send no Content-Encoding.",
            says_what_to_do=True,
        )
    content_type = headers.get("content-type")
    if content_type in (None, "application/json"):
        return
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [p.removeprefix("charset=").strip('"') for p in parameters if p.startswith("charset=")]
    if media_type != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise Problem(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "The body must be JSON: send Content-Type: application/json.",
            says_what_to_do=True,
        )


def structured_body(body: bytes, model: type) -> object:
    """`invalid_request` names every fault."""
    try:
        value = json_text.parse_request_json(body)
    except InvalidJsonError as error:
        raise invalid(FieldError(field="body", message=str(error))) from None
    # Only escapes can yield NUL and lone surrogates: unescaped ones are invalid JSON or UTF-8.
    faults = codec.text_faults(value) if b"\\u" in body else ()
    if model is CreateAccount and isinstance(value, dict):
        faults = (*faults, *_oversize_metadata(body))
    request: object
    try:
        request = codec.structure(value, model)
    except InvalidValueError as error:
        raise invalid(*error.faults, *faults) from None
    if faults:
        raise invalid(*faults)
    return request


def structured_query(query_string: bytes, model: type) -> object:
    """`invalid_request` names every fault. Unknown parameters are ignored."""
    known = attrs.fields_dict(model)
    values: dict[str, Any] = {}
    faults = []
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, encoding="utf-8", errors="strict"
        )
    except ValueError:
        raise invalid(FieldError(field="query", message="must be percent-encoded UTF-8")) from None
    for name, value in pairs:
        if name not in known:
            continue
        if name in values:
            faults.append(FieldError(field=name, message="must not be repeated"))
        if "\0" in value:
            faults.append(FieldError(field=name, message="must not contain NUL"))
        values[name] = value
    query: object
    try:
        query = codec.structure(values, model)
    except InvalidValueError as error:
        raise invalid(*error.faults, *faults) from None
    if faults:
        raise invalid(*faults)
    return query


def _oversize_metadata(body: bytes) -> tuple[FieldError, ...]:
    """Check the size of `metadata` as sent, including white space and escapes (interface A7)."""
    if len(body) <= METADATA_MAX_BYTES:
        return ()
    text = body.decode("utf-8")
    decoder = json.JSONDecoder()
    position = text.index("{") + 1
    while True:
        position = _skip(text, position, " \t\n\r,")
        if text[position] == "}":
            return ()
        name, position = decoder.raw_decode(text, position)
        start = _skip(text, position, " \t\n\r:")
        _, position = decoder.raw_decode(text, start)
        if name == "metadata" and len(text[start:position].encode()) > METADATA_MAX_BYTES:
            message = f"must be at most {METADATA_MAX_BYTES} bytes of JSON"
            return (FieldError(field="metadata", message=message),)


def _skip(text: str, position: int, characters: str) -> int:
    while text[position] in characters:
        position += 1
    return position


def no_such_path() -> Problem:
    return Problem(
        ErrorCode.NOT_FOUND,
        "Unknown path. GET /openapi.json and GET /openapi-extensions.json list all paths.",
        says_what_to_do=True,
    )


def _methods_of(endpoints: Iterable[Endpoint[Any]]) -> Mapping[str, Mapping[str, Endpoint[Any]]]:
    by_path: dict[str, dict[str, Endpoint[Any]]] = defaultdict(dict)
    for endpoint in endpoints:
        by_path[endpoint.path][endpoint.method] = endpoint
    return by_path


METHODS_OF: Final = _methods_of(BOUND_ENDPOINTS)

# Most paths have no parameters, and need no matching.
_FIXED: Final = frozenset(path for path in METHODS_OF if "{" not in path)


def matched(path: str) -> tuple[str, dict[str, str]]:
    """Return the template that a path matches, and its parameters; raise `not_found` without one."""
    if path in _FIXED:
        return path, {}
    for pattern, template in _patterns().get(_family(path), ()):
        if match := pattern.fullmatch(path):
            return template, match.groupdict()
    raise no_such_path()


@cache
def _patterns() -> Mapping[str, tuple[tuple[re.Pattern[str], str], ...]]:
    """By path family, in the order of the tables: the first that matches applies."""
    families: dict[str, list[tuple[re.Pattern[str], str]]] = defaultdict(list)
    for path, methods in METHODS_OF.items():
        if "{" in path:
            families[_family(path)].append((_pattern(path, methods), path))
    return {family: tuple(patterns) for family, patterns in families.items()}


def _family(path: str) -> str:
    return path.removeprefix(EXTENSIONS)[1:].partition("/")[0]


def _pattern(path: str, methods: Mapping[str, Endpoint[Any]]) -> re.Pattern[str]:
    """A parameter matches one segment, but the last may match several."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
    if any(endpoint.takes_rest_of_path for endpoint in methods.values()):
        pattern = f"{pattern.removesuffix('[^/]+)')}.*)"
    return re.compile(pattern)


# --- Accounts by name

_NAMED_BY: Final = ("account_id", "account_ids", "from_")
"""The fields in which an operator's key may send the name or handle of an account (interface A11)."""


async def identified(
    context: Context,
    endpoint: Endpoint[Any],
    principal: Principal,
    given: Any,  # noqa: ANN401 - the parameters of a path, a body or a query
) -> Any:  # noqa: ANN401 - the same
    """Return what a request gave, with identifiers in place of names.

    Handlers see identifiers only, so that the name and the identifier of an account are one parameter of an
    idempotency key. Accounts are neither renamed nor deleted: a name that means one account means the same
    one later, or several, and is refused then, except under a key that one of them has paid with. So no retry
    pays from another account, or is refused after the payment. An identifier is never looked up as a name,
    and recipients are never named: they may be addresses.

    Raises:
        Problem: several accounts have a name; `not_found`, or `invalid_request` where that is not declared.
    """
    is_path = isinstance(given, dict)
    if principal.is_agent or not principal.is_known or (is_path and not given):
        return given
    key: str | None = None if is_path else getattr(given, "idempotency_key", None)
    changes: dict[str, object] = {}
    for field in _NAMED_BY if is_path else _fields(type(given)):  # type: ignore[arg-type]  # mypy/issues/11470
        value = given.get(field) if is_path else getattr(given, field)
        named = [text for text in (value if isinstance(value, tuple) else (value,)) if _is_name(text)]
        found: dict[object, str] = {}
        for name in named:
            accounts = await _accounts(context, principal.operator_id, name, key)
            if len(accounts) > 1:
                raise _ambiguous(endpoint, field, name, accounts)
            # A name that no account has stays: it is refused like an identifier that no account has.
            found[name] = accounts[0] if accounts else name
        if named:
            is_tuple = isinstance(value, tuple)
            changes[field] = tuple(found.get(text, text) for text in value) if is_tuple else found[value]
    if not changes:
        return given
    return {**given, **changes} if is_path else attrs.evolve(given, **changes)


@cache
def _fields(model: type) -> tuple[str, ...]:
    return tuple(name for name in _NAMED_BY if name in attrs.fields_dict(model))


def _is_name(given: object) -> TypeGuard[str]:
    return isinstance(given, str) and not given.startswith(ACCOUNT)


async def _accounts(context: Context, operator_id: str, name: str, key: str | None) -> list[str]:
    """Return the accounts that a name may mean, two at most."""
    name = name.strip()  # as at its creation
    found = await context.database.read(named_accounts, operator_id, name)
    if len(found) > 1 and key is not None:
        now_us = context.clock.now_us()
        payer = await context.database.read(account_with_key, operator_id, name, key, now_us)
        return found if payer is None else [payer]
    return found


def _ambiguous(endpoint: Endpoint[Any], field: str, name: str, accounts: list[str]) -> Problem:
    message = (
        f"Several accounts have the name or handle {quote(name)!r}, such as {' and '.join(accounts)}. "
        "Pass the account_id of one."
    )
    if ErrorCode.NOT_FOUND in endpoint.every_error:
        return Problem(ErrorCode.NOT_FOUND, message, says_what_to_do=True)
    return invalid(FieldError(field=field.removesuffix("_"), message=message))
