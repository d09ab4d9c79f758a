"""The timeline of a server: what happened, in order, to find out why a test failed.

Requests and chain transactions appear in order of arrival. Events and delivery attempts follow the
transaction that they report, the request that caused them, or the advance of the clock that made them due.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import frozen

from agentpay.contract import codec
from agentpay.contract.deliveries import Delivery
from agentpay.contract.events import Event
from agentpay.contract.fields import format_timestamp
from agentpay_server.assembly.server import Server
from agentpay_server.contract.sandbox import ADVANCE_CLOCK
from agentpay_server.platform.clock import from_us
from agentpay_server.testkit.embedded.recorder import (
    RECORDS_MAX,
    ChainTransaction,
    RecordedRequest,
    Recorder,
    masked,
)
from agentpay_server.webhooks import feature as webhooks

LINES_MAX: Final = 100
LINE_CHARACTERS_MAX: Final = 300
ASKED_CHARACTERS_MAX: Final = 200
_SUBJECTS: Final = ("transfer_id", "session_id")


@frozen(kw_only=True)
class _Line:
    """One line and its position: after the record `number`, and after lines of a lower rank."""

    number: int
    rank: int
    at: datetime
    kind: str
    text: str


async def timeline(server: Server, recorder: Recorder, *, seed: int | None, started_at: datetime) -> str:
    """Called on the server's thread."""
    requests, transactions = recorder.requests(), recorder.transactions()
    events = await server.services.of(webhooks.FEATURE).deliveries.newest_events(RECORDS_MAX)
    deliveries = await server.services.of(webhooks.FEATURE).deliveries.newest_deliveries(RECORDS_MAX)
    positions = _Positions(requests, transactions)
    lines = [
        *(line for request in requests if (line := _request(request)) is not None),
        *map(_transaction, transactions),
        *(_event(event, positions) for event in events),
        *(line for delivery in deliveries for line in _attempts(delivery, positions)),
    ]
    lines.sort(key=lambda line: (line.number, line.rank))
    shown = [_printed(line) for line in lines[-LINES_MAX:]]
    if left_out := len(lines) - len(shown):
        shown.insert(0, f"… {left_out} earlier lines are left out")
    now = format_timestamp(from_us(server.context.clock.now_us()))
    return "\n".join([_head(seed, format_timestamp(started_at), now), *shown])


def _head(seed: int | None, started_at: str, now: str) -> str:
    again = "no seed" if seed is None else f'the same again with seed={seed}, clock="{started_at}"'
    return f"clock from {started_at} to {now}; {again}"


class _Positions:
    def __init__(self, requests: Sequence[RecordedRequest], transactions: Sequence[ChainTransaction]) -> None:
        self._by_signature = {transaction.signature: transaction.number for transaction in transactions}
        self._by_subject: dict[str, list[RecordedRequest]] = defaultdict(list)
        for request in requests:
            for subject in _subjects(request.answer):
                self._by_subject[subject].append(request)
        self._times = [(request.number, request.at) for request in requests]
        self._times += [(transaction.number, transaction.at) for transaction in transactions]
        self._advances = [request for request in requests if request.path == ADVANCE_CLOCK.path]
        self._of_events: dict[str, int] = {}
        self._latest: tuple[int, datetime] | None = None

    def of_event(self, event: Event) -> int:
        """Return the record that an event follows. Called in the order of events."""
        at = event.created_at
        data = codec.unstructure(event.data)
        number = self._by_signature.get(str(data.get("tx_signature")))
        for subject in _subjects(data):
            if number is None:
                number = _during(self._by_subject[subject], at)
        if number is None and self._latest is not None and self._latest[1] == at:
            # Neither a transfer nor a session is its subject: it follows the record before it.
            number = self._latest[0]
        if number is None:
            number = self._at(at, after=0)
        self._latest = number, at
        self._of_events[event.id] = number
        return number

    def of_attempt(self, event_id: str, at: datetime) -> int:
        return self._at(at, after=self._of_events.get(event_id, 0))

    def _at(self, moment: datetime, *, after: int) -> int:
        """Return the first advance of the clock past a time, or the last record before it."""
        moved = _during((advance for advance in self._advances if advance.number > after), moment)
        if moved is not None:
            return moved
        return max((number for number, at in self._times if at <= moment), default=after)


def _during(requests: Iterable[RecordedRequest], moment: datetime) -> int | None:
    return next((r.number for r in requests if r.at <= moment <= r.answered_at), None)


def _subjects(content: Any) -> Iterator[str]:  # noqa: ANN401 - whatever JSON held
    if isinstance(content, dict):
        yield from (str(content[name]) for name in _SUBJECTS if content.get(name) is not None)


def _request(request: RecordedRequest) -> _Line | None:
    place: dict[str, Any] = {"number": request.number, "rank": 0, "at": request.at}
    if request.path == ADVANCE_CLOCK.path and request.status == 200:
        if request.at == request.answered_at:
            return None
        return _Line(**place, kind="clock", text=f"moved to {format_timestamp(request.answered_at)}")
    status = "no answer" if request.status is None else request.status
    asked = _cut(f"{request.method} {request.path}{_json(request.body)}", ASKED_CHARACTERS_MAX)
    return _Line(**place, kind="request", text=f"{asked} -> {status}{_json(request.answer)}")


def _transaction(transaction: ChainTransaction) -> _Line:
    moves = ", ".join(
        f"{moved.amount_usdc} USDC {_address(moved.source)} -> {_address(moved.destination)}"
        for moved in transaction.movements
    )
    parts = [moves, f"memo {transaction.memo}" if transaction.memo else ""]
    outcome = f"FAILED: {transaction.error}" if transaction.error else ""
    text = "; ".join(part for part in (outcome, *parts) if part)
    return _Line(
        number=transaction.number,
        rank=0,
        at=transaction.at,
        kind="chain",
        text=f"{_address(transaction.signature)} {text}".rstrip(),
    )


def _event(event: Event, positions: _Positions) -> _Line:
    text = f"{event.type} {event.id}{_json(codec.unstructure(event.data))}"
    return _Line(number=positions.of_event(event), rank=1, at=event.created_at, kind="event", text=text)


def _attempts(delivery: Delivery, positions: _Positions) -> Iterator[_Line]:
    for count, attempt in enumerate(delivery.attempts, 1):
        outcome = attempt.error if attempt.status_code is None else attempt.status_code
        is_last = count == len(delivery.attempts)
        status = f", {delivery.status}" if is_last else ""
        yield _Line(
            number=positions.of_attempt(delivery.event_id, attempt.at),
            rank=2,
            at=attempt.at,
            kind="delivery",
            text=f"{delivery.event_type} to {delivery.webhook_id}, attempt {count}: {outcome}{status}",
        )


def _printed(line: _Line) -> str:
    text = masked(line.text).replace("\n", " ")
    return _cut(f"{format_timestamp(line.at)} {line.kind:<8} {text}", LINE_CHARACTERS_MAX)


def _json(value: object) -> str:
    """Leave out null fields; an empty string for None."""
    if value is None:
        return ""
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if item is not None}
    return f" {codec.print_json(value).decode('ascii')}"


def _address(text: str | None) -> str:
    return "mint" if text is None else f"{text[:4]}…{text[-4:]}"


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
