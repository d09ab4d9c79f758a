"""Limits of a client: connections, time spent waiting for one, and memory for a response."""

import gzip
import re
import threading
import tracemalloc
import zlib
from contextlib import asynccontextmanager
from functools import cache

import anyio
import httpcore
import pytest
from http_service import http
from hypothesis import given
from hypothesis import strategies as st
from sdk_world import BALANCE, KEY, Caller, answer

from agentpay import AgentPay, AsyncAgentPay, errors
from agentpay.contract.bodies import Body, BodyError

FLAVOURS = pytest.mark.parametrize("kind", ["sync", "asyncio", "trio"])


# --- Connections ------------------------------------------------------------------------------------------


@asynccontextmanager
async def calling(kind, service, **options):
    """Yield a function that awaits a call, of either client: the sync one is called in threads."""
    settings = {"api_key": KEY, "base_url": service.base_url, "max_retries": 0, **options}
    if kind != "sync":
        async with AsyncAgentPay(**settings) as client:
            yield lambda call: call(client)
        return
    threads = anyio.CapacityLimiter(1000)
    with AgentPay(**settings) as client:
        yield lambda call: anyio.to_thread.run_sync(call, client, limiter=threads)


def run(kind, work):
    anyio.run(work, backend="trio" if kind == "trio" else "asyncio")


@pytest.mark.unmeasured
@FLAVOURS
def test_concurrent_calls_share_a_bounded_number_of_connections(service, kind, monkeypatch):
    """None waits within the HTTP library, whose bookkeeping takes quadratic time."""
    within = most = 0
    counting = threading.Lock()

    def count(by):
        nonlocal within, most
        with counting:
            within += by
            most = max(most, within)

    sync, asynchronous = (
        httpcore.ConnectionPool.handle_request,
        httpcore.AsyncConnectionPool.handle_async_request,
    )

    def counted(pool, request):
        count(1)
        try:
            return sync(pool, request)
        finally:
            count(-1)

    async def acounted(pool, request):
        count(1)
        try:
            return await asynchronous(pool, request)
        finally:
            count(-1)

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", counted)
    monkeypatch.setattr(httpcore.AsyncConnectionPool, "handle_async_request", acounted)
    release = service.hold()
    answered = []

    async def main():
        # A repeat is allowed: with many threads, httpcore can take a response that has just come for a closed
        # connection, and close it.
        options = {"timeout": 60, "max_retries": 1}
        async with calling(kind, service, **options) as call, anyio.create_task_group() as group:

            async def ask(number):
                balance = await call(lambda client: client.accounts.balance(f"acct_{number}"))
                answered.append((balance.account_id, number))

            for number in range(3 * CONNECTIONS_MAX):
                group.start_soon(ask, number)
            await anyio.to_thread.run_sync(service.wait_until_asked, CONNECTIONS_MAX)
            release()

    run(kind, main)
    assert len(answered) == 3 * CONNECTIONS_MAX
    assert all(told == f"acct_{number}" for told, number in answered)
    assert service.most == CONNECTIONS_MAX, "as many at once as may be, and never more"
    assert most == CONNECTIONS_MAX


@FLAVOURS
def test_a_call_without_a_free_connection_times_out_unsent(service, kind):
    release = service.hold()
    late, answered = [], []

    async def main():
        async with calling(kind, service, timeout=60) as call, anyio.create_task_group() as group:

            async def ask(number):
                answered.append(await call(lambda client: client.accounts.balance(f"acct_{number}")))

            for number in range(CONNECTIONS_MAX):
                group.start_soon(ask, number)
            await anyio.to_thread.run_sync(service.wait_until_asked, CONNECTIONS_MAX)
            try:
                await call(lambda client: client.accounts.balance("acct_late", timeout=0.3))
            except errors.APITimeoutError as error:
                late.append(error)
            release()

    run(kind, main)
    (error,) = late
    assert not error.may_have_been_processed
    assert re.match(
        r"accounts\.balance waited for a free connection until its timeout of 0\.3 s: all 100 are busy\. "
        r"The request was not sent\.",
        str(error),
    )
    assert len(answered) == CONNECTIONS_MAX
    assert not any("acct_late" in asked.path for asked in service.asked)


@FLAVOURS
@pytest.mark.parametrize(("waited", "is_sent"), [(7.0, True), (9.5, False)])
def test_waiting_for_a_connection_counts_against_the_timeout(service, kind, waited, is_sent, monkeypatch):
    """The exchange may take the remaining time; a request is not sent with almost none left."""
    timeouts = []

    def seen(pool, request):
        timeouts.append(request.extensions["timeout"])
        raise httpcore.ReadTimeout

    async def aseen(pool, request):
        return seen(pool, request)

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", seen)
    monkeypatch.setattr(httpcore.AsyncConnectionPool, "handle_async_request", aseen)
    caller = Caller(AgentPay) if kind == "sync" else Caller(AsyncAgentPay, kind)
    caller.connect(None, base_url=service.base_url, max_retries=0)
    # A clock that advances with every reading simulates a wait.
    looks = iter(range(100))
    caller.client._http.monotonic = lambda: next(looks) * waited
    with pytest.raises(errors.APITimeoutError) as caught:
        caller(lambda c: c.accounts.balance("acct_a", timeout=10))
    caller(lambda c: c.close())
    assert caught.value.may_have_been_processed is is_sent
    if is_sent:
        assert {round(seconds, 6) for seconds in timeouts[0].values()} == {3.0}
        assert "within 10 s, of which 7.0 s passed before a connection was free" in str(caught.value)
    else:
        assert not timeouts
        assert "waited for a free connection" in str(caught.value)


