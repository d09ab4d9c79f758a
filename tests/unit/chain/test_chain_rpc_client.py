"""One JSON-RPC call over a real port: every way to fail is one error, in time, and says no key."""

import asyncio
import base64
import gc
import gzip
import json
import logging
import re
import socket
import ssl
import tempfile
import tracemalloc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache

import json_rpc_server
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from json_rpc_server import Answer

from agentpay_server.chain.clusters import ClusterRefusedError
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.plugins.cluster import client as client_module
from agentpay_server.plugins.cluster.client import RpcClient, RpcRefusalError

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


@pytest.fixture(autouse=True)
def _numbers_from_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.secrets, "randbits", lambda _: 1)


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


async def test_a_json_rpc_error_is_raised_with_its_code_and_data() -> None:
    async with client_of(Script(json_rpc_server.error(-32002, "no " * 500, {"err": "X"}))) as client:
        with pytest.raises(RpcRefusalError, match="error -32002: no no") as caught:
            await client.call("sendTransaction")
    assert (caught.value.code, caught.value.data) == (-32002, {"err": "X"})
    assert len(str(caught.value)) < 400
    unnumbered = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "no"}}'
    async with client_of(Script(json_rpc_server.ok(unnumbered))) as client:
        with pytest.raises(RpcRefusalError, match="error -32700: no"):
            await client.call("getThing")


async def test_results_are_returned_unchanged_also_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    plain = b'{"jsonrpc": "2.0", "id": 3, "result": {"value": [1, null]}}'
    script = Script(
        None,
        (500, {}, b""),
        json_rpc_server.ok(plain),
        (200, {"content-encoding": "gzip"}, gzip.compress(plain.replace(b'"id": 3', b'"id": 4'))),
    )
    with caplog.at_level(logging.INFO):
        async with client_of(script) as client:
            for _ in range(2):
                with pytest.raises(ChainUnreachableError):
                    await client.call("getThing")
            for _ in range(2):
                assert await client.call("getThing", "a", {"b": None}) == {"value": [1, None]}
    assert b'"params":["a",' in script.requests[2]
    assert "SECRET" not in caplog.text


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


@pytest.mark.parametrize("number", [b"2", b'"1"', b"null", b"[]"])
async def test_the_response_to_another_request_is_refused(number: bytes) -> None:
    script = Script(json_rpc_server.ok(b'{"jsonrpc": "2.0", "id": ' + number + b', "result": 1}'))
    async with client_of(script) as client:
        with pytest.raises(ChainUnreachableError, match="getThing: the answer is that to another request"):
            await client.call("getThing")


async def test_the_numbers_of_two_clients_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    script = Script(json_rpc_server.result("ok"))
    for _ in range(2):
        async with client_of(script) as client:
            await client.call("getThing")
    first, second = (json.loads(request)["id"] for request in script.requests)
    assert first != second


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]
"""Responds to the request of a number on one connection."""


@asynccontextmanager
async def talking(talk: Talk, *, path: str = "") -> AsyncIterator[tuple[RpcClient, list[int]]]:
    """Yield a client of a node, and the numbers of requests of each of its connections."""
    counts: list[int] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(counts)
        counts.append(0)
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            request = json.loads(
                await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
            )
            counts[place] += 1
            await talk(reader, writer, request["id"])

    async with json_rpc_server.listening(converse) as url:
        client = RpcClient(url + path, timeout_seconds=30, max_connections=2)
        yield client, counts
        await client.close()


