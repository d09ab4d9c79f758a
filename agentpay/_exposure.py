"""Whether an API key can be read on its way: over plain http, to a host that is not this machine."""

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
    """Whether requests to this address can be read on the way."""
    parts = urlsplit(base_url)
    host = (parts.hostname or "").removesuffix(".")
    if parts.scheme != "http" or host == "localhost" or host.endswith((".localhost", ".invalid")):
        # No name under .invalid leads anywhere (RFC 6761): a server in process has one.
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


def warn(base_url: str) -> None:
    """Warn that the key can be read, as of the line outside this package that made the call."""
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
