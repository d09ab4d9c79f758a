"""Clients: their settings, their lifetime, what copies share, and how they use a given HTTP client."""

import asyncio
import logging
import re
import threading

import httpx
import pytest
from http_service import http
from sdk_world import ACCOUNT, BALANCE, KEY, URL, Script, answer

from agentpay import UNSET, AgentPay, AsyncAgentPay, errors
from agentpay._http import clients as edge


def get_account(client, **options):
    return client.accounts.get("acct_a", **options)


def timeouts(request):
    return set(request.extensions["timeout"].values())


def test_settings_come_from_the_environment_unless_they_are_given(caller, monkeypatch):
    monkeypatch.setenv("AGENTPAY_API_KEY", "ap_agent_env")
    monkeypatch.setenv("AGENTPAY_BASE_URL", "https://env.example.com/")
    for given, host, key in (
        ({"api_key": None, "base_url": None}, "env.example.com", "ap_agent_env"),
        ({}, "api.example.com", KEY),
    ):
        script = caller.script(answer(200, ACCOUNT), **given)
        caller(get_account)
        (request,) = script.requests
        assert str(request.url) == f"https://{host}/v1/accounts/acct_a"
        assert request.headers["Authorization"] == f"Bearer {key}"


INVALID = {
    "no API key": [{"api_key": None}, {"api_key": ""}],
    "contains blanks": [{"api_key": "key\n"}, {"api_key": "ap operator"}, {"api_key": "schlüssel"}],
    "no base URL": [{"base_url": None}, {"base_url": ""}],
    "must be an address such as": [
        {"base_url": "api.example.com"},
        {"base_url": "ftp://api.example.com"},
        {"base_url": "https://"},
        {"base_url": "https://api.example.com:port"},
        {"base_url": "https://api.example.com:99999"},
        {"base_url": "https://[::1"},
        {"base_url": "https://api example.com"},
        {"base_url": "https://api..example.com"},
        {"base_url": f"https://{64 * 'a'}.example.com"},
        {"base_url": "https://xn--\N{SNOWMAN}\N{SNOWMAN}.example\N{FULLWIDTH COMMA}com"},
    ],
    "no user info": [{"base_url": "https://user:pass@api.example.com"}],
    "no user info, query or fragment": [{"base_url": "https://api.example.com?x=1"}],
    "must not end with /v1": [{"base_url": "https://api.example.com/v1/"}],
    "timeout must be above 0": [{"timeout": each} for each in (0, -1, float("nan"), float("inf"))],
    "timeout is a number of seconds or None, not str": [{"timeout": "30"}],
    "not bool": [{"timeout": True}],
    "max_retries must be an integer from 0": [{"max_retries": each} for each in (-1, 1.0, True)],
    "total_timeout must be above 0": [{"total_timeout": 0}],
    "app_info must be printable": [{"app_info": each} for each in ("", "a\nb", 1)],
    "default_headers must not set Authorization": [{"default_headers": {"Authorization": "x"}}],
    "AGENTPAY_LOG must be debug or info": [{}],
}


@pytest.mark.parametrize("problem", INVALID)
@pytest.mark.parametrize("kind", [AgentPay, AsyncAgentPay])
def test_an_invalid_setting_is_refused_by_name(kind, problem, monkeypatch):
    for settings in INVALID[problem]:
        if not settings:
            monkeypatch.setenv("AGENTPAY_LOG", "loud")
        with pytest.raises(errors.ConfigurationError, match=problem) as caught:
            kind(**{"api_key": KEY, "base_url": URL, **settings})
        assert "pass@" not in str(caught.value)
        if settings.keys() & {"timeout", "max_retries", "total_timeout", "default_headers"}:
            with pytest.raises(errors.ConfigurationError, match=problem):
                kind(api_key=KEY, base_url=URL).with_options(**settings)


def test_a_copy_has_separate_options_and_shares_connections(caller):
    script = caller.script(answer(200, ACCOUNT), httpx.ReadTimeout(""), answer(200, ACCOUNT))
    copy = caller.client.with_options(api_key="ap_agent_x", timeout=3).with_options(
        max_retries=0, timeout=UNSET
    )
    assert type(copy) is caller.kind
    caller(lambda _: get_account(copy))
    with pytest.raises(errors.APITimeoutError):
        caller(lambda _: get_account(copy))
    caller(get_account)
    sent = [(request.headers["Authorization"], timeouts(request)) for request in script.requests]
    assert sent == [("Bearer ap_agent_x", {3.0})] * 2 + [(f"Bearer {KEY}", {30.0})]
    assert copy._http is caller.client._http
    caller(lambda _: copy.close())
    with pytest.raises(errors.ClosedClientError):
        caller(get_account)


