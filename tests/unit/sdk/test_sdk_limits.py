"""Limits of a client: connections, time spent waiting for one, and memory for a response."""

import gzip
import re
import threading
import time
import tracemalloc
import zlib
from functools import cache, partial

import anyio
import httpcore
import pytest
from http_service import http
from hypothesis import given
from hypothesis import strategies as st
from sdk_world import BALANCE, KEY, answer

from agentpay import AgentPay, errors
from agentpay.contract.bodies import Body, BodyError

# --- Connections ------------------------------------------------------------------------------------------


class Crowd:
    """As many calls at once as a client has connections, of either client: the sync one is called in threads.

    A repeat is allowed. Of a connection that it has just handed to another thread, httpcore may see that it
    is idle, and then that bytes have come. They are the response, and it closes the connection as a dead one.
    """

    def __init__(self, caller, service, group):
        caller.connect(None, base_url=service.base_url, timeout=60, max_retries=1)
        caller.client._http.monotonic, caller.client._http.sleep = time.monotonic, time.sleep
        if caller.is_async:
            caller.client._http.sleep = anyio.sleep
        self.caller, self.service, self.group = caller, service, group
        self.answered = []
        self._threads = anyio.CapacityLimiter(1000)

    async def balance(self, name, **options):
        client = self.caller.client
        if self.caller.is_async:
            return await client.accounts.balance(name, **options)
        ask = partial(client.accounts.balance, name, **options)
        return await anyio.to_thread.run_sync(ask, limiter=self._threads)

    async def _ask(self, name):
        balance = await self.balance(name)
        self.answered.append((balance.account_id, name))

    async def fill(self, count):
        """Start as many calls; return once all connections are in use."""
        for number in range(count):
            self.group.start_soon(self._ask, f"acct_{number}")
        await anyio.to_thread.run_sync(self.service.wait_until_asked, CONNECTIONS_MAX)


def crowded(caller, service, work):
    """Run `work(crowd)` on a client that is closed afterwards; return what was answered."""
    crowds = []

    async def main():
        async with anyio.create_task_group() as group:
            crowds.append(Crowd(caller, service, group))
            await work(crowds[0])
        closed = caller.client.close()
        if caller.is_async:
            await closed

    caller.run(main)
    caller.client = None
    assert all(told == name for told, name in crowds[0].answered)
    return crowds[0].answered


@pytest.mark.unmeasured
def test_concurrent_calls_share_a_bounded_number_of_connections(service, caller, monkeypatch):
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

    async def work(crowd):
        await crowd.fill(3 * CONNECTIONS_MAX)
        release()

    assert len(crowded(caller, service, work)) == 3 * CONNECTIONS_MAX
    assert service.most == CONNECTIONS_MAX, "as many at once as may be, and never more"
    assert most == CONNECTIONS_MAX


def test_a_call_without_a_free_connection_times_out_unsent_and_takes_none_with_it(service, caller):
    release = service.hold()
    late = []

    async def work(crowd):
        await crowd.fill(CONNECTIONS_MAX)
        for timeout in (0.3, *[0.01] * 4):
            with pytest.raises(errors.APITimeoutError) as caught:
                await crowd.balance("acct_late", timeout=timeout, max_retries=0)
            late.append(caught.value)
            if caller.is_async:
                with anyio.move_on_after(0.01):
                    await crowd.balance("acct_cancelled")
        release()
        await crowd.fill(CONNECTIONS_MAX)

    assert len(crowded(caller, service, work)) == 2 * CONNECTIONS_MAX
    assert not any(error.may_have_been_processed for error in late)
    assert re.match(
        r"accounts\.balance waited for a free connection until its timeout of 0\.3 s: all 100 are busy\. "
        r"The request was not sent\.",
        str(late[0]),
    )
    assert not any("acct_late" in asked.path or "acct_cancelled" in asked.path for asked in service.asked)


