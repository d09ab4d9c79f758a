"""`events.stream` of peers that misbehave: every fault is a declared error, in both clients."""

import gzip
from collections.abc import Callable

import anyio
import httpx
import pytest

from agentpay import (
    AgentPay,
    APIConnectionError,
    AsyncAgentPay,
    ClosedClientError,
    InvalidRequestError,
    ResponseValidationError,
    testing,
)
from agentpay.webhooks import Event

STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}
SETTINGS = {"api_key": "ap_operator_test", "base_url": "https://pay.example", "max_retries": 0}

Read = Callable[[httpx.Response], list[Event]]


def _sync(response: httpx.Response) -> list[Event]:
    with AgentPay(**SETTINGS, transport=httpx.MockTransport(lambda _: response)) as client:
        return list(client.events.stream())


def _async(response: httpx.Response) -> list[Event]:
    async def read() -> list[Event]:
        async with AsyncAgentPay(**SETTINGS, transport=httpx.MockTransport(lambda _: response)) as client:
            return [event async for event in client.events.stream()]

    return anyio.run(read)


@pytest.fixture(params=[_sync, _async])
def read(request: pytest.FixtureRequest) -> Read:
    return request.param


def streamed(content: bytes, status: int = 200, **headers: str) -> httpx.Response:
    # Unread, as a transport returns it.
    return httpx.Response(status, headers={**STREAM, **headers}, stream=httpx.ByteStream(content))


def test_events_are_read(read: Read) -> None:
    events = [testing.event("transfer.settled", id=f"evt_{number}") for number in range(2)]
    lines = "".join(f"id: {event.id}\ndata: {event.to_json()}\n\n" for event in events)
    assert read(streamed(lines.encode())) == events


@pytest.mark.parametrize(
    "headers",
    [{"Content-Type": "text/html"}, {"Content-Type": "application/json"}, {"Content-Encoding": "gzip"}],
    ids=["html", "json", "gzip"],
)
def test_a_response_that_is_no_stream_of_events_is_a_decoding_error(read: Read, headers) -> None:
    with pytest.raises(
        ResponseValidationError, match=r"events.stream \(200\) is not a readable stream of events"
    ) as refused:
        read(streamed(b"<html>", **headers))
    assert refused.value.status_code == 200


@pytest.mark.parametrize(
    ("body", "coding", "kind", "why"),
    [
        (gzip.compress(b"{}")[:-9], "gzip", ResponseValidationError, "it is truncated"),
        (b"x", "br", ResponseValidationError, "compressed with 'br'"),
        (gzip.compress(bytes(17 * 1024 * 1024)), "gzip", ResponseValidationError, "is larger than"),
        (b'{"error":"invalid_request","message":"no such event"}', "", InvalidRequestError, "no such event"),
    ],
    ids=["truncated", "brotli", "bomb", "readable"],
)
def test_an_error_response_is_its_error_if_it_can_be_read(read: Read, body, coding, kind, why) -> None:
    with pytest.raises(kind, match=why) as refused:
        read(streamed(body, 400, **({"Content-Encoding": coding} if coding else {})))
    assert refused.value.status_code == 400


@pytest.mark.parametrize("line", [b"data: ", b"data: x\n"], ids=["one line", "many lines"])
def test_an_event_without_end_is_a_decoding_error(read: Read, line: bytes) -> None:
    with pytest.raises(ResponseValidationError, match="larger than 1 MiB"):
        read(streamed(line * (2 * 1024 * 1024 // len(line))))


def failing_after(event: object) -> httpx.Response:
    class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self):
            yield f"data: {event.to_json()}\n\n".encode()
            raise httpx.ReadError("reset")

        async def __aiter__(self):
            for chunk in self:
                yield chunk

    return httpx.Response(200, headers=STREAM, stream=Broken())


def test_a_stream_that_breaks_names_the_last_event_to_continue_after() -> None:
    event = testing.event("transfer.settled")
    http = httpx.Client(transport=httpx.MockTransport(lambda _: failing_after(event)))
    client = AgentPay(**SETTINGS, http_client=http)
    with pytest.raises(TypeError, match=r"a string, not TransferSettled: pass event\.id"):
        next(client.events.stream(last_event_id=event))  # type: ignore[arg-type]
    stream = client.events.stream(last_event_id="evt_before")
    assert stream.last_event_id == "evt_before"
    assert next(stream) == event
    with pytest.raises(APIConnectionError) as caught:
        next(stream)
    assert (caught.value.outcome, caught.value.retryable) == ("not_done", True)
    assert stream.last_event_id == event.id
    http.close()
    with pytest.raises(ClosedClientError):
        next(client.events.stream())


@pytest.mark.parametrize("kind", [AgentPay, AsyncAgentPay])
def test_a_stream_connects_when_it_is_opened_not_before(kind: type) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return streamed(b"")

    client = kind(**SETTINGS, transport=httpx.MockTransport(answer))

    async def enter() -> None:
        opened = client.events.stream()
        assert asked == []
        async with opened:
            assert len(asked) == 1

    if kind is AgentPay:
        client.events.stream()
        assert len(asked) == 1
    else:
        anyio.run(enter)
