"""`GET /ext/v1/console/stream`: events as they are committed, resumed from any of them (interface CO21)."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import httpx
import pytest
from server_world import Funded, raw_client

from agentpay import AgentPay, AuthenticationError, PermissionDeniedError, RateLimitError
from agentpay.contract.events import Event
from agentpay_server import AgentPayServer, Sandbox
from agentpay_server.webhooks import tail

PATH = "/ext/v1/console/stream"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "POLL_SECONDS", 0.01)


@pytest.fixture
def refuse(server: AgentPayServer, client: AgentPay, funded: Funded) -> Callable[[], Event]:
    """Return what lets one event happen, and returns it."""
    payer, payee = funded("1"), funded("1", name="Payee")
    client.policies.update(payer.account_id, escalation_threshold=0)

    def happen() -> Event:
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="0.1")
        return server.events[-1]

    return happen


def lines_of(response: httpx.Response) -> Iterator[str]:
    return (line for line in response.iter_lines() if line and not line.startswith(("retry", ":")))


@contextmanager
def opened(server: AgentPayServer, key: str = "", last: str | None = None) -> Iterator[httpx.Response]:
    """Open a stream with a key, or with the operator's, over a port."""
    server.listen()
    headers = {"Authorization": f"Bearer {key or server.operator_key}"}
    if last is not None:
        headers["Last-Event-ID"] = last
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    with httpx.stream("GET", f"{server.base_url}{PATH}", headers=sent, timeout=120) as response:
        assert response.status_code == 200
        yield response


def test_an_event_is_sent_with_its_id_and_as_it_was_recorded(server: AgentPayServer, refuse) -> None:
    with opened(server) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        event = refuse()
        name, data = islice(lines_of(response), 2)
    assert name == f"id: {event.id}"
    with raw_client(server) as http:
        assert json.loads(data.removeprefix("data: ")) == http.get("/ext/v1/console/events").json()["data"][0]


@pytest.mark.parametrize("page_size", [None, 2])
def test_a_stream_is_resumed_after_any_event_without_gap_or_repetition(
    server: AgentPayServer, refuse, monkeypatch: pytest.MonkeyPatch, page_size: int | None
) -> None:
    if page_size is not None:
        monkeypatch.setattr(tail, "_PAGE", page_size)
    made = [refuse() for _ in range(7)]
    stream = server.events.stream(last_event_id=made[1].id)
    assert [next(stream).id for _ in range(5)] == [event.id for event in made[2:]]
    later = [refuse() for _ in range(3)]
    assert [next(stream).id for _ in range(3)] == [event.id for event in later]
    stream.close()


@pytest.mark.parametrize("unknown", ["evt_" + "0" * 26, "x", "evt_\u00e4"])
def test_an_unknown_event_resets_the_stream(server: AgentPayServer, refuse, unknown: str) -> None:
    refuse()
    with opened(server, last=unknown) as response:
        lines = lines_of(response)
        assert list(islice(lines, 2)) == ["event: reset", "data: {}"]
        event = refuse()
        assert next(lines) == f"id: {event.id}"


def test_events_of_other_operators_are_not_sent_and_not_resumed_from(server: AgentPayServer, refuse) -> None:
    theirs = refuse()
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    account = other.accounts.create(name="a")
    payee = other.accounts.create(name="b")
    Sandbox(other).fund(account.account_id, "1")
    other.policies.update(account.account_id, escalation_threshold=0)
    stream = other.events.stream(last_event_id=theirs.id)
    heard: list[Event] = []
    listening = threading.Thread(target=lambda: heard.append(next(stream)))
    listening.start()
    for _ in range(3):
        refuse()
    other.transfers.create(from_=account.account_id, to=payee.account_id, amount="0.1")
    listening.join(120)
    stream.close()
    assert [event.data.account_id for event in heard] == [account.account_id]


def test_a_stream_ends_without_a_later_event_when_its_key_is_revoked(server: AgentPayServer, refuse) -> None:
    made, following = refuse(), refuse()
    stolen = server.operator_keys.create(name="stolen")
    with opened(server, stolen.key, made.id) as response:
        lines = lines_of(response)
        assert next(lines) == f"id: {following.id}"
        server.operator_keys.revoke(stolen.key_id)
        refuse()
        assert len(list(lines)) == 1, "the data of the first event, and then the end"
    own = server.events.stream(last_event_id=following.id)
    assert next(own).id != following.id
    own.close()


def test_a_stream_ends_when_its_console_key_expires(server: AgentPayServer, refuse) -> None:
    key = server.console.sign_in(server.console.create_sign_in_code().code).key
    with opened(server, key) as response:
        server.sandbox.clock.advance(12 * 3600)
        refuse()
        assert list(lines_of(response)) == []


