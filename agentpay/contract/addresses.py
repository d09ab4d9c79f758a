"""The network addresses that third parties may name: only public ones, for webhooks (interface W4) and tools.

The address is checked when the connection is made, not when the name is given: a name may resolve to a public
address at first and to a private one later. An IPv4-mapped address is checked as its IPv4 address; translated
and tunnelled addresses are refused.

The ranges are those of the IANA registries of special-purpose addresses. They are listed here because the
tables of `ipaddress` differ between patch releases of Python. AS112 and AMT ranges are routed but included,
because no receiver has an address there; so is Azure's platform address.
"""

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_4: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # platform services of Azure
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle's cloud
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_NOT_PUBLIC_6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, AMT, AS112, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, whose relays lead to any IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""First 32 bits of the interface identifier of an ISATAP address; the last 32 are an IPv4 address."""


def is_https(url: str) -> bool:
    """Return whether a URL, whose form was checked, uses https."""
    return url.lower().startswith("https:")


def is_public(text: str) -> bool:
    """Return whether `text` is a public internet address with no address of another kind embedded in it."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if isinstance(address, ipaddress.IPv4Address):
        return _is_global(address) and not any(address in network for network in _NOT_PUBLIC_4)
    # Loopback, link-local, unique local and multicast addresses are outside of 2000::/3, and so are addresses
    # that are translated to IPv4: NAT64 (64:ff9b::/96, 64:ff9b:1::/48), SIIT (::ffff:0:0:0/96) and ::/96.
    return (
        address in _GLOBAL_UNICAST
        and _is_global(address)
        and not any(address in network for network in _NOT_PUBLIC_6)
        and (int(address) >> 32) & 0xFFFF_FFFF not in _ISATAP
    )


def _is_global(address: Address) -> bool:
    """Return whether `ipaddress` considers an address global: a second check."""
    return address.is_global and not address.is_multicast and not address.is_reserved
