"""HTTP clients and transports of the caller's: which are taken, and that nothing of theirs is let through."""

import socket

import httpx
import httpx2
import pytest
from sdk_world import ACCOUNT, KEY, URL, answer

from agentpay import AgentPay, AsyncAgentPay, errors

LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


class OwnTransport:
    """A transport without a base class."""

    def handle_request(self, request):
        return answer(200, ACCOUNT)

    async def handle_async_request(self, request):
        return answer(200, ACCOUNT)

    def close(self):
        pass

    async def aclose(self):
        pass


class Session:
    """A client of another library that has a method `send` too."""

    is_closed = False

    def send(self, request):
        raise AssertionError


REFUSED = [
    (AgentPay, "http_client", httpx.AsyncClient, "a Client of httpx or httpx2, .*AsyncAgentPay takes"),
    (AgentPay, "http_client", httpx2.AsyncClient, "not httpx2.AsyncClient; AsyncAgentPay takes that one"),
    (AgentPay, "http_client", httpx.HTTPTransport, "pass a transport as transport"),
    (AgentPay, "http_client", Session, "not .*Session$"),
    (AgentPay, "http_client", lambda: httpx.Client, r"not the class httpx2?\.Client"),
    (AgentPay, "http_client", lambda: URL, "not builtins.str"),
    (AgentPay, "transport", httpx.AsyncHTTPTransport, "a sync transport.*AsyncAgentPay takes that one"),
    (AgentPay, "transport", httpx2.AsyncHTTPTransport, "a sync transport.*AsyncAgentPay takes that one"),
    (AgentPay, "transport", httpx.Client, "pass a client as http_client"),
    (AgentPay, "transport", lambda: httpx.HTTPTransport, r"not the class httpx2?\.HTTPTransport"),
    (AgentPay, "transport", object, "with handle_request, not builtins.object"),
    (AsyncAgentPay, "http_client", httpx.Client, "an AsyncClient of .*; AgentPay takes that one"),
    (AsyncAgentPay, "http_client", httpx2.Client, "not httpx2.Client; AgentPay takes that one"),
    (AsyncAgentPay, "http_client", httpx.AsyncHTTPTransport, "pass a transport as transport"),
    (AsyncAgentPay, "http_client", Session, "not .*Session$"),
    (AsyncAgentPay, "transport", httpx.HTTPTransport, "an async transport.*; AgentPay takes that one"),
    (AsyncAgentPay, "transport", httpx2.HTTPTransport, "an async transport.*; AgentPay takes that one"),
    (AsyncAgentPay, "transport", httpx2.AsyncClient, "pass a client as http_client"),
    (AsyncAgentPay, "transport", object, "with handle_async_request, not builtins.object"),
]


@pytest.mark.parametrize(("kind", "setting", "make", "problem"), REFUSED)
def test_an_unusable_http_client_or_transport_is_refused_at_creation(kind, setting, make, problem):
    with pytest.raises(errors.ConfigurationError, match=f"^{setting} must be .*{problem}"):
        kind(api_key=KEY, base_url=URL, **{setting: make()})


@LIBRARIES
@pytest.mark.parametrize("part", ["http_client", "transport"])
def test_a_client_stays_open_and_a_transport_is_closed_of_httpx_or_httpx2(caller, service, library, part):
    kind = "Client" if part == "http_client" else "HTTPTransport"
    given = getattr(library, f"Async{kind}" if caller.is_async else kind)()
    caller.client = caller.kind(api_key=KEY, base_url=service.base_url, **{part: given})

    async def work():
        account = caller.client.accounts.get("acct_a")
        account = await account if caller.is_async else account
        closed = caller.client.close()
        if caller.is_async:
            await closed
        if part == "http_client":
            assert not given.is_closed
            await given.aclose() if caller.is_async else given.close()
        return account

    assert caller.run(work).account_id == "acct_a"
    caller.client = None
    service.wait_until_nobody_is_connected()


def seen_timeout(caller, library, **settings):
    """The steps of a request that a client of this library sends, whose own timeout is `http_timeout`."""
    seen = []

    def answered(request):
        seen.append(request.extensions["timeout"])
        return library.Response(200, content=answer(200, ACCOUNT).content)

    own = {"timeout": settings.pop("http_timeout")} if "http_timeout" in settings else {}
    given = (library.AsyncClient if caller.is_async else library.Client)(
        transport=library.MockTransport(answered), **own
    )
    call = settings.pop("call", {})
    caller.client = caller.kind(api_key=KEY, base_url=URL, http_client=given, **settings)
    caller(lambda c: c.accounts.get("acct_a", **call))
    return seen[0]


