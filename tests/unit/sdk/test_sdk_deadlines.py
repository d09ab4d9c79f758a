"""`total_timeout` over real sockets: it ends a call whose response never stops arriving, in every flavour."""

import json
import ssl
from functools import partial
from itertools import chain, repeat
from typing import Any

import anyio
import httpx
import pytest
from http_service import Dripping, tls_of
from sdk_world import ACCOUNT, BACKENDS, FLAVOURS, KEY

from agentpay import AgentPay, AsyncAgentPay, errors
from agentpay._http.clients import BoundedTransport
from agentpay._http.deadlines import BoundedBackend, StepsUntil

BODY = json.dumps(ACCOUNT).encode()
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
TIMES = 1_500
SECONDS = 0.2

# Each ends as a valid response, after far more time than the deadline.
SLOW = {
    "head": [b"HTTP/1.1 200 OK\r\nX-Slow: ", *[b"a"] * TIMES, b"\r\n", WHOLE.partition(b"\r\n")[2]],
    "103": [*[b"HTTP/1.1 103 Early Hints\r\n\r\n"] * TIMES, WHOLE],
    "body": [WHOLE[: -len(BODY)], *[bytes([byte]) for byte in BODY[:-1]] * 4, BODY],
}


OWN = (lambda _: {}, lambda _: {})
HTTP_CLIENTS: dict[str, tuple[Any, Any]] = {
    "httpx": (
        lambda verify: {"http_client": httpx.Client(verify=verify)},
        lambda verify: {"http_client": httpx.AsyncClient(verify=verify)},
    ),
    "transport": (
        lambda verify: {"transport": httpx.HTTPTransport(verify=verify)},
        lambda verify: {"transport": httpx.AsyncHTTPTransport(verify=verify)},
    ),
}
# In sync code, httpx and httpx2 read the whole head of a response with one timeout for each read.
CASES = [
    *((flavour, "own", slow) for flavour in FLAVOURS for slow in SLOW),
    *((flavour, given, "103") for flavour in BACKENDS for given in HTTP_CLIENTS),
    *(("sync", given, "body") for given in HTTP_CLIENTS),
]


def called(flavour: str, base_url: str, given: tuple[Any, Any], verify: Any, *, warm: int) -> None:
    """Read an account as often as the service responds at once, and then with a deadline."""
    settings = {"api_key": KEY, "base_url": base_url, "max_retries": 0, "timeout": 60}
    options = {"total_timeout": SECONDS}
    account_id = ACCOUNT["account_id"]
    if flavour == "sync":
        with AgentPay(**settings, **given[0](verify)) as client:
            for _ in range(warm):
                client.accounts.get(account_id)
            client.accounts.get(account_id, **options)
        return

    async def run() -> None:
        async with AsyncAgentPay(**settings, **given[1](verify)) as client:
            for _ in range(warm):
                await client.accounts.get(account_id)
            await client.accounts.get(account_id, **options)

    anyio.run(run, backend=flavour)


TRIO_WARNS = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")


@TRIO_WARNS
@pytest.mark.parametrize(("flavour", "given", "slow"), CASES)
def test_a_response_that_keeps_arriving_ends_at_the_deadline(flavour: str, given: str, slow: str) -> None:
    with Dripping(SLOW[slow], None, warm=1) as service, pytest.raises(errors.APITimeoutError) as caught:
        called(flavour, service.base_url, HTTP_CLIENTS.get(given, OWN), True, warm=1)
    assert isinstance(caught.value, TimeoutError)
    assert "within the total_timeout of the call" in str(caught.value)
    assert "with a longer total_timeout" in str(caught.value)
    assert caught.value.may_have_been_processed


@TRIO_WARNS
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_deadline_is_kept_over_tls(flavour: str, tmp_path: Any) -> None:
    tls, trusted = tls_of(tmp_path)
    verify = ssl.create_default_context(cafile=str(trusted))
    given = (
        lambda verify: {"transport": BoundedTransport(verify, httpx.Limits())},
        HTTP_CLIENTS["transport"][1],
    )
    with Dripping(SLOW["103"], tls, warm=1) as service, pytest.raises(errors.APITimeoutError) as caught:
        called(flavour, service.base_url, given, verify, warm=1)
    assert "within the total_timeout of the call" in str(caught.value)


@TRIO_WARNS
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_stream_of_events_ends_at_the_deadline(flavour: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    events = chain([head], repeat(b": still here\n\n"))
    settings: Any = {"api_key": KEY, "max_retries": 0, "timeout": 60}

    def read(base_url: str) -> None:
        with AgentPay(base_url=base_url, **settings) as client:
            list(client.events.stream(total_timeout=SECONDS))

    async def aread(base_url: str) -> None:
        async with AsyncAgentPay(base_url=base_url, **settings) as client:
            async for _ in client.events.stream(total_timeout=SECONDS):
                raise AssertionError

    with Dripping(events, None, warm=0) as service, pytest.raises(errors.APITimeoutError) as caught:
        read(service.base_url) if flavour == "sync" else anyio.run(aread, service.base_url, backend=flavour)
    assert "within the total_timeout of the call" in str(caught.value)


class Inner:
    """A network stream and backend of httpcore, whose peer takes a second for each read and write."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timeouts: list[float | None] = []

    def connect_tcp(self, *_: object, timeout: float | None = None) -> "Inner":
        self.timeouts.append(timeout)
        return self

    def start_tls(self, *_: object, timeout: float | None = None) -> "Inner":
        return self.connect_tcp(timeout=timeout)

    def read(self, size: int, timeout: float | None = None) -> bytes:
        self.write(b"", timeout)
        return b"a"[:size]

    def write(self, _: bytes, timeout: float | None = None) -> None:
        self.timeouts.append(timeout)
        self.now += 1.0

    def get_extra_info(self, info: str) -> str:
        return info


def bounded() -> tuple[Inner, BoundedBackend, StepsUntil]:
    """Return a network, the backend that a client uses for it, and timeouts of 2 s until 5 s are over."""
    inner: Any = Inner()
    steps = StepsUntil(dict.fromkeys(("connect", "read", "write"), 2.0), lambda: 5.0 - inner.now)
    return inner, BoundedBackend(inner), steps


@pytest.mark.parametrize("step", ["read", "write"])
def test_each_read_and_write_gets_the_time_left(step: str) -> None:
    inner, backend, steps = bounded()
    stream = backend.connect_tcp("host", 443, timeout=steps.get("connect"))
    stream = stream.start_tls(ssl.create_default_context(), timeout=steps.get("connect"))
    timeout = steps.get(step)
    call = partial(stream.read, 1, timeout) if step == "read" else partial(stream.write, b"a", timeout)
    for _ in range(5):
        call()
    with pytest.raises(TimeoutError):
        call()
    assert inner.timeouts == [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]
    assert stream.get_extra_info("socket") == "socket"


def test_a_peer_that_takes_a_request_slowly_ends_at_the_deadline_if_there_is_one() -> None:
    inner, backend, steps = bounded()
    stream = backend.connect_tcp("host", 443, timeout=7.0)
    stream.write(bytes(100_000), 3.0)
    stream.read(1, None)
    assert inner.timeouts == [7.0, 3.0, None]
    inner.now = 0.0
    with pytest.raises(TimeoutError):
        stream.write(bytes(100_000), steps.get("write"))
    assert inner.now == 5.0
