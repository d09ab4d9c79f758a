"""The hosts that a port accepts: loopback names on a loopback address, and allowed ones.

See interface R19.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.http.hosts import Hosts, allowed_host, host_of, is_loopback

LOCAL = [
    "localhost",
    "localhost:8402",
    "localhost:",
    "LocalHost",
    "localhost.",
    "localhost.:80",
    "agent.localhost",
    "a.b.localhost:1",
    "127.0.0.1",
    "127.0.0.1:65536",
    "127.255.255.254",
    "[::1]",
    "[::1]:8402",
    "[0:0:0:0:0:0:0:1]",
]
ELSEWHERE = [
    "evil.example",
    "evil.example:8402",
    "localhost.evil.example",
    "evil-localhost",
    "xlocalhost",
    "local_host",
    "127.0.0.1.evil.example",
    "128.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "127.1",
    "127.0.0.01",
    "2130706433",
    "0x7f000001",
    "[::]",
    "[::2]",
    "[::ffff:127.0.0.1]",
    "[fe80::1]",
    "xn--localhost-",
]
MALFORMED = [
    "",
    ":80",
    ".",
    "..",
    "a..b",
    ".localhost",
    "localhost..",
    "a b",
    " localhost",
    "localhost,evil.example",
    "localhost:abc",
    "localhost:-1",
    "localhost:80:80",
    "user@localhost",
    "http://localhost",
    "localhost/x",
    "localhost?x",
    "local%68ost",
    "::1",
    "[::1",
    "::1]",
    "[]",
    "[localhost]",
    "[127.0.0.1]",
    "[::1%25lo]",
    "[::1%lo]",
    "[::1]x",
    "löcalhost",
    "localhost\u0130",
    "\uff11\uff12\uff17.0.0.1",
    "a" * 64,
    ".".join(["a" * 60] * 5),
    "a" * 100_000,
]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("authority", LOCAL)
def test_a_loopback_address_accepts_loopback_hosts(address: str, authority: str) -> None:
    assert is_loopback(address)
    host = host_of(authority)
    assert host is not None
    assert host in Hosts.of(address)


@pytest.mark.parametrize("authority", ELSEWHERE)
def test_a_loopback_address_refuses_other_hosts(authority: str) -> None:
    host = host_of(authority)
    assert host is not None
    assert host not in Hosts.of("127.0.0.1")
    assert host not in Hosts.of("127.0.0.1", ["pay.example"])


@pytest.mark.parametrize("authority", MALFORMED, ids=lambda text: repr(text)[:30])
def test_an_invalid_authority_has_no_host(authority: str) -> None:
    assert host_of(authority) is None


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5", "2001:db8::1", "fe80::1%eth0"])
def test_other_addresses_accept_all_hosts_unless_allowed_hosts_are_set(address: str) -> None:
    assert not is_loopback(address)
    for host in ("evil.example", "localhost", "10.0.0.1"):
        assert host in Hosts.of(address)
        assert host not in Hosts.of(address, ["pay.example"])
    assert "pay.example" in Hosts.of(address, ["pay.example"])


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        ("pay.example", "pay.example:443"),
        ("PAY.Example.", "pay.example"),
        ("pay.example", "PAY.EXAMPLE."),
        (" pay.example ", "pay.example"),
        ("agentpay", "agentpay:8402"),
        ("my_service", "my_service"),
        ("10.0.0.7", "10.0.0.7:80"),
        ("2001:db8::7", "[2001:DB8:0::7]:80"),
        ("[2001:db8::7]", "[2001:db8::7]"),
    ],
)
def test_an_allowed_host_is_accepted_in_any_spelling(named: str, asked: str) -> None:
    host = host_of(asked)
    assert host is not None
    for address in ("127.0.0.1", "0.0.0.0"):
        assert host in Hosts.of(address, ["other.example", named])


@pytest.mark.parametrize(
    "text", ["", "https://pay.example", "pay.example:443", "[::1]:80", "a b", "*.example", "a/b", "::1%lo"]
)
def test_an_invalid_allowed_host_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host; give a name or an IP address"):
        allowed_host(text)


@given(st.text(max_size=60))
def test_any_text_is_a_host_or_none(text: str) -> None:
    host = host_of(text)
    if host is not None:
        assert host == host.lower()
        assert host.isascii()
        assert host_of(f"[{host}]" if ":" in host else host) == host