@LIBRARIES
def test_the_timeout_is_that_of_the_sdk_client_or_of_the_given_one_or_the_default(caller, library):
    own = library.Timeout(20, connect=2)
    assert seen_timeout(caller, library, http_timeout=own) == own.as_dict()
    for settings, seconds in (
        ({"http_timeout": 7}, 7),
        ({"http_timeout": None}, None),
        ({"http_timeout": 7, "timeout": 9}, 9),
        ({"http_timeout": 7, "timeout": None}, None),
        # The default of the given client is too short.
        ({}, 30),
    ):
        assert set(seen_timeout(caller, library, **settings).values()) == {seconds}
    # A timeout of the library is taken wherever seconds are.
    steps = library.Timeout(20, connect=2, pool=None)
    assert seen_timeout(caller, library, timeout=steps) == steps.as_dict()
    assert seen_timeout(caller, library, call={"timeout": steps}) == steps.as_dict()
    assert (caller.client.timeout, caller.client.with_options(timeout=steps).timeout.connect) == (30, 2)
    bounded = seen_timeout(caller, library, timeout=steps, total_timeout=1)
    assert (bounded["connect"], bounded["read"]) == pytest.approx((1, 1), abs=0.5)


@LIBRARIES
def test_a_timeout_names_the_step_that_took_too_long(caller, library):
    def slow(request):
        raise library.ReadTimeout("", request=request)

    given = (library.AsyncClient if caller.is_async else library.Client)(
        transport=library.MockTransport(slow)
    )
    steps = library.Timeout(20, read=3)
    caller.client = caller.kind(api_key=KEY, base_url=URL, http_client=given, timeout=steps, max_retries=0)
    with pytest.raises(errors.APITimeoutError, match="within 3 s"):
        caller(lambda c: c.accounts.get("acct_a"))


def test_a_transport_needs_no_base_class(caller):
    caller.connect(OwnTransport())
    assert caller(lambda c: c.accounts.get("acct_a")).account_id == "acct_a"


@LIBRARIES
@pytest.mark.parametrize("part", ["http_client", "transport"])
@pytest.mark.parametrize(
    ("name", "kind", "processed"),
    [
        ("ConnectTimeout", errors.APITimeoutError, False),
        ("ProxyError", errors.APIConnectionError, False),
        ("ReadTimeout", errors.APITimeoutError, True),
        ("RemoteProtocolError", errors.APIConnectionError, True),
        ("DecodingError", errors.ResponseValidationError, True),
    ],
)
def test_no_exception_of_a_given_library_leaks(caller, library, part, name, kind, processed):
    def fail(request):
        raise getattr(library, name)("it failed")

    transport = library.MockTransport(fail)
    given = transport
    if part == "http_client":
        given = (library.AsyncClient if caller.is_async else library.Client)(transport=transport)
    caller.client = caller.kind(api_key=KEY, base_url=URL, max_retries=0, **{part: given})
    with pytest.raises(kind) as caught:
        caller(lambda c: c.accounts.get("acct_a"))
    assert type(caught.value) is kind
    assert getattr(caught.value, "may_have_been_processed", True) is processed
    assert caught.value.__cause__ is caught.value.__context__ is None
    expected = errors.TransferOutcomeUnknownError if processed else kind
    with pytest.raises(expected):
        caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=1))


@LIBRARIES
def test_a_refused_connection_is_reported_as_not_sent(caller, library):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    given = (library.AsyncClient if caller.is_async else library.Client)()
    caller.client = caller.kind(api_key=KEY, base_url=url, max_retries=0, http_client=given)
    with pytest.raises(errors.APIConnectionError, match="The request was not sent"):
        caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=1))
    caller.run(given.aclose) if caller.is_async else given.close()


@LIBRARIES
def test_a_connect_error_inside_a_hook_leaves_the_payment_outcome_unknown(caller, service, library):
    """The response is there when the hook runs; its own call that was never sent is not the payment."""

    def hook(_response):
        library.get("http://127.0.0.1:1", timeout=5)

    async def ahook(_response):
        async with library.AsyncClient() as other:
            await other.get("http://127.0.0.1:1", timeout=5)

    hooks = {"response": [ahook if caller.is_async else hook]}
    given = (library.AsyncClient if caller.is_async else library.Client)(event_hooks=hooks)
    caller.client = caller.kind(api_key=KEY, base_url=service.base_url, http_client=given, max_retries=0)

    async def main():
        try:
            await caller.client.transfers.create(from_="acct_a", to="acct_b", amount=1)
        finally:
            await given.aclose()

    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        caller.run(main) if caller.is_async else caller.client.transfers.create(
            from_="acct_a", to="acct_b", amount=1
        )
    assert isinstance(caught.value.__cause__, errors.APIConnectionError)
    assert caught.value.__cause__.may_have_been_processed
    assert service.paid == [caught.value.idempotency_key]
    if not caller.is_async:
        given.close()
    caller.client = None