def test_a_poll_sends_nothing_to_a_stream_whose_key_it_did_not_check(
    server: AgentPayServer, refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream joins while a poll reads: its key may be revoked before the newest event of that poll."""
    made = refuse()
    first = server.events.stream(last_event_id=made.id)
    refuse()
    next(first)
    followed = server._running.server.services.built["webhooks"].tail
    check, joined = tail.live_keys, []

    def join_meanwhile(connection, key_ids, now_us):
        if not joined:
            joined.append(tail._Stream("key_revoked"))
            (streams,) = followed._streams.values()
            streams.add(joined[0])
        return check(connection, key_ids, now_us)

    monkeypatch.setattr(tail, "live_keys", join_meanwhile)
    last = refuse()
    assert next(first).id == last.id
    assert joined[0].is_over
    assert joined[0]._waiting == []
    first.close()


def test_a_key_has_ten_streams_and_a_closed_one_makes_room(server: AgentPayServer, refuse) -> None:
    made = refuse()
    following = refuse()
    streams = [server.events.stream(last_event_id=made.id) for _ in range(tail.STREAMS_OF_ONE_KEY)]
    assert {next(stream).id for stream in streams} == {following.id}
    with pytest.raises(RateLimitError, match="10 streams"):
        next(server.events.stream(max_retries=0))
    with server.client(api_key=server.operator_keys.create(name="other").key) as other:
        of_other_key = other.events.stream(last_event_id=made.id)
        assert next(of_other_key).id == following.id
        of_other_key.close()
    streams[0].close()
    again = server.events.stream(last_event_id=made.id)
    assert next(again).id == following.id
    for stream in [*streams[1:], again]:
        stream.close()
    assert server._running.server.services.built["webhooks"].tail._streams == {}


def test_a_server_that_stops_ends_its_streams(server: AgentPayServer) -> None:
    with opened(server) as response:
        closing = threading.Thread(target=server.close)
        closing.start()
        assert list(lines_of(response)) == []
        closing.join(120)
        assert not closing.is_alive()


def test_a_restore_ends_the_streams(server: AgentPayServer, refuse) -> None:
    made = refuse()
    snapshot = server.sandbox.snapshot()
    following = refuse()
    stream = server.events.stream(last_event_id=made.id)
    assert next(stream).id == following.id
    server.sandbox.restore(snapshot)
    assert next(stream, None) is None
    again = server.events.stream(last_event_id=following.id)
    later = refuse()
    assert next(again) == later
    again.close()


@pytest.mark.anyio
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_stream_begins_when_it_is_opened_and_ends_when_it_is_closed(
    server: AgentPayServer, refuse, is_async: bool
) -> None:
    if is_async:
        async with server.async_client() as client:
            opened = client.events.stream()
            await asyncio.to_thread(refuse)
            async with opened as stream:
                event = await asyncio.to_thread(refuse)
                assert await anext(stream) == event
            assert [each async for each in stream] == [], "it is closed"
    else:
        with server.events.stream() as stream:
            assert stream.response.status_code == 200
            assert stream.response.request_id is not None
            event = refuse()
            assert next(stream) == event
        assert list(stream) == [], "it is closed"
    assert stream.last_event_id == event.id
    assert server._running.server.services.built["webhooks"].tail._streams == {}


def test_agents_and_revoked_keys_have_no_stream(server: AgentPayServer, client: AgentPay) -> None:
    agent = server.agent_keys.create(client.accounts.create(name="a").account_id).key
    stolen = server.operator_keys.create(name="stolen")
    server.operator_keys.revoke(stolen.key_id)
    for key, kind in ((agent, PermissionDeniedError), (stolen.key, AuthenticationError)):
        with server.client(api_key=key) as other, pytest.raises(kind) as caught:
            other.events.stream()
        assert caught.value.outcome == "not_done"


# --- Numbers that are missing -----------------------------------------------------------------------------


def row(seq: int) -> tail.EventRecord:
    return tail.EventRecord(seq, f"evt_{seq}", "op", "acct", "x", "{}", 0, None, None)


@pytest.mark.anyio
async def test_events_after_a_gap_in_the_sequence_wait_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = tail.EventTail(None)  # type: ignore[arg-type]
    followed._position = 0
    loop = asyncio.get_running_loop()
    now = [100.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])

    def settled(*seqs: int) -> list[int]:
        return [each.seq for each in followed._settled([row(seq) for seq in seqs])]

    assert settled(1, 2, 4) == [1, 2]
    now[0] += 1
    assert settled(1, 2, 3, 4, 7) == [1, 2, 3, 4], "it was committed late"
    followed._position = 4
    assert settled(7) == []
    now[0] += tail.GAP_SECONDS - 1
    assert settled(7, 9) == []
    now[0] += 1
    assert settled(7, 9) == [7], "9 waits for 8"
    followed._position = 7
    assert settled(9) == []
    now[0] += tail.GAP_SECONDS
    assert settled(9, 10) == [9, 10]
