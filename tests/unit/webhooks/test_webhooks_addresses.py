"""Where an event may be posted to: URLs by their form, addresses by their kind (interface W4)."""

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay.contract import codec
from agentpay.contract.addresses import is_https, is_public
from agentpay.contract.codec import InvalidValueError
from agentpay.contract.webhooks import CreateWebhook


def checked(url: str) -> str:
    """The URL, as the request to register it is read."""
    return codec.structure({"url": url, "events": ["transfer.settled"]}, CreateWebhook).url


# --- URLs -------------------------------------------------------------------------------------------------


def test_a_url_of_http_is_allowed_in_the_sandbox_and_one_of_https_everywhere():
    for url in (
        "https://example.com",
        "https://example.com/",
        "https://example.com:8443/hooks?tenant=1&x=%20",
        "HTTPS://EXAMPLE.COM/Hooks",
        "https://xn--bcher-kva.example/",
        "https://93.184.216.34/",
        "https://[2606:4700::1111]:443/hooks",
        "https://example.com/a@b",
        "https://example.com/?next=user:password@host",
    ):
        assert is_https(checked(url))
    for url in ("http://example.com/", "http://localhost:8000/hooks", "http://127.0.0.1:1/"):
        assert not is_https(checked(url))


FAULTS = {
    "user info": [
        "https://user@example.com/",
        "https://user:password@example.com/",
        "https://:@example.com/",
        "https://@example.com/",
        "https://example.com@internal/",
    ],
    "http or https": [
        *("ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "javascript:alert(1)"),
        *("example.com/hooks", "//example.com/hooks", "https:example.com", "https://", "https:///hooks"),
        *("https://:443/", "https://example.com:0/", "x"),
    ],
    "valid URL": [
        *("https://example.com:65536/", "https://example.com:x/", "https://[::1", "https://[x]/"),
    ],
    "fragment": ["https://example.com/#fragment"],
    "user info|backslash": ["https://example.com\\@internal/"],
    "backslash": ["https://example.com/\\internal"],
    "printable ASCII": [
        *("https://exa mple.com/", "https://example.com/a b", " https://example.com/"),
        *("https://example.com/\n", "https://example.com/\r\nX-Injected: 1", "https://exam\tple.com/"),
        *("https://example.com/\x00", "https://example.com/\x7f"),
    ],
    "punycode": ["https://bücher.example/", "https://example。com/", "https://example.com/ü"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_other_url_is_refused_with_a_reason(fault):
    for url in FAULTS[fault]:
        with pytest.raises(InvalidValueError, match=fault):
            checked(url)


@given(st.text(max_size=60) | st.text(max_size=40).map(lambda tail: "https://" + tail))
def test_any_text_is_allowed_or_refused_with_a_reason(text):
    assert is_public(text) in (True, False)
    try:
        assert checked(text).isascii()
    except InvalidValueError as error:
        (fault,) = error.faults
        assert fault.field == "url"
        assert fault.message.startswith("must ")


# --- Addresses --------------------------------------------------------------------------------------------

PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.255.255"),
    *("172.32.0.0", "169.253.255.255", "223.255.255.255", "2606:4700:4700::1111", "2a00:1450:4001::1"),
    *("2001:4860:4860::8888", "::ffff:8.8.8.8", "168.63.129.15", "168.63.129.17", "192.31.195.255"),
    *("192.31.197.0", "192.175.47.255", "192.175.49.0", "2620:4e:ffff:ffff::1", "2620:4f:8001::1"),
    "2a00:1450:4001::5dfe:808:808",
]
NOT_PUBLIC = {
    "this host": ["0.0.0.0", "0.1.2.3", "::"],
    "loopback": ["127.0.0.1", "127.255.255.255", "::1"],
    "private": ["10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1"],
    "shared": ["100.64.0.0", "100.100.100.200", "100.127.255.255"],
    "link-local": ["169.254.0.1", "fe80::1", "fe80::1%eth0", "febf::1"],
    "metadata": ["169.254.169.254", "fd00:ec2::254", "192.0.0.192"],
    "platform": ["168.63.129.16", "::ffff:168.63.129.16"],
    "AS112": ["192.31.196.1", "192.175.48.1", "192.175.48.255", "2001:4:112::1", "2620:4f:8000::1"],
    "AMT": ["192.52.193.1", "2001:3::1"],
    "ISATAP": ["2a00:1450:4001::5efe:7f00:1", "2a00:1450::200:5efe:a9fe:a9fe", "fe80::5efe:a00:1"],
    "protocol assignments": ["192.0.0.1", "192.0.0.9", "192.0.0.170", "2001::1", "2001:20::1", "2001:1ff::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1", "3fff:fff::1"],
    "6to4 relay": ["192.88.99.1"],
    "benchmarks": ["198.18.0.1", "198.19.255.255"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.254", "255.255.255.255"],
    "unique local": ["fc00::1", "fd12:3456::1", "fdff::1"],
    "site-local": ["fec0::1", "feff::1"],
    "discard": ["100::1", "100:0:0:1::1"],
    "not assigned": ["4000::1", "8000::1", "1::1"],
    "segment routing": ["5f00::1"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:7f00:1"],
    "compatible": ["::127.0.0.1", "::10.0.0.1", "::8.8.8.8"],
    "translated": ["::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"],
    "NAT64": [
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::808:808",
        "64:ff9b:1::a00:1",
        "64:ff9b:1::808:808",
    ],
    "6to4": ["2002:808:808::1", "2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::1", "2002:c0a8:1::1"],
    "Teredo": [
        "2001:0:808:808:8000:63bf:f7f7:f7f7",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:0:7f00:1::",
    ],
    "no address": [
        "",
        "x",
        "localhost",
        "1.1.1",
        "1.1.1.1.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "[::1]",
    ],
}


def test_addresses_of_the_internet_are_public_and_all_others_are_not():
    assert [text for text in PUBLIC if not is_public(text)] == []
    assert [(kind, text) for kind, texts in NOT_PUBLIC.items() for text in texts if is_public(text)] == []


def test_an_address_is_not_public_in_any_wrapping_if_its_inner_address_is_not():
    inner = [text for texts in NOT_PUBLIC.values() for text in texts if re.fullmatch(r"(\d+\.){3}\d+", text)]
    assert len(inner) > 20
    for number in (int(ipaddress.IPv4Address(text)) for text in inner):
        wrapped = [
            ipaddress.IPv6Address(0xFFFF_0000_0000 | number),
            ipaddress.IPv6Address(0xFFFF_0000_0000_0000 | number),
            ipaddress.IPv6Address(number),
            ipaddress.IPv6Address((0x0064_FF9B << 96) | number),
            ipaddress.IPv6Address((0x0064_FF9B_0001 << 80) | number),
            ipaddress.IPv6Address((0x2002 << 112) | (number << 80) | 1),
            ipaddress.IPv6Address((0x2001_0000 << 96) | (number ^ 0xFFFF_FFFF)),
            ipaddress.IPv6Address((0x2001_0000 << 96) | (number << 64)),
        ]
        assert [str(address) for address in wrapped if is_public(str(address))] == []


@given(st.ip_addresses())
def test_no_address_that_ipaddress_calls_private_is_public(address):
    if is_public(str(address)):
        inner = getattr(address, "ipv4_mapped", None) or address
        assert inner.is_global
        assert not any((inner.is_private, inner.is_loopback, inner.is_link_local, inner.is_multicast))
        assert not any((inner.is_reserved, inner.is_unspecified))


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_treated_as_its_inner_address(address):
    assert is_public(f"::ffff:{address}") is is_public(str(address))
