"""Webhook deliveries: signing, verifying and parsing.

A receiver needs only `unwrap`: it takes the raw body and the headers, and returns the event or raises one of
two errors, `WebhookSignatureError` and `WebhookPayloadError`, whatever the input is. Nothing here does I/O or
depends on an HTTP library; `agentpay.integrations` adds routes. The codec is imported by the first `unwrap`,
so that signing and verifying stay cheap.
"""

import hmac
import string
from binascii import unhexlify
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NoReturn, Protocol

from agentpay._calls.secret_text import SecretText
from agentpay._version import __version__
from agentpay.contract import events
from agentpay.contract.choices import EventType
from agentpay.contract.events import *  # noqa: F403 - its classes are documented and imported from here
from agentpay.contract.events import AnyEvent, Event
from agentpay.contract.signature_headers import NEXT_SIGNATURE_HEADER, SIGNATURE_HEADER
from agentpay.errors import ConfigurationError, WebhookError, WebhookPayloadError, WebhookSignatureError

__all__ = [
    "NEXT_SIGNATURE_HEADER",
    "RETRY_SCHEDULE",
    "SIGNATURE_HEADER",
    "EventType",
    "Headers",
    "Secret",
    "WebhookError",
    "WebhookPayloadError",
    "WebhookSecrets",
    "WebhookSignatureError",
    "check_tolerance",
    "preload",
    "sign",
    "unwrap",
    "verify",
]
__all__ += events.__all__

RETRY_SCHEDULE: Final = timedelta(hours=2, minutes=35, seconds=30)
"""Time from a delivery's first attempt to its last: the sum of 30 s, 5 min, 30 min and 2 h."""

_AROUND: Final = "'\"`\u2018\u2019\u201c\u201d" + string.whitespace
"""Not part of a secret that was copied with what surrounds it."""

_HEADERS: Final = {name.lower(): name for name in (SIGNATURE_HEADER, NEXT_SIGNATURE_HEADER)}
_SPELLINGS: Final = {SIGNATURE_HEADER: SIGNATURE_HEADER, **_HEADERS}
_NAME_LENGTHS: Final = frozenset(len(prefix) + len(name) for name in _HEADERS for prefix in ("", "HTTP_"))


class _HasItems(Protocol):
    """Headers that are not a `Mapping`: those of Werkzeug, `http.server` and `email`."""

    def items(self) -> Iterable[tuple[Any, Any]]: ...


Headers = Mapping[str, Any] | Mapping[bytes, Any] | _HasItems | Iterable[tuple[str | bytes, Any]]
"""Headers of any framework: a mapping, or pairs; names in any case, or in WSGI form (`HTTP_X_…`)."""


class WebhookSecrets:
    """The secrets of a webhook, hidden from `repr`; several during a rotation.

    Create it once if you handle many deliveries; every function here accepts it instead of the plain secret.

    Args:
        secret: the `secret` from registering the webhook, as text, bytes or a `SecretStr` of pydantic; or a
            list of secrets.
    """

    __slots__ = ("_fault", "_keys")

    def __init__(self, secret: "Secret") -> None:
        # Nothing is raised here, because the traceback would contain the argument.
        self._fault: str | None = None
        if isinstance(secret, str):
            self._keys: tuple[bytes, ...] = (self._key(secret),)
        elif isinstance(secret, bytes):
            self._keys = (self._key(secret),)
        elif isinstance(secret, list | tuple) and secret:
            self._keys = tuple(self._key(item) for item in secret)
        elif hasattr(secret, "get_secret_value"):
            self._keys = (self._key(secret),)
        else:
            self._keys, self._fault = (), "no webhook secret: pass the one that webhooks.create returned"

    def _key(self, secret: object) -> bytes:
        # Text first: looking for a missing attribute takes longer than all the rest.
        if not isinstance(secret, str) and (hidden := getattr(secret, "get_secret_value", None)) is not None:
            secret = hidden()
        try:
            text = secret.decode("utf-8") if isinstance(secret, bytes) else secret
            if isinstance(text, str) and text:
                key = text.encode("utf-8")
                if text == text.strip(_AROUND) and text.isprintable():
                    return key
                self._fault = (
                    "a webhook secret has quotes or white space around it, or invisible characters in it: "
                    "strip the line end, quotes and byte order mark"
                )
                return b""
        except UnicodeError:
            pass
        self._fault = (
            "a webhook secret is empty or not text: pass the one that webhooks.create returned, and check "
            "where it is stored"
        )
        return b""

    def check(self) -> tuple[bytes, ...]:
        """Return the keys.

        Raises:
            ConfigurationError: no secret, or an invalid one. An empty secret never verifies anything.
        """
        if self._fault is not None:
            raise ConfigurationError(self._fault)
        return self._keys

    def authenticate(self, payload: bytes | str, signature: "str | bytes | Headers | None") -> bytes:
        """Return the bytes of `payload` if it is signed by the service; raises like `verify`."""
        if self._fault is not None:
            self.check()
        body = payload if type(payload) is bytes else _raw(payload)
        offered = _offered(signature)
        if not _matches(body, offered, self._keys):
            raise WebhookSignatureError(_advice(offered))
        return body

    def __repr__(self) -> str:
        return "<hidden>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("webhook secrets cannot be pickled: create them again where they are needed")


