"""The hosts that a port accepts, so that DNS rebinding cannot reach a local server (interface R19).

A browser sends the page's host name as `Host`, whatever address it resolves to. So a server on a loopback
address accepts only loopback names and explicitly allowed hosts.
"""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Self

from attrs import frozen

_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::[0-9]*)?", re.ASCII)
_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)
_NAME_MAX: Final = 253
_AUTHORITY_MAX: Final = _NAME_MAX + len(".:65535")
_LOOPBACK_6: Final = str(ipaddress.IPv6Address("::1"))


def host_of(authority: str) -> str | None:
    """Normalize case, a trailing dot and IPv6 notation; drop the port. None if malformed."""
    return None if len(authority) > _AUTHORITY_MAX else _host_of(authority)


@lru_cache(maxsize=256)
def _host_of(authority: str) -> str | None:
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None else _normalized(found[1])


def _normalized(host: str) -> str | None:
    if host.startswith("["):
        try:
            # URLs have no zone identifiers.
            return None if "%" in host else str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            return None
    name = host.lower().removesuffix(".")
    return name if len(name) <= _NAME_MAX and _NAME.fullmatch(name) else None


@frozen
class Hosts:
    """`allowed` are normalized."""

    allowed: frozenset[str]
    is_loopback: bool

    @classmethod
    def of(cls, address: str, allowed: Iterable[str] = ()) -> Self:
        """`allowed` may have brackets around IPv6 addresses; ValueError if one is no host."""
        return cls(frozenset(allowed_host(host) for host in allowed), is_loopback(address))

    def __contains__(self, host: str) -> bool:
        """Whether the port accepts a host, as returned by `host_of`."""
        if host in self.allowed:
            return True
        return _is_loopback_host(host) if self.is_loopback else not self.allowed


def allowed_host(text: str) -> str:
    """Normalize a host to allow; ValueError if it is no host, or has a port."""
    bare = text.strip()
    host = _normalized(f"[{bare}]" if ":" in bare and not bare.startswith("[") else bare)
    if host is None:
        raise ValueError(f"{text!r} is not a host; give a name or an IP address, without scheme and port")
    return host


def is_loopback(address: str) -> bool:
    bound = ipaddress.ip_address(address.partition("%")[0])
    mapped = bound.ipv4_mapped if isinstance(bound, ipaddress.IPv6Address) else None
    return (mapped or bound).is_loopback


@lru_cache(maxsize=256)
def _is_loopback_host(host: str) -> bool:
    if host in ("localhost", _LOOPBACK_6) or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False
