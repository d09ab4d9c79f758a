"""The settings of a client: arguments, then environment variables, then defaults. All are checked here.

The API key is wrapped in an `ApiKey` at once, so that no `repr`, log line, pickle or traceback with locals
can show it.
"""

import logging
import math
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn, Protocol, cast
from urllib.parse import urlsplit

from attrs import evolve, field, frozen

from agentpay._calls.secret_text import SecretText
from agentpay.contract.headers import is_header_name, is_header_value
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.errors import ConfigurationError

DEFAULT_TIMEOUT: Final = 30.0
"""Seconds. More than the 20 s for which the service may hold a transfer until it is final."""

DEFAULT_MAX_RETRIES: Final = 2

logger: logging.Logger = logging.getLogger("agentpay")


class Timeout(Protocol):
    """A `Timeout` of httpx or httpx2: seconds for each kind of step; None means no limit."""

    @property
    def connect(self) -> float | None: ...

    @property
    def read(self) -> float | None: ...

    @property
    def write(self) -> float | None: ...

    @property
    def pool(self) -> float | None: ...


class Steps(NamedTuple):
    """Seconds for each kind of step of an exchange, where they differ; None means no limit."""

    connect: float | None
    read: float | None
    write: float | None
    pool: float | None


class Address(Protocol):
    """A URL of httpx, httpx2, pydantic or yarl; `str` returns the address."""

    @property
    def scheme(self) -> str: ...

    @property
    def host(self) -> str | None: ...


class ApiKey:
    """Only `reveal` shows the key."""

    __slots__ = ("_value",)

    def __init__(self, value: str | SecretText | None) -> None:
        if value is None:
            value = os.environ.get("AGENTPAY_API_KEY")
        elif not isinstance(value, str) and hasattr(value, "get_secret_value"):
            value = value.get_secret_value()
        self._value = value

    def reveal(self) -> str:
        return self._value if isinstance(self._value, str) else ""

    def check(self) -> None:
        """Refuse a missing key, or one that no header can hold: blanks, control or non-ASCII characters."""
        if not self._value:
            raise ConfigurationError("no API key: pass api_key, or set AGENTPAY_API_KEY")
        if not isinstance(self._value, str):
            raise ConfigurationError(
                f"api_key must be a string or a SecretStr, not {type(self._value).__name__}"
            )
        if not (self._value.isascii() and self._value.isprintable()) or " " in self._value:
            raise ConfigurationError(
                "the API key contains blanks or characters that no key has: copy it again, without line ends"
            )

    def __repr__(self) -> str:
        return "<hidden>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an API key cannot be pickled: create the client again where it is needed")


@frozen(kw_only=True)
class ClientSettings:
    """The checked settings of one client.

    `base_url` has no trailing slash. `timeout` is in seconds for one step of an exchange, or for each kind of
    step, `total_timeout` for a whole call; None means no limit. `app_info` is added to `User-Agent`.
    """

    api_key: ApiKey
    base_url: str
    timeout: float | Steps | None
    max_retries: int
    total_timeout: float | None = None
    default_headers: Mapping[str, str] = field(default=MappingProxyType({}), repr=False)
    app_info: str = ""

    def changed(
        self,
        *,
        api_key: ApiKey,
        timeout: float | Timeout | None | UnsetType,
        max_retries: int | UnsetType,
        total_timeout: float | None | UnsetType,
        default_headers: Mapping[str, str] | UnsetType,
    ) -> "ClientSettings":
        api_key.check()
        given: dict[str, Any] = {"api_key": api_key}
        if timeout is not UNSET:
            given["timeout"] = checked_timeout(timeout)
        if max_retries is not UNSET:
            given["max_retries"] = checked_max_retries(max_retries)
        if total_timeout is not UNSET:
            given["total_timeout"] = checked_seconds("total_timeout", total_timeout)
        if default_headers is not UNSET:
            given["default_headers"] = checked_headers("default_headers", default_headers)
        return evolve(self, **given)


def resolve(
    *,
    api_key: ApiKey,
    base_url: str | Address | None,
    timeout: float | Timeout | None,
    max_retries: int,
    total_timeout: float | None,
    default_headers: Mapping[str, str] | None,
    app_info: str | None,
) -> ClientSettings:
    api_key.check()
    _configure_logging(os.environ.get("AGENTPAY_LOG"))
    return ClientSettings(
        api_key=api_key,
        base_url=_checked_base_url(os.environ.get("AGENTPAY_BASE_URL") if base_url is None else base_url),
        timeout=checked_timeout(timeout),
        max_retries=checked_max_retries(max_retries),
        total_timeout=checked_seconds("total_timeout", total_timeout),
        default_headers=checked_headers("default_headers", default_headers or {}),
        app_info=_checked_app_info(app_info),
    )