Secret = str | bytes | SecretText | Sequence[str | bytes | SecretText] | WebhookSecrets
"""The secret of a webhook, as text, bytes or a `SecretStr` of pydantic; a list during a rotation, when either
secret may have signed."""


def _hidden(secret: Secret) -> WebhookSecrets:
    return secret if isinstance(secret, WebhookSecrets) else WebhookSecrets(secret)


def sign(payload: bytes, secret: str | bytes | SecretText | WebhookSecrets) -> str:
    """Return the signature of `payload`: 64 hex digits.

    Args:
        payload: the raw body.
        secret: the secret; only one.

    Raises:
        ConfigurationError: no secret.
        TypeError: `payload` is not bytes.
        ValueError: several secrets.
    """
    secret = _hidden(secret)
    if len(secret.check()) != 1:
        raise ValueError("a signature is made with one secret: pass one")
    return hmac.digest(secret.check()[0], _raw(payload), "sha256").hex()


def verify(payload: bytes | str, signature: str | bytes | Headers | None, secret: Secret) -> None:
    """Check that `payload` is signed by the service; raise if it is not.

    During a rotation the service signs with both secrets, each in its own header. Both headers are checked,
    so a receiver with the old secret, the new one or both succeeds. Comparison takes constant
    time.

    Args:
        payload: the raw body, as received. Text is encoded as UTF-8, for hosts that provide no bytes.
        signature: the headers of the request, or the value of one signature header.
        secret: the webhook's secret, or a list of valid ones.

    Raises:
        WebhookSignatureError: the signature is missing, malformed, ambiguous or wrong.
        ConfigurationError: no secret, or an empty one.
        TypeError: `payload` or `signature` has a wrong type, such as parsed JSON.
    """
    secret = _hidden(secret)
    secret.authenticate(payload, signature)


