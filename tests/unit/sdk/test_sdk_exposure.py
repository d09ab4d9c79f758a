"""A key that anybody on the way can read is warned of: plain http, to another machine."""

import json
import warnings

import httpx
import pytest
from http_service import http
from receivers import closed_port
from sdk_world import ACCOUNT, KEY, answer

from agentpay import AgentPay, AsyncAgentPay, InsecureConnectionWarning


def always(_request):
    return answer(200, ACCOUNT)


def ask(caller, base_url, calls=3, **options):
    """Make calls to an address; return the warnings."""
    caller.connect(httpx.MockTransport(always), base_url=base_url, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            caller(lambda c: c.accounts.get("acct_a"))
    return caught


EXPOSED = [
    "http://api.example.com",
    "http://192.168.1.10:8402",
    "http://10.0.0.1",
    "http://[fe80::1]:8402",
    "http://0.0.0.0:8402",
    "http://localhost.example.com",
    "http://128.0.0.1",
    "HTTP://API.EXAMPLE.COM",
]
SAFE = [
    "https://api.example.com",
    "https://192.168.1.10",
    "http://localhost:8402",
    "http://LOCALHOST",
    "http://localhost.:8402",
    "http://agentpay.localhost",
    "http://127.0.0.1:8402",
    "http://127.8.9.10",
    "http://[::1]:8402",
    "http://agentpay.invalid",
]


def test_a_client_warns_once_before_sending_a_key_over_plain_http(caller):
    for base_url in EXPOSED:
        (warning,) = ask(caller, base_url)
        assert warning.category is InsecureConnectionWarning
        host = httpx.URL(base_url).host
        assert str(warning.message).startswith(f"the API key is sent to {host} over plain http")
        assert KEY not in str(warning.message)
    for base_url in SAFE:
        assert ask(caller, base_url) == []


@pytest.fixture
def proxy(service):
    """A proxy that responds for every service."""

    async def respond(_asked):
        return http(json.dumps({**ACCOUNT, "account_id": "acct_a"}).encode(), "Connection: close")

    service.respond = respond
    return service


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_no_proxy_of_the_environment_gets_what_is_sent_to_this_machine(
    caller, service, monkeypatch, host, variable
):
    monkeypatch.setenv(variable, f"http://127.0.0.1:{closed_port()}")
    caller.connect(None, base_url=service.base_url.replace("127.0.0.1", host), max_retries=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert caller(lambda c: c.accounts.get("acct_a")).account_id == "acct_a"


def test_plain_http_through_a_proxy_of_the_environment_warns(caller, proxy, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", proxy.base_url)
    caller.connect(None, base_url="http://api.example.com", max_retries=0)
    with pytest.warns(InsecureConnectionWarning, match="the API key is sent to api.example.com over plain"):
        caller(lambda c: c.accounts.get("acct_a"))
    assert [asked.path.split("/v1")[0] for asked in proxy.asked] == ["http://api.example.com"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://localhost", "http://agentpay.invalid"])
def test_the_proxy_of_a_given_client_is_used_and_warned_of(caller, proxy, address):
    kind = httpx.AsyncClient if caller.is_async else httpx.Client
    given = kind(proxy=proxy.base_url)
    caller.connect(None, base_url=address, http_client=given, max_retries=0)
    host = httpx.URL(address).host
    with pytest.warns(InsecureConnectionWarning, match=f"sent to {host} over plain http through a proxy"):
        caller(lambda c: c.accounts.get("acct_a"))
    assert [asked.path.split("/v1")[0] for asked in proxy.asked] == [address]


@pytest.mark.anyio
async def test_the_warning_names_the_line_that_makes_or_awaits_the_call():
    transport = httpx.MockTransport(always)
    async with AsyncAgentPay(api_key=KEY, base_url=EXPOSED[0], transport=transport) as client:
        with pytest.warns(InsecureConnectionWarning) as caught:
            await client.accounts.get("acct_a")
    sync = AgentPay(api_key=KEY, base_url=EXPOSED[0], transport=transport)
    with sync, pytest.warns(InsecureConnectionWarning) as caught_sync:
        sync.accounts.get("acct_a")
    assert [warning.filename for warning in [*caught, *caught_sync]] == [__file__] * 2


def test_a_copy_does_not_warn_again(caller):
    caller.connect(httpx.MockTransport(always), base_url="http://api.example.com")
    with pytest.warns(InsecureConnectionWarning):
        caller(lambda c: c.accounts.get("acct_a"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        caller(lambda c: c.with_options(timeout=5).accounts.get("acct_a"))


def test_no_key_is_sent_when_the_warning_is_an_error(caller):
    script = caller.script(base_url="http://api.example.com")
    with warnings.catch_warnings():
        warnings.simplefilter("error", InsecureConnectionWarning)
        for _ in range(2):
            with pytest.raises(InsecureConnectionWarning) as caught:
                caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=1))
            assert not hasattr(caught.value, "__notes__"), "nothing was sent that could be in doubt"
    assert not script.requests
