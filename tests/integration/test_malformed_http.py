"""A malformed request gets a normal error response: in JSON, with a request id, once (interface E1)."""

import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import GET_HEALTH, Answered, Peer

from agentpay_server import AgentPayServer, Settings

HOST = b"Host: localhost\r\n"
MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # TLS to a port without
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00\x00\x00\x00",
    b"nonsense\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/0.9\r\n" + HOST + b"\r\n",
    b"GET / HTTP/3.0\r\n" + HOST + b"\r\n",
    b"GET / FTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET / / HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"No colon\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"Sp ace: 1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"Space : 1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"Control: \x00\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b": nameless\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0x1\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 70_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"X%d: y\r\n" % n for n in range(7_000)) + b"\r\n",
    b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 1_000_000,
    b"GET /" + b"x" * 1_000_000,
]


@pytest.fixture(scope="module")
def listening() -> Iterator[AgentPayServer]:
    """A server with a port."""
    with AgentPayServer() as server:
        server.listen()
        yield server


@pytest.fixture(scope="module")
def hasty() -> Iterator[AgentPayServer]:
    """A server with a port, which gives up a peer that says no more at once."""
    at_once = Settings(head_timeout_seconds=0.05, idle_timeout_seconds=0.05, body_timeout_seconds=0.05)
    with AgentPayServer(settings=at_once) as server:
        server.listen()
        yield server


def assert_refused(answered: Answered) -> None:
    assert answered.status == 400
    assert answered.headers["content-type"] == "application/json"
    assert answered.headers["x-request-id"].startswith("req_")
    body = answered.json()
    assert set(body) == {"error", "message", "request_id", "details"}
    assert (body["error"], body["request_id"]) == ("invalid_request", answered.headers["x-request-id"])
    assert body["details"][0]["field"] == "request"
    assert "HTTP/1.1" in body["details"][0]["message"]


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:40]))
def test_malformed_http_gets_one_declared_error_and_the_connection_closes(
    listening: AgentPayServer, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), Peer(listening.base_url) as peer:
        peer.send(data)
        answered = peer.answer()
        assert_refused(answered)
        assert answered.headers["connection"] == "close"
        assert peer.rest() == b""
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("agentpay_server")]
    # An earlier test's peer may have left, and its request is then logged late.
    lines = [line for line in ours if f"request_id={answered.headers['x-request-id']}" in line]
    assert [line.split(" ")[0] for line in lines] == ["request.answered"]
    assert "status=400 error=invalid_request" in lines[0]
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("field", ["one", "many", "target"])
def test_a_head_of_64_kib_is_read(listening: AgentPayServer, field: str, pieces: int) -> None:
    start, padding = b"GET /healthz HTTP/1.1\r\n" + HOST, b"X: " + b"x" * 65_400 + b"\r\n"
    if field == "many":
        padding = b"".join(b"X%04d: %s\r\n" % (n, b"x" * 640) for n in range(100))
    elif field == "target":
        start, padding = b"GET /healthz?" + b"x" * 65_400 + b" HTTP/1.1\r\n" + HOST, b""
    data = start + padding + b"\r\n"
    assert 63 * 1024 < len(data) <= 64 * 1024
    with Peer(listening.base_url) as peer:
        for at in range(pieces):
            peer.send(data[len(data) * at // pieces : len(data) * (at + 1) // pieces])
        assert peer.answer().status == 200


@pytest.mark.parametrize("order", [1, -1], ids=["length first", "coding first"])
@pytest.mark.parametrize("lengths", [b"Content-Length: 5\r\n", b"Content-Length: 0\r\n"])
def test_a_body_with_two_lengths_cannot_smuggle_a_request(
    listening: AgentPayServer, order: int, lengths: bytes
) -> None:
    key = b"Authorization: Bearer " + listening.operator_key.encode() + b"\r\n"
    smuggled = (
        b"POST /v1/accounts HTTP/1.1\r\n"
        + HOST
        + key
        + b'Content-Length: 12\r\n\r\n{"name":"x"}'
        + GET_HEALTH
    )
    both = b"".join([lengths, b"Transfer-Encoding: chunked\r\n"][::order])
    with Peer(listening.base_url) as peer:
        peer.send(b"POST /v1/accounts HTTP/1.1\r\n" + HOST + key + both + b"\r\n0\r\n\r\n" + smuggled)
        answered = peer.answer()
        assert_refused(answered)
        assert answered.headers["connection"] == "close"
        assert peer.rest() == b""
    assert list(listening.client().accounts.list()) == []


@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nhelloX\r\n", b"-1\r\n", b"f" * 30 + b"\r\n"])
def test_a_body_that_cannot_be_read_is_refused_and_does_nothing(
    listening: AgentPayServer, body: bytes
) -> None:
    key = b"Authorization: Bearer " + listening.operator_key.encode() + b"\r\n"
    with Peer(listening.base_url) as peer:
        peer.send(b"POST /v1/accounts HTTP/1.1\r\n" + HOST + key + b"Transfer-Encoding: chunked\r\n\r\n")
        peer.send(b'b\r\n{"name":"x"\r\n' + body)
        assert_refused(peer.answer())
        assert peer.rest() == b""
    assert list(listening.client().accounts.list()) == []


def test_data_after_a_request_does_not_affect_its_response(listening: AgentPayServer) -> None:
    with Peer(listening.base_url) as peer:
        peer.send(GET_HEALTH + GET_HEALTH + b"nonsense\r\n\r\n" + GET_HEALTH)
        assert [peer.answer().status, peer.answer().status] == [200, 200]
        assert_refused(peer.answer())
        assert peer.rest() == b""


def test_trailers_of_a_request_are_ignored(listening: AgentPayServer) -> None:
    with Peer(listening.base_url) as peer:
        peer.send(b"POST /v1/accounts HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        peer.send(b"2\r\n{}\r\n0\r\nAuthorization: Bearer " + listening.operator_key.encode() + b"\r\n\r\n")
        assert peer.answer().status == 401
        assert peer.send(GET_HEALTH).answer().status == 200


PIECES = [
    *[b"GET ", b"POST ", b"PUT ", b"HEAD ", b"/", b"/v1/accounts", b"http://localhost/", b"?x=1", b" "],
    *[b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"\r\n", b"\n", b"\r", HOST, b"Host: evil\r\n", b"X: y\r\n"],
    *[b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"],
    *[b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n"],
    *[GET_HEALTH, b"abc", b"\x00", b"\xff", b":"],
]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=12).map(b"".join))
def test_arbitrary_data_gets_a_valid_response_and_a_closed_connection(
    hasty: AgentPayServer, data: bytes
) -> None:
    with Peer(hasty.base_url) as peer:
        peer.send(data)
        said = peer.rest()
    is_head = data.count(b"HEAD ") > 0
    while said:
        head, _, said = said.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        assert head.startswith(b"HTTP/1.1 ")
        assert status < 500
        if status == 100:
            continue
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        body, said = said[: int(fields[b"content-length"])], said[int(fields[b"content-length"]) :]
        if is_head:
            return
        told = json.loads(body)
        if status in (400, 401, 404, 408, 413, 421):
            assert told["request_id"].encode() == fields[b"x-request-id"]
            assert set(told) <= {"error", "message", "request_id", "details"}