def reply_to(number: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": number}).encode()


def sized(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize("is_closed", [False, True])
async def test_calls_share_the_connections_that_a_node_keeps(is_closed: bool) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        if not is_closed:
            writer.write(sized(reply_to(number)))
            return
        writer.write(sized(reply_to(number), "connection: close"))
        writer.close()

    async with talking(talk) as (client, counts):
        assert [await client.call("getThing") for _ in range(3)] == [1, 2, 3]
        assert counts == ([1, 1, 1] if is_closed else [3])
        found = await asyncio.gather(*(client.call("getThing") for _ in range(10)))
    assert sorted(map(str, found)) == sorted(map(str, range(4, 14)))
    assert (len(counts) == 2, sum(counts)) == (not is_closed, 13)


async def test_a_chunked_reply_is_accepted() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for byte in reply_to(number):
            writer.write(b"1\r\n" + bytes([byte]) + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with talking(talk) as (client, counts):
        assert [await client.call("getThing") for _ in range(2)] == [1, 2]
    assert counts == [2]


async def test_a_response_to_another_request_ends_its_connection() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(sized(reply_to(number)) + sized(reply_to(99)))

    async with talking(talk) as (client, counts):
        assert await client.call("getThing") == 1
        with pytest.raises(ChainUnreachableError, match="the answer is that to another request"):
            await client.call("getThing")
        assert await client.call("getThing") == 3
    assert len(counts) == 2


async def test_a_cancelled_call_does_not_leave_its_response_to_the_next() -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        is_asked.set()
        await may_answer.wait()
        writer.write(sized(reply_to(number)))

    async with talking(talk) as (client, counts):
        cancelled = asyncio.ensure_future(client.call("getThing"))
        await is_asked.wait()
        cancelled.cancel()
        may_answer.set()
        assert await client.call("getThing") == 2
    assert counts == [1, 1]


MALFORMED = {
    "truncated": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5_000,
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "a false chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("fault", MALFORMED)
async def test_malformed_http_is_unavailable(fault: str) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: int) -> None:
        writer.write(MALFORMED[fault])
        writer.close()

    async with talking(talk, path="/SECRET") as (client, _):
        with pytest.raises(ChainUnreachableError, match=r"getThing: .*Error") as caught:
            await client.call("getThing")
    assert caught.value.__context__ is None
    assert "SECRET" not in str(caught.value)


async def test_the_path_query_and_user_of_the_url_are_sent() -> None:
    heads: list[bytes] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(sized(reply_to(1)))

    async with json_rpc_server.listening(converse) as url:
        host = url.removeprefix("http://")
        client = RpcClient(f"http://me:p%40ss@{host}/v2/k y?api-key=1", timeout_seconds=30, max_connections=1)
        assert await client.call("getThing") == 1
        await client.close()
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "POST /v2/k%20y?api-key=1 HTTP/1.1"
    assert f"Host: {host}" in lines
    assert "Authorization: Basic " + base64.b64encode(b"me:p@ss").decode() in lines


class Proxy:
    """An HTTP proxy that sends everything to one place. `refuses` refuses tunnels."""

    def __init__(self, port: int, *, refuses: bool = False) -> None:
        self.heads: list[bytes] = []
        self._port, self._refuses = port, refuses

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if self._refuses:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        there = await asyncio.open_connection("127.0.0.1", self._port)
        if head.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            there[1].write(head)
        try:
            await asyncio.gather(_forwarded(reader, there[1]), _forwarded(there[0], writer))
        finally:
            there[1].close()


async def _forwarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with json_rpc_server.serving(Script(json_rpc_server.result("ok"))) as url:
        proxy = Proxy(_port(url))
        async with json_rpc_server.listening(proxy.converse) as proxy_url:
            monkeypatch.setenv("http_proxy", proxy_url.replace("http://", "http://me:secret@"))
            client = RpcClient("http://node.example:8899/key", timeout_seconds=30, max_connections=1)
            assert await client.call("getThing") == "ok"
            await client.close()
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            client = RpcClient(url, timeout_seconds=30, max_connections=1)
            assert await client.call("getThing") == "ok"
            await client.close()
    lines = proxy.heads[0].decode().split("\r\n")
    assert lines[0] == "POST http://node.example:8899/key HTTP/1.1"
    assert "Proxy-Authorization: Basic " + base64.b64encode(b"me:secret").decode() in lines
    assert len(proxy.heads) == 1


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("HTTPS_PROXY", "socks5://127.0.0.1:1", "HTTPS_PROXY must be the address of a proxy"),
        ("all_proxy", "http://me:se:cret@[::1", "all_proxy must be the address of a proxy"),
        (
            "SSL_CERT_FILE",
            "/no/such.pem",
            "'/no/such.pem', which SSL_CERT_FILE names, cannot be read: No such",
        ),
    ],
)
def test_an_unusable_proxy_or_certificate_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, problem: str
) -> None:
    client_module._ssl_context.cache_clear()
    monkeypatch.setenv(variable, value)
    with pytest.raises(ClusterRefusedError, match=re.escape(problem)) as caught:
        RpcClient("https://node.example:8899", timeout_seconds=30, max_connections=1)
    assert "cret" not in str(caught.value)


def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS of a server named node.example, and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node.example")])
    day = timedelta(days=1)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("node.example")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + private)
        file.flush()
        server.load_cert_chain(file.name)
    return server, ssl.create_default_context(cadata=certificate.decode())


@pytest.mark.parametrize("refuses", [False, True])
async def test_https_goes_through_a_tunnel_of_the_proxy(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    server_tls, client_tls = _contexts()
    monkeypatch.setattr(client_module, "_ssl_context", lambda: client_tls)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in (1, 2):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
            writer.write(sized(reply_to(number)))
        writer.close()

    node = await asyncio.start_server(converse, "127.0.0.1", 0, ssl=server_tls)
    proxy = Proxy(node.sockets[0].getsockname()[1], refuses=refuses)
    async with json_rpc_server.listening(proxy.converse) as proxy_url:
        monkeypatch.setenv("https_proxy", proxy_url)
        client = RpcClient("https://node.example/key", timeout_seconds=30, max_connections=1)
        if refuses:
            with pytest.raises(ChainUnreachableError, match=r"the proxy refuses a connection with .* 407"):
                await client.call("getThing")
        else:
            assert [await client.call("getThing") for _ in range(2)] == [1, 2]
        await client.close()
    node.close()
    assert [head.split(b"\r\n")[0] for head in proxy.heads] == [b"CONNECT node.example:443 HTTP/1.1"]


async def test_a_certificate_of_another_name_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    server_tls, client_tls = _contexts()
    monkeypatch.setattr(client_module, "_ssl_context", lambda: client_tls)
    node = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=server_tls)
    port = node.sockets[0].getsockname()[1]
    client = RpcClient(f"https://127.0.0.1:{port}/SECRET", timeout_seconds=30, max_connections=1)
    with pytest.raises(ChainUnreachableError, match="getThing: ConnectError: SSLCertVerificationError"):
        await client.call("getThing")
    await client.close()
    node.close()


@pytest.mark.parametrize("addresses", [1, 2])
async def test_a_connection_whose_request_is_cancelled_is_closed(
    addresses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with json_rpc_server.listening(read) as url:
        there = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", _port(url)))

        async def resolved(*_: object, **__: object) -> list[object]:
            return [there] * addresses

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        gc.collect()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", ResourceWarning)
            for steps in range(25):
                connecting = asyncio.create_task(
                    client_module._Network().connect_tcp("localhost", _port(url))
                )
                for _ in range(steps):
                    await asyncio.sleep(0)
                connecting.cancel()
                with suppress(asyncio.CancelledError):
                    await (await connecting).aclose()
                del connecting
                await asyncio.sleep(0)
            gc.collect()
    assert [str(warning.message) for warning in found] == []
