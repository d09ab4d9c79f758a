"""Detects an API key that would be readable in transit: over plain http, to another machine."""

import sys
import warnings
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agentpay.errors import InsecureConnectionWarning

_PACKAGES: Final = tuple(
    str(Path(__file__).parent.with_name(name)) for name in ("agentpay", "agentpay_server")
)


def is_exposed(base_url: str) -> bool:
    parts = urlsplit(base_url)
    host = (parts.hostname or "").removesuffix(".")
    if parts.scheme != "http" or host == "localhost" or host.endswith((".localhost", ".invalid")):
        # Names under .invalid never resolve (RFC 6761); an in-process server uses one.
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


def warn(base_url: str) -> None:
    """Name the caller's line outside this package."""
    warnings.warn(
        f"the API key is sent to {urlsplit(base_url).hostname} over plain http, where others can read it: "
        "use an https base_url, with TLS in front of the server",
        InsecureConnectionWarning,
        stacklevel=_callers_level(),
    )


def _callers_level() -> int:
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - 3.12 has `skip_file_prefixes` instead
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        level, frame = level + 1, frame.f_back
    return level
