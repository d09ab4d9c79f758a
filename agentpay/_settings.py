"""What a client is made with: arguments, then environment variables, then defaults. All are checked here.

The API key lives in an `ApiKey` from the first line on, so that no `repr`, log line, pickle or traceback with
locals can show it. This module opens no connection and knows no HTTP library.
"""

import logging
import math
import os
from typing import Final, NoReturn
from urllib.parse import urlsplit

from attrs import frozen

from agentpay.contract.requests import UnsetType
from agentpay.errors import ConfigurationError

TimeoutOption = float | None | UnsetType
"""`timeout` of one call: seconds, None without limit, UNSET that of the client."""

RetriesOption = int | UnsetType
"""`max_retries` of one call: UNSET that of the client."""

DEFAULT_TIMEOUT: Final = 30.0
"""Seconds. Above the 20 s for which the service may hold a transfer until it is final (interface T6)."""

DEFAULT_MAX_RETRIES: Final = 2

logger: logging.Logger = logging.getLogger("agentpay")


class ApiKey:
    """An API key that shows itself to nobody but `reveal`."""

    __slots__ = ("_value",)

    def __init__(self, value: str | None) -> None:
        self._value = os.environ.get("AGENTPAY_API_KEY") if value is None else value

    def reveal(self) -> str:
        """Return the key."""
        return self._value or ""

    def check(self) -> None:
        """Refuse a key that is missing or cannot stand in a header.

        Raises:
            ConfigurationError: no key, or one with blanks, control or non-ASCII characters.
        """
        if not isinstance(self._value, str) or not self._value:
            raise ConfigurationError("no API key: pass api_key, or set AGENTPAY_API_KEY")
        if not (self._value.isascii() and self._value.isprintable()) or " " in self._value:
            raise ConfigurationError(
                "the API key holds blanks or characters that no key has: copy it again, without line ends"
            )

    def __repr__(self) -> str:
        return "<hidden>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an API key is not pickled: make the client anew where it is needed")


@frozen(kw_only=True)
class Settings:
    """Checked settings of one client.

    Attributes:
        api_key: the key, hidden.
        base_url: address of the service, without a trailing slash.
        timeout: seconds that one step of an exchange may take; None is without limit.
        max_retries: how often a request is sent again.
    """

    api_key: ApiKey
    base_url: str
    timeout: float | None
    max_retries: int


def resolve(*, api_key: ApiKey, base_url: str | None, timeout: float | None, max_retries: int) -> Settings:
    """Return the settings that arguments and environment make together.

    Raises:
        ConfigurationError: a setting is missing or cannot be meant; the message names it.
    """
    api_key.check()
    _configure_logging(os.environ.get("AGENTPAY_LOG"))
    return Settings(
        api_key=api_key,
        base_url=_checked_base_url(os.environ.get("AGENTPAY_BASE_URL") if base_url is None else base_url),
        timeout=checked_timeout(timeout),
        max_retries=checked_max_retries(max_retries),
    )


def checked_timeout(timeout: float | None) -> float | None:
    """Return `timeout`, in seconds.

    Raises:
        ConfigurationError: not a finite number above 0, nor None.
    """
    if timeout is None:
        return None
    if type(timeout) not in (int, float):
        raise ConfigurationError(f"timeout is a number of seconds or None, not {type(timeout).__name__}")
    if not (math.isfinite(timeout) and timeout > 0):
        raise ConfigurationError("timeout must be above 0 seconds; None is without limit")
    return float(timeout)


def checked_max_retries(max_retries: int) -> int:
    """Return `max_retries`.

    Raises:
        ConfigurationError: not an integer from 0 up.
    """
    if type(max_retries) is not int or max_retries < 0:
        raise ConfigurationError("max_retries must be an integer from 0 up")
    return max_retries


def _checked_base_url(base_url: str | None) -> str:
    if not base_url:
        raise ConfigurationError("no base URL: pass base_url, or set AGENTPAY_BASE_URL")
    invalid = ConfigurationError("base_url must be an address such as https://api.example.com")
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # raises for what is not a port
    except ValueError:
        raise invalid from None
    # A label that DNS cannot hold would be found out by the first call, with an error of Python's own.
    labels = (parts.hostname or "").removesuffix(".").split(".")
    if (
        parts.scheme not in ("http", "https")
        or not all(0 < len(label) < 64 for label in labels)
        or not base_url.isprintable()
        or " " in base_url
    ):
        raise invalid
    if parts.query or parts.fragment or "@" in parts.netloc:
        # Nothing of the address is repeated here: user info is a secret.
        raise ConfigurationError("base_url must have no user info, query or fragment")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ConfigurationError("base_url must not end with /v1: the paths of the service begin with it")
    return base_url.rstrip("/")


def _configure_logging(level: str | None) -> None:
    """Let the logger `agentpay` write to standard error when AGENTPAY_LOG asks for it."""
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