def signed_headers(
    body: bytes,
    *,
    event_id: str,
    attempt: int,
    secret: WebhookSecrets,
    next_secret: WebhookSecrets | None = None,
) -> dict[str, str]:
    """Return the headers of a delivery. `attempt` counts from 1; `next_secret` signs a second header."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"agentpay-server/{__version__}",
        "X-Service-Event-Id": event_id,
        "X-Service-Delivery-Attempt": str(attempt),
        SIGNATURE_HEADER: sign(body, secret),
    }
    if next_secret is not None:
        headers[NEXT_SIGNATURE_HEADER] = sign(body, next_secret)
    return headers


def unwrap(
    payload: bytes | str,
    headers: Headers | None,
    secret: Secret,
    *,
    tolerance: timedelta | float | None = None,
    now: datetime | None = None,
) -> AnyEvent:
    """Verify the signature of a delivery and return its event.

    The event's class depends on its type, for `match event: case TransferSettled(data=data)`; with
    `assert_never(event)` as the last case, type checkers report missing classes. An event of a type that this
    version does not know is an `UnknownEvent` with its raw data. Delivery is at least once: de-duplicate by
    `event.id`.

    Args:
        payload: the raw body, as received. Text is encoded as UTF-8, for hosts that provide no bytes.
        headers: the headers of the request, as a mapping or pairs. During a rotation two of them have
            signatures.
        secret: the webhook's secret, or a list of valid ones.
        tolerance: maximum difference between `created_at` and now, as a `timedelta` or in seconds, at least
            the 2 h 35 min 30 s over which the service retries. Allow some minutes more, because every attempt
            may take 10 s. None, the default, means no limit. An event that is replayed keeps its
            `created_at`, so a tolerance refuses it.
        now: the current time, with a UTC offset; by default from the system clock.

    Raises:
        WebhookSignatureError: the signature is missing, malformed, ambiguous or wrong, or `created_at` is out
            of tolerance.
        WebhookPayloadError: it is signed, but is not a valid event.
        ConfigurationError: no secret, or an empty one.
        TypeError: `payload` or `headers` has a wrong type, such as the value of one header.
        ValueError: `tolerance` is shorter than the retries take, or `now` has no UTC offset.
    """
    # Wrapped at once, so that no traceback with locals shows it.
    secret = _hidden(secret)
    if isinstance(headers, (str, bytes)):
        raise TypeError(
            "headers are all those of the request, a mapping of names to values or pairs of them: pass your "
            "framework's headers, or check the value of one with verify"
        )
    seconds = None if tolerance is None else check_tolerance(tolerance)
    event = _reader()(secret.authenticate(payload, headers))
    if seconds is not None:
        _check_age(event, seconds, now)
    return event


@cache
def _reader() -> Callable[[bytes], AnyEvent]:
    from agentpay._calls.deliveries import read_event  # noqa: PLC0415 - it brings cattrs, see the top

    return read_event


def preload() -> None:
    """Import the codec now, so that the first delivery does not wait for it."""
    _reader()


def _raw(payload: object) -> bytes:
    # A copy: the verified bytes must be the parsed bytes, even if the caller changes its buffer.
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        try:
            return payload.encode("utf-8")
        except UnicodeEncodeError:
            raise WebhookSignatureError(
                "the payload is text that cannot be a decoded UTF-8 body: pass the raw bytes of the request"
            ) from None
    raise TypeError(
        f"the payload must be the raw body of the request, in bytes, not {type(payload).__name__}: parsed "
        "JSON no longer has the bytes that were signed"
    )


def _matches(body: bytes, offered: list[bytes], keys: tuple[bytes, ...]) -> bool:
    # Every pair is compared, so that the duration does not reveal which one matches. A separate function, so
    # that no traceback with locals shows a key or the expected digest.
    matched = False
    for key in keys:
        # On current versions of OpenSSL faster than `hmac.digest`.
        expected = hmac.new(key, body, "sha256").digest()
        for digest in offered:
            matched |= hmac.compare_digest(expected, digest)
    return matched


def _offered(source: str | bytes | Headers | None) -> list[bytes]:
    """Return the digests of a delivery, one per signature header; malformed ones are empty."""
    if isinstance(source, str) or isinstance(source, bytes):  # noqa: SIM101 - half the time of a union
        return [_digest(source)]
    if source is None:
        raise WebhookSignatureError(_MISSING)
    items = getattr(source, "items", None)
    pairs: Any = items() if callable(items) else source
    found: dict[str, bytes] = {}
    try:
        for name, value in pairs:
            # The length rules out most names quickly.
            if len(name) in _NAME_LENGTHS and (header := _SPELLINGS.get(name) or _header(name)):
                if header in found or isinstance(value, list):
                    _add(found, header, value)
                else:
                    found[header] = _digest(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"expected a signature, a mapping of headers or pairs of them, not {type(source).__name__}"
        ) from None
    if not found:
        raise WebhookSignatureError(_MISSING)
    return list(found.values())


_MISSING: Final = (
    f"no {SIGNATURE_HEADER} header: reject the request if it is not from the service, and check that no "
    "proxy drops it"
)


def _header(name: object) -> str | None:
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    elif not isinstance(name, str):
        return None
    return _HEADERS.get(name.lower().replace("_", "-").removeprefix("http-"))


def _add(found: dict[str, bytes], header: str, value: object) -> None:
    if isinstance(value, list):
        if not value:
            return
        if len(value) == 1:
            value = value[0]
    if header in found or isinstance(value, list):
        raise WebhookSignatureError(
            f"more than one {header}: the service sends one, so a proxy may have changed the request"
        )
    found[header] = _digest(value)


def _digest(value: Any) -> bytes:  # noqa: ANN401 - whatever stands for a header in a framework
    """Return the 32 bytes for 64 hex digits; empty if malformed, which equals no digest."""
    try:
        return unhexlify(value.strip())
    except (AttributeError, TypeError, ValueError):
        return b""


def _advice(offered: list[bytes]) -> str:
    if not any(len(digest) == 32 for digest in offered):
        return f"{SIGNATURE_HEADER} is not 64 hex digits: reject the request if it is not from the service"
    return (
        "the signature does not match this payload and secret. If the request is from the service: pass the "
        "raw body, not JSON serialized again, and this webhook's secret, or a list during a rotation"
    )


def check_tolerance(tolerance: timedelta | float) -> float:
    """Return a replay tolerance in seconds.

    Raises:
        TypeError: neither a `timedelta` nor a number.
        ValueError: shorter than the service retries, so that genuine retries would be refused.
    """
    if isinstance(tolerance, timedelta):
        seconds = tolerance.total_seconds()
    else:
        try:
            seconds = float(tolerance)
        except (TypeError, ValueError):
            raise TypeError(f"tolerance is a timedelta or seconds, not {type(tolerance).__name__}") from None
    # Not `<`, because that accepts NaN.
    if not seconds >= RETRY_SCHEDULE.total_seconds():
        raise ValueError(
            "tolerance must be at least 2 h 35 min 30 s: the service retries for that long, and a shorter "
            "one refuses genuine retries"
        )
    return seconds


def _check_age(event: Event, tolerance: float, now: datetime | None) -> None:
    moment = datetime.now(UTC) if now is None else now
    if moment.tzinfo is None:
        raise ValueError("now must have a UTC offset, such as datetime.now(UTC) has")
    age = (moment - event.created_at).total_seconds()
    if abs(age) > tolerance:
        raise WebhookSignatureError(
            f"the event was created {abs(age):.0f} s {'ago' if age > 0 else 'ahead'}, beyond the tolerance "
            f"of {tolerance:.0f} s: check the clock, and whether an old delivery is being replayed"
        )
