"""One JSON-RPC call over a real port: every way to fail is one error, in time, and says no key."""

import asyncio
import gzip
import logging
import re
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import json_rpc_server
import pytest
from json_rpc_server import Answer

from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.chain.rpc import client as client_module
from agentpay_server.chain.rpc.client import RpcClient, RpcRefusalError

pytestmark = pytest.mark.anyio


class Script:
    """Returns the responses of a list, and the last one forever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []

    async def __call__(self, body: bytes) -> Answer:
        self.requests.append(body)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def client_of(script: json_rpc_server.Handler, timeout_seconds: float = 5) -> AsyncIterator[RpcClient]:
    async with json_rpc_server.serving(script) as url:
        client = RpcClient(f"{url}/SECRET", timeout_seconds=timeout_seconds, max_connections=2)
        try:
            yield client
        finally:
            await client.close()


async def test_a_result_is_returned_unchanged() -> None:
    script = Script(json_rpc_server.result({"value": [1, None]}))
    async with client_of(script) as client:
        assert await client.call("getThing", "a", {"b": None}) == {"value": [1, None]}
    assert b'"params":["a",' in script.requests[0]


async def test_a_json_rpc_error_is_raised_with_its_code_and_data() -> None:
    async with client_of(Script(json_rpc_server.error(-32002, "no " * 500, {"err": "X"}))) as client:
        with pytest.raises(RpcRefusalError, match="error -32002: no no") as caught:
            await client.call("sendTransaction")
    assert (caught.value.code, caught.value.data) == (-32002, {"err": "X"})
    assert len(str(caught.value)) < 400


BROKEN: dict[str, Answer] = {
    "hung up": None,
    "not json": json_rpc_server.ok(b"<html>"),
    "no text": json_rpc_server.ok(b"\xff\xfe"),
    "nothing": json_rpc_server.ok(b""),
    "no envelope": json_rpc_server.ok(b"[]"),
    "half an envelope": json_rpc_server.ok(b'{"jsonrpc": "2.0", "id": 1}'),
    "both": json_rpc_server.ok(
        b'{"jsonrpc": "2.0", "id": 1, "result": 1, "error": {"code": 1, "message": ""}}'
    ),
    "an error that is none": json_rpc_server.ok(b'{"jsonrpc": "2.0", "id": 1, "error": "no"}'),
    "deep": json_rpc_server.ok(b"[" * 100_000),
    "a redirection": (302, {"location": "http://127.0.0.1:1"}, b""),
    "too many requests": (429, {}, b""),
    "unavailable": (503, {"retry-after": "Fri, 20 Nov 2026 00:00:00 GMT"}, b""),
    "a fault": (500, {}, b"oops"),
    "unauthorized": (401, {}, b""),
    "a false encoding": (200, {"content-encoding": "gzip"}, b"not gzip"),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_every_other_response_is_unavailable_without_showing_the_key(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(BROKEN[fault])
    with caplog.at_level(logging.INFO):
        async with client_of(script) as client:
            with pytest.raises(ChainUnreachableError) as caught:
                await client.call("getThing")
    assert not isinstance(caught.value, RpcRefusalError)
    assert caught.value.__context__ is None
    assert "SECRET" not in str(caught.value) + caplog.text
    assert len(script.requests) == 1  # Nothing is sent twice.


@cache
def zeros(times: int) -> bytes:
    """Compress 128 MiB of zeros, as often over as asked."""
    return gzip.compress(zeros(times - 1) if times > 1 else bytes(128 * 2**20), 9)


@pytest.mark.parametrize(
    ("coding", "times", "problem", "most_mebibytes"),
    [("gzip, gzip", 2, "is compressed 2 times over", 4), ("gzip", 1, "is larger than", 40)],
)
async def test_a_compressed_reply_is_not_expanded_beyond_the_limit(
    coding: str, times: int, problem: str, most_mebibytes: int
) -> None:
    content = zeros(times)
    async with client_of(Script((200, {"content-encoding": coding}, content))) as client:
        tracemalloc.start()
        try:
            with pytest.raises(ChainUnreachableError, match=problem):
                await client.call("getThing")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < most_mebibytes * 2**20


async def test_a_reply_above_the_size_limit_is_refused() -> None:
    script = Script(json_rpc_server.ok(b" " * (client_module.BODY_MAX_BYTES + 1)))
    async with client_of(script) as client:
        with pytest.raises(ChainUnreachableError, match="larger than 16777216 bytes"):
            await client.call("getThing")


async def test_a_compressed_reply_is_accepted() -> None:
    plain = json_rpc_server.result([1, 2])
    assert plain is not None
    async with client_of(Script((200, {"content-encoding": "gzip"}, gzip.compress(plain[2])))) as client:
        assert await client.call("getThing") == [1, 2]


async def test_the_url_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with client_of(Script(json_rpc_server.result(1))) as client:
            await client.call("getThing")
    assert "SECRET" not in caplog.text


async def test_an_unreachable_node_is_unavailable() -> None:
    async with json_rpc_server.serving(Script(None)) as url:
        pass
    client = RpcClient(url, timeout_seconds=5, max_connections=1)
    with pytest.raises(ChainUnreachableError, match="getThing: ConnectError"):
        await client.call("getThing")
    await client.close()
    with pytest.raises(ChainUnreachableError):
        await client.call("getThing")


async def test_a_node_that_does_not_respond_times_out() -> None:
    async def silent(body: bytes) -> Answer:
        await asyncio.Event().wait()
        return None

    async with client_of(silent, timeout_seconds=0.2) as client:
        # The third waits for a connection, which counts as well.
        calls = [client.call("getThing") for _ in range(3)]
        async with asyncio.timeout(120):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ChainUnreachableError] * 3


async def test_a_node_that_responds_byte_by_byte_times_out() -> None:
    async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with json_rpc_server.listening(dripping) as url:
        client = RpcClient(url, timeout_seconds=0.3, max_connections=1)
        async with asyncio.timeout(120):
            with pytest.raises(ChainUnreachableError, match=re.escape("no answer within 0.3 s")):
                await client.call("getThing")
        await client.close()


async def test_calls_succeed_again_after_an_outage() -> None:
    async with client_of(Script(None, (500, {}, b""), json_rpc_server.result("ok"))) as client:
        for _ in range(2):
            with pytest.raises(ChainUnreachableError):
                await client.call("getThing")
        assert await client.call("getThing") == "ok"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0), ("3", 3), ("86400", 10), ("9" * 400, 1), ("", 1), ("-5", 1), ("soon", 1), ("\u0663", 1)],
)
async def test_retry_after_is_bounded(header: str, seconds: float) -> None:
    assert client_module._retry_after_seconds(header) == seconds


@pytest.mark.parametrize("status", [429, 503])
async def test_a_rate_limited_node_is_not_called_before_retry_after(status: int) -> None:
    script = Script((status, {"retry-after": "2"}, b""), json_rpc_server.result("ok"))
    async with client_of(script) as client:
        with pytest.raises(ChainUnreachableError, match=f"status {status}"):
            await client.call("getThing")
        for _ in range(5):
            with pytest.raises(ChainUnreachableError, match="fewer requests"):
                await client.call("getThing")
        assert len(script.requests) == 1
        async with asyncio.timeout(120):
            while True:
                try:
                    assert await client.call("getThing") == "ok"
                    break
                except ChainUnreachableError:
                    await asyncio.sleep(0.1)