@pytest.mark.parametrize(("waited", "is_sent"), [(7.0, True), (9.5, False)])
def test_waiting_for_a_connection_counts_against_the_timeout(service, caller, waited, is_sent, monkeypatch):
    """The exchange may take the remaining time; a request is not sent with almost none left."""
    timeouts = []

    def seen(pool, request):
        timeouts.append(request.extensions["timeout"])
        raise httpcore.ReadTimeout

    async def aseen(pool, request):
        return seen(pool, request)

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", seen)
    monkeypatch.setattr(httpcore.AsyncConnectionPool, "handle_async_request", aseen)
    caller.connect(None, base_url=service.base_url, max_retries=0)
    # A clock that advances with every reading simulates a wait.
    looks = iter(range(100))
    caller.client._http.monotonic = lambda: next(looks) * waited
    with pytest.raises(errors.APITimeoutError) as caught:
        caller(lambda c: c.accounts.balance("acct_a", timeout=10))
    assert caught.value.may_have_been_processed is is_sent
    if is_sent:
        assert {round(seconds, 6) for seconds in timeouts[0].values()} == {3.0}
        assert "within 10 s, of which 7.0 s passed before a connection was free" in str(caught.value)
    else:
        assert not timeouts
        assert "waited for a free connection" in str(caught.value)


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


@pytest.mark.parametrize(
    ("coding", "times", "problem", "most"),
    [
        ("gzip, gzip", 2, "is compressed 2 times over", 4 * MIB),
        ("gzip,x-gzip , identity,gzip", 3, "is compressed 3 times over", 4 * MIB),
        ("gzip", 1, f"is larger than {BODY_MAX_BYTES} bytes", 2.5 * BODY_MAX_BYTES),
    ],
)
# trio says so of a body that is not read to its end.
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
def test_a_compressed_response_is_not_expanded_beyond_the_limit(
    service, caller, coding, times, problem, most
):
    bombs = [http(answer(200, BALANCE).content), http(zeros(128, times), f"Content-Encoding: {coding}")]
    assert len(bombs[1]) < 140_000

    async def respond(_asked):
        return bombs.pop(0)

    service.respond = respond
    caller.connect(None, base_url=service.base_url, max_retries=0)
    caller(lambda c: c.accounts.balance("acct_a"))
    tracemalloc.start()
    try:
        with pytest.raises(errors.ResponseValidationError, match=problem) as caught:
            caller(lambda c: c.accounts.balance("acct_a"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.status_code == 200
    assert peak < most


def test_only_gzip_which_was_requested_is_accepted(service):
    codings = []

    async def respond(_asked):
        content = answer(200, BALANCE).content
        coding = codings[-1]
        return http(
            gzip.compress(content) if "gzip" in coding.lower() else content, f"Content-Encoding: {coding}"
        )

    service.respond = respond
    with AgentPay(api_key=KEY, base_url=service.base_url) as client:
        for coding in ("gzip", "x-gzip", " GZIP ", "identity, gzip"):
            codings.append(coding)
            assert client.accounts.balance("acct_a").account_id == "acct_a"
        for coding in ("br", "zstd", "deflate", "compress", "x" * 500):
            codings.append(coding)
            said = f"compressed with '{coding[:32]}', which was not requested"
            with pytest.raises(errors.ResponseValidationError, match=said):
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
    coding = "gzip" if is_compressed else ""
    if size <= 100:
        assert fed(sent, coding, 100, iter(sizes)) == bytes(size)
    else:
        with pytest.raises(BodyError, match="is larger than 100 bytes"):
            fed(sent, coding, 100, iter(sizes))


@given(st.binary(), st.lists(st.integers(1, 50)), st.integers(1, 30))
def test_a_body_that_is_not_gzip_or_not_whole_or_goes_on_is_refused(content, sizes, missing):
    whole = gzip.compress(b"a body of some length")
    with pytest.raises(BodyError, match="truncated"):
        fed(whole[:-missing], "gzip", 1000, iter(()))
    with pytest.raises(BodyError, match="larger than 1000 bytes"):
        fed(whole + bytes(1000), "gzip", 1000, iter(sizes))
    if content:
        with pytest.raises(BodyError, match="cannot be decompressed"):
            fed(content, "gzip", 1000, iter(sizes))
    else:
        assert fed(content, "gzip", 1000, iter(sizes)) == b""