def checked_seconds(setting: str, seconds: float | None) -> float | None:
    """Require a finite number above 0, or None."""
    if seconds is None:
        return None
    if type(seconds) not in (int, float):
        raise ConfigurationError(f"{setting} is a number of seconds or None, not {type(seconds).__name__}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigurationError(f"{setting} must be above 0 seconds; None means no limit")
    return float(seconds)


def checked_timeout(timeout: float | Timeout | None) -> float | Steps | None:
    if not _has_steps(timeout):
        return checked_seconds("timeout", cast("float | None", timeout))
    steps = Steps(*(checked_seconds(f"timeout.{name}", getattr(timeout, name)) for name in Steps._fields))
    return steps.read if len(set(steps)) == 1 else steps


def timeout_of(http_client: object) -> float | Timeout | None:
    """Return the timeout for a client that was given none: that of its HTTP client, if the caller set one."""
    own: Any = getattr(http_client, "timeout", None)
    # A client of httpx always has one: its default of 5 seconds is too short for a transfer.
    if not _has_steps(own) or own == type(own)(5.0):
        return DEFAULT_TIMEOUT
    return own  # type: ignore[no-any-return]


def _has_steps(timeout: object) -> bool:
    return all(hasattr(timeout, name) for name in Steps._fields)


_DECIDED: Final = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "if-match",
        "transfer-encoding",
    }
)
"""Header fields that the client sets: other values would break the exchange, or use another key."""


def checked_headers(setting: str, headers: object) -> Mapping[str, str]:
    if not isinstance(headers, Mapping):
        raise ConfigurationError(
            f"{setting} must be a mapping of names to strings, not {type(headers).__name__}"
        )
    for name, value in headers.items():
        if not is_header_name(name):
            raise ConfigurationError(f"{setting} has a name that is not valid for a header field")
        if name.lower() in _DECIDED:
            advice = ": pass api_key, or use with_options" if name.lower() == "authorization" else ""
            raise ConfigurationError(f"{setting} must not set {name}, which the client sets{advice}")
        # The value is not repeated: it may be a secret.
        if not is_header_value(value):
            raise ConfigurationError(
                f"{setting}[{name!r}] must be printable ASCII text without blanks at its ends"
            )
    return MappingProxyType(dict(headers))


def _checked_app_info(app_info: object) -> str:
    if app_info is None:
        return ""
    if not isinstance(app_info, str) or not app_info.strip() or not is_header_value(app_info.strip()):
        raise ConfigurationError(
            "app_info must be printable ASCII text that names your program, such as 'shop/1.2'"
        )
    return app_info.strip()


def checked_max_retries(max_retries: int) -> int:
    if type(max_retries) is not int or max_retries < 0:
        raise ConfigurationError("max_retries must be an integer from 0 up")
    return max_retries


def _checked_base_url(base_url: str | Address | None) -> str:
    if base_url is not None and not isinstance(base_url, str):
        if not (hasattr(base_url, "scheme") and hasattr(base_url, "host")):
            raise ConfigurationError(
                f"base_url must be a string or a URL object, not {type(base_url).__name__}"
            )
        base_url = str(base_url)
    if not base_url:
        raise ConfigurationError("no base URL: pass base_url, or set AGENTPAY_BASE_URL")
    invalid = ConfigurationError("base_url must be an address such as https://api.example.com")
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # raises if invalid
    except ValueError:
        raise invalid from None
    # A label that is too long for DNS would fail at the first call with an error of Python.
    labels = (parts.hostname or "").removesuffix(".").split(".")
    if (
        parts.scheme not in ("http", "https")
        or not all(0 < len(label) < 64 for label in labels)
        or not base_url.isprintable()
        or " " in base_url
    ):
        raise invalid
    if parts.query or parts.fragment or "@" in parts.netloc:
        # The address is not repeated in the message: user info is a secret.
        raise ConfigurationError("base_url must have no user info, query or fragment")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ConfigurationError("base_url must not end with /v1: the paths of the service begin with it")
    return base_url.rstrip("/")


def _configure_logging(level: str | None) -> None:
    if not level:
        return
    levels = {"debug": logging.DEBUG, "info": logging.INFO}
    if level.lower() not in levels:
        raise ConfigurationError("AGENTPAY_LOG must be debug or info")
    logger.setLevel(levels[level.lower()])
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
