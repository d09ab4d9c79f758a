"""Detects an API key that would be readable in transit: over plain http, to another machine or a proxy."""

import sys
import warnings
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agentpay.errors import InsecureConnectionWarning

_PACKAGES: Final = tuple(
    str(Path(__file__).parents[1].with_name(name)) for name in ("agentpay", "agentpay_server")
)


def is_local(base_url: str) -> bool:
    """Return whether the address, as it is written, is of this machine. Then no proxy may get the key."""
    host = (urlsplit(base_url).hostname or "").removesuffix(".")
    if host == "localhost" or host.endswith((".localhost", ".invalid")):
        # Names under .invalid never resolve (RFC 6761); an in-process server uses one.
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_exposed(base_url: str, *, is_proxied: bool = False) -> bool:
    """Return whether others can read what is sent. `is_proxied` says that the caller's client has a proxy."""
    return urlsplit(base_url).scheme == "http" and (is_proxied or not is_local(base_url))


def warn(base_url: str) -> None:
    """Name the caller's line outside this package."""
    proxy = " through a proxy" if is_local(base_url) else ""
    warnings.warn(
        f"the API key is sent to {urlsplit(base_url).hostname} over plain http{proxy}, where others can read "
        "it: use an https base_url, with TLS in front of the server",
        InsecureConnectionWarning,
        stacklevel=_callers_level(),
    )


def _callers_level() -> int:
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - 3.12 has `skip_file_prefixes` instead
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        level, frame = level + 1, frame.f_back
    return level
