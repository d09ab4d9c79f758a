"""Which network addresses an event may be posted to where money is real: public ones alone (D46).

What a name resolves to is judged, at the moment of connecting, not the name: a name that resolves to a public
address now and to a private one later gains nothing. Addresses that carry another address inside (mapped,
translated, tunnelled) are judged by that one too.
"""

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_TRANSLATED: Final = (
    ipaddress.IPv6Network("64:ff9b::/96"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
)
_NOT_PUBLIC: Final = (
    ipaddress.IPv4Network("192.0.0.0/24"),
    ipaddress.IPv4Network("192.88.99.0/24"),
    ipaddress.IPv6Network("::/96"),
    ipaddress.IPv6Network("100::/64"),
    ipaddress.IPv6Network("2001::/23"),
    ipaddress.IPv6Network("3fff::/20"),
    ipaddress.IPv6Network("5f00::/16"),
    ipaddress.IPv6Network("fec0::/10"),
)


def is_https(url: str) -> bool:
    """Tell whether a webhook's URL, whose form was checked, is one for where money is real."""
    return url.lower().startswith("https:")


def is_public(text: str) -> bool:
    """Tell whether `text` is an address of the public internet, and carries no other kind inside."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(_is_public(inner) for inner in _with_inner(address))


def _is_public(address: Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address.version == network.version and address in network for network in _NOT_PUBLIC)
    )


def _with_inner(address: Address) -> list[Address]:
    """Return the addresses that a packet to `address` may end up at."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    if address.teredo is not None:
        return [address, *address.teredo]
    if any(address in network for network in _TRANSLATED):
        # The well-known prefix is not "global" to Python, yet leads to the IPv4 internet: refused altogether.
        return [ipaddress.IPv4Address("0.0.0.0")]  # noqa: S104 - an address that is never public
    return [address]