@FLAVOURS
def test_a_call_cancelled_while_waiting_takes_no_connection_with_it(service, kind):
    """Cancelled or timed out, it takes no connection with it."""
    release = service.hold()
    answered = []

    async def main():
        async with calling(kind, service, timeout=60) as call, anyio.create_task_group() as group:

            async def ask(number):
                answered.append(await call(lambda client: client.accounts.balance(f"acct_{number}")))

            for number in range(CONNECTIONS_MAX):
                group.start_soon(ask, number)
            await anyio.to_thread.run_sync(service.wait_until_asked, CONNECTIONS_MAX)
            for _ in range(5):
                with pytest.raises(errors.APITimeoutError):
                    await call(lambda client: client.accounts.balance("acct_late", timeout=0.01))
                if kind != "sync":
                    with anyio.move_on_after(0.01):
                        await call(lambda client: client.accounts.balance("acct_cancelled"))
            release()
            for number in range(CONNECTIONS_MAX):
                group.start_soon(ask, number)

    run(kind, main)
    assert len(answered) == 2 * CONNECTIONS_MAX


# --- Memory -----------------------------------------------------------------------------------------------

MIB = 2**20
BODY_MAX_BYTES, CONNECTIONS_MAX = 16 * MIB, 100


@cache
def zeros(mebibytes, times):
    """Compress zeros, as often over as asked."""
    if times > 1:
        return gzip.compress(zeros(mebibytes, times - 1), 9)
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([compressor.compress(bytes(MIB)) for _ in range(mebibytes)] + [compressor.flush()])


@FLAVOURS
@pytest.mark.parametrize(
    ("coding", "times", "problem", "most"),
    [
        ("gzip, gzip", 2, "is compressed 2 times over", 4 * MIB),
        ("gzip,x-gzip , identity,gzip", 3, "is compressed 3 times over", 4 * MIB),
        ("gzip", 1, f"is larger than {BODY_MAX_BYTES} bytes", 2.5 * BODY_MAX_BYTES),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:Async generator:ResourceWarning"
)  # trio, of a body that is not read to its end
def test_a_compressed_response_is_not_expanded_beyond_the_limit(service, kind, coding, times, problem, most):
    bomb = http(zeros(128, times), f"Content-Encoding: {coding}")
    assert len(bomb) < 140_000

    async def respond(_asked):
        return bomb

    async def warm_up(_asked):
        return http(answer(200, BALANCE).content)

    caller = Caller(AgentPay) if kind == "sync" else Caller(AsyncAgentPay, kind)
    caller.connect(None, base_url=service.base_url, max_retries=0)
    service.respond = warm_up
    caller(lambda c: c.accounts.balance("acct_a"))
    service.respond = respond
    tracemalloc.start()
    try:
        with pytest.raises(errors.ResponseValidationError, match=problem) as caught:
            caller(lambda c: c.accounts.balance("acct_a"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        caller(lambda c: c.close())
    assert caught.value.status_code == 200
    assert peak < most


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", " GZIP ", "identity, gzip"])
def test_a_gzip_response_is_accepted(service, coding):
    async def respond(_asked):
        return http(gzip.compress(answer(200, BALANCE).content), f"Content-Encoding: {coding}")

    service.respond = respond
    with AgentPay(api_key=KEY, base_url=service.base_url) as client:
        assert client.accounts.balance("acct_a").account_id == "acct_a"


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate", "compress", "x" * 500])
def test_an_unrequested_content_encoding_is_refused(service, coding):
    async def respond(_asked):
        return http(b"anything", f"Content-Encoding: {coding}")

    service.respond = respond
    with (
        AgentPay(api_key=KEY, base_url=service.base_url) as client,
        pytest.raises(
            errors.ResponseValidationError, match=f"compressed with '{coding[:32]}', which was not requested"
        ),
    ):
        client.accounts.balance("acct_a")


def fed(content, coding, limit, sizes):
    body = Body(coding, limit=limit)
    while content:
        size = next(sizes, len(content))
        body.feed(content[:size])
        content = content[size:]
    return body.finish()


@given(st.binary(max_size=2000), st.lists(st.integers(1, 50)), st.booleans())
def test_a_body_is_decoded_whatever_its_chunks(content, sizes, is_compressed):
    sent = gzip.compress(content) if is_compressed else content
    coding = "gzip" if is_compressed else ""
    assert fed(sent, coding, 3000, iter(sizes)) == content


@given(st.integers(0, 200), st.lists(st.integers(1, 50)), st.booleans())
def test_a_body_one_byte_over_the_limit_is_refused(size, sizes, is_compressed):
    sent = gzip.compress(bytes(size)) if is_compressed else bytes(size)
    limit = 100
    coding = "gzip" if is_compressed else ""
    if size <= limit:
        assert fed(sent, coding, limit, iter(sizes)) == bytes(size)
    else:
        with pytest.raises(BodyError, match="is larger than 100 bytes"):
            fed(sent, coding, limit, iter(sizes))


@given(st.binary(), st.lists(st.integers(1, 50)))
def test_a_body_that_is_not_gzip_is_refused(content, sizes):
    if content:
        with pytest.raises(BodyError, match="cannot be decompressed"):
            fed(content, "gzip", 1000, iter(sizes))
    else:
        assert fed(content, "gzip", 1000, iter(sizes)) == b""


@given(st.integers(1, 30))
def test_truncated_gzip_is_refused(missing):
    with pytest.raises(BodyError, match="truncated"):
        fed(gzip.compress(b"a body of some length")[:-missing], "gzip", 1000, iter(()))


def test_data_after_the_end_of_gzip_is_bounded():
    body = Body("gzip", limit=1000)
    body.feed(gzip.compress(b"all"))
    for _ in range(9):
        body.feed(bytes(100))
    with pytest.raises(BodyError, match="larger than 1000 bytes"):
        body.feed(bytes(100))