class ClosingScript(Script):
    """A script that counts how often it is closed."""

    closed = 0

    def close(self):
        self.closed += 1

    async def aclose(self):
        self.closed += 1


def test_a_client_is_a_context_manager_that_closes_a_given_transport_once(caller):
    script = ClosingScript(*[answer(200, ACCOUNT)] * 2)
    caller.connect(script)

    async def within():
        async with caller.client as client:
            await get_account(client)
            assert script.closed == 0

    if caller.is_async:
        caller.run(within)
    else:
        with caller.client as client:
            get_account(client)
            assert script.closed == 0
    caller(lambda c: c.close())
    assert script.closed == 1
    with pytest.raises(errors.ClosedClientError, match="create a new one"):
        caller(get_account)
    assert len(script.requests) == 1


@pytest.mark.parametrize("own_client", [False, True], ids=["transport", "http_client"])
def test_a_cookie_is_never_sent_back(caller, own_client):
    answers = [
        httpx.Response(200, json=ACCOUNT, headers={"Set-Cookie": "tracker=1; Path=/"}) for _ in range(2)
    ]
    if own_client:
        script = Script(*answers)
        kind = httpx.AsyncClient if caller.is_async else httpx.Client
        caller.connect(None, http_client=kind(transport=script))
    else:
        script = caller.script(*answers)
    for _ in range(2):
        caller(get_account)
    assert not any("cookie" in request.headers for request in script.requests)


def test_a_given_http_client_keeps_its_settings_and_stays_open(caller):
    seen = []

    def note_request(request):
        seen.append((request.headers["X-Team"], request.content))

    def note_response(response):
        seen.append(response.status_code)

    async def anote_request(request):
        note_request(request)

    async def anote_response(response):
        note_response(response)

    script = Script(answer(200, ACCOUNT), answer(200, BALANCE))
    kind = httpx.AsyncClient if caller.is_async else httpx.Client
    hooks = (anote_request, anote_response) if caller.is_async else (note_request, note_response)
    http_client = kind(
        transport=script,
        headers={"X-Team": "blue", "Authorization": "Basic other", "Accept": "text/html"},
        auth=("user", "password"),
        base_url="https://elsewhere.example.com",
        follow_redirects=True,
        event_hooks={"request": [hooks[0]], "response": [hooks[1]]},
    )
    caller.client = caller.kind(api_key=KEY, base_url=URL, http_client=http_client)
    caller(get_account)
    caller(lambda c: c.close())
    assert seen == [("blue", b""), 200]
    assert script.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    assert script.requests[0].headers["Accept"] == "application/json"
    assert script.requests[0].url.host == "api.example.com"
    assert not http_client.is_closed
    if caller.is_async:
        caller.run(http_client.aclose)
    else:
        http_client.close()


def test_a_closed_http_client_is_reported_and_excludes_a_transport(caller):
    http_client = httpx.AsyncClient() if caller.is_async else httpx.Client()
    with pytest.raises(errors.ConfigurationError, match="not both"):
        caller.kind(api_key=KEY, base_url=URL, http_client=http_client, transport=Script())
    caller.client = caller.kind(api_key=KEY, base_url=URL, http_client=http_client)
    caller.run(http_client.aclose) if caller.is_async else http_client.close()
    with pytest.raises(errors.ClosedClientError):
        caller(get_account)


def together(count, work):
    barrier = threading.Barrier(count)

    def run():
        barrier.wait()
        work()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def loaded(monkeypatch):
    """Return how often certificates were loaded, an item for each time."""
    made = []
    create = httpx.create_ssl_context

    def counted(*args, **kwargs):
        made.append(1)
        return create(*args, **kwargs)

    monkeypatch.setattr(edge, "_ssl_context", None)
    monkeypatch.setattr(httpx, "create_ssl_context", counted)
    return made


def test_all_clients_of_a_process_share_one_tls_context(loaded, service):
    def ask():
        # The service speaks no TLS.
        url = service.base_url.replace("http:", "https:")
        with (
            AgentPay(api_key=KEY, base_url=url, max_retries=0) as client,
            pytest.raises(errors.APIConnectionError),
        ):
            get_account(client)

    together(4, ask)
    assert len(loaded) == 1


def test_plain_http_loads_no_certificates_unless_a_proxy_may_need_them(loaded, service, monkeypatch):
    def ask():
        with AgentPay(api_key=KEY, base_url=service.base_url) as client:
            get_account(client)

    async def ask_async():
        async with AsyncAgentPay(api_key=KEY, base_url=service.base_url) as client:
            await client.accounts.get("acct_1")

    together(2, ask)
    asyncio.run(ask_async())
    assert len(service.asked) == 3
    assert loaded == []
    monkeypatch.setenv("HTTP_PROXY", "https://127.0.0.1:9")
    with (
        AgentPay(api_key=KEY, base_url="http://192.0.2.1", max_retries=0) as client,
        pytest.warns(errors.InsecureConnectionWarning),
        pytest.raises(errors.APIConnectionError),
    ):
        get_account(client)
    assert len(loaded) == 1


def test_a_client_used_by_many_threads_creates_one_http_client(monkeypatch, service):
    made = []

    class Counted(httpx.Client):
        def __init__(self, **options):
            made.append(self)
            super().__init__(**options)

    monkeypatch.setattr(httpx, "Client", Counted)
    with AgentPay(api_key=KEY, base_url=service.base_url) as client:
        assert not made, "nothing is made before the first call"
        together(8, lambda: get_account(client))
        (http_client,) = made
        assert not http_client.is_closed
    assert http_client.is_closed
    assert len(service.asked) == 8


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"HTTP_PROXY": "gopher://127.0.0.1:1"}, "HTTP_PROXY cannot be used: Unknown scheme"),
        ({"HTTPS_PROXY": "http://me:se:cret@[::1"}, "HTTPS_PROXY cannot be used: it has no valid address"),
        ({"HTTP_PROXY": "http://127.0.0.1:1", "all_proxy": "ftp://a"}, "all_proxy cannot be used: Unknown"),
        ({"HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": "a:b"}, "NO_PROXY cannot be used: it has no valid"),
        (
            {"SSL_CERT_FILE": "/no/such.pem"},
            "'/no/such.pem', which SSL_CERT_FILE names, cannot be read: No",
        ),
        ({"SSL_CERT_FILE": __file__}, f"'{__file__}', which SSL_CERT_FILE names, cannot be read: "),
    ],
)
def test_an_unusable_proxy_or_certificate_setting_is_named(caller, monkeypatch, variables, problem):
    monkeypatch.setattr(edge, "_ssl_context", None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    caller.connect(None)
    with pytest.raises(errors.ConfigurationError, match=re.escape(problem)) as caught:
        caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=1))
    assert "cret" not in str(caught.value)


def test_concurrent_calls_do_not_share_retries():
    counts = {}

    def fail_once(request):
        counts[request.url.path] = counts.get(request.url.path, 0) + 1
        if counts[request.url.path] == 1:
            return answer(503)
        return answer(200, {**ACCOUNT, "account_id": request.url.path.rpartition("/")[2]})

    async def main():
        transport = httpx.MockTransport(fail_once)
        async with AsyncAgentPay(api_key=KEY, base_url=URL, transport=transport, max_retries=1) as client:
            client._http.sleep = lambda _seconds: asyncio.sleep(0)
            await asyncio.gather(*(client.accounts.get(f"acct_{n}") for n in range(20)))

    asyncio.run(main())
    assert set(counts.values()) == {2}


@pytest.fixture
def logs():
    logger = logging.getLogger("agentpay")
    before = logger.level, list(logger.handlers)
    yield logger
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


@pytest.mark.parametrize(("value", "level"), [("debug", logging.DEBUG), ("INFO", logging.INFO)])
def test_agentpay_log_adds_one_log_handler(monkeypatch, logs, value, level):
    monkeypatch.setenv("AGENTPAY_LOG", value)
    for _ in range(3):
        AgentPay(api_key=KEY, base_url=URL).close()
    assert (logs.level, len(logs.handlers)) == (level, 1)


def test_sync_pauses_use_time_sleep(monkeypatch):
    slept = []
    monkeypatch.setattr(edge.time, "sleep", slept.append)
    transport = Script(answer(429, b"", Retry_After="7"), answer(200, ACCOUNT))
    with AgentPay(api_key=KEY, base_url=URL, transport=transport) as client:
        get_account(client)
    assert slept == [7.0]


@pytest.mark.anyio
async def test_a_pause_between_attempts_elapses_on_asyncio_and_trio(service):
    """On asyncio and on trio: the clock of the pause is that of the event loop."""
    respond = service.respond

    async def busy_once(_asked):
        service.respond = respond
        return http(b"", status="429 Too Many Requests")

    service.respond = busy_once
    async with AsyncAgentPay(api_key=KEY, base_url=service.base_url, max_retries=1) as client:
        assert (await client.accounts.get("acct_a")).account_id == "acct_a"
    assert len(service.asked) == 2
