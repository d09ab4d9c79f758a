"""Records a server's requests and its chain's transactions, for tests to inspect, and as a timeline.

Models are built on access. No record contains a secret: API keys are not stored, and keys and webhook secrets
in bodies are masked.
"""

import itertools
import re
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeVar

import attrs
from attrs import define, field, frozen
from solders.transaction import VersionedTransaction
from starlette.types import Message, Receive, Scope, Send

from agentpay.contract import codec, json_text
from agentpay.contract.events import Event
from agentpay.contract.ext.deliveries import Delivery
from agentpay.contract.fields import format_timestamp
from agentpay.contract.usdc import from_micro
from agentpay_server.assembly.server import Server
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.instructions import memo_of, movements
from agentpay_server.chain.protocol import Chain, SignatureStatus
from agentpay_server.contract.sandbox import ADVANCE_CLOCK
from agentpay_server.platform.capturing import Restore
from agentpay_server.platform.clock import Clock, from_us
from agentpay_server.webhooks import feature as webhooks

T = TypeVar("T")
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

RECORDS_MAX: Final = 1_000
"""Of each: requests, events, deliveries and transactions."""

_BODIES_MAX_BYTES: Final = 8 * 1024 * 1024
_SHOWN_CHARACTERS: Final = 300
_SECRET: Final = re.compile(r"\b(ap_(?:operator|agent|console|code)_|whsec_)[0-9A-Za-z]+")
_MASK: Final = r"\1***"
LINES_MAX: Final = 100
LINE_CHARACTERS_MAX: Final = 300
ASKED_CHARACTERS_MAX: Final = 200
_SUBJECTS: Final = ("transfer_id", "session_id")


class Records(list[T]):
    """A plain list, newest last, that can be filtered."""

    def where(self, **fields: object) -> "Records[T]":
        """Return the records whose fields have these values.

        Raises:
            TypeError: the records have no such field.
        """
        return Records(record for record in self if _matches(record, fields))

    def one(self, **fields: object) -> T:
        """Return the only record whose fields have these values.

        Raises:
            AssertionError: not exactly one record matches; the message lists the records.
            TypeError: the records have no such field.
        """
        found = self.where(**fields)
        if len(found) == 1:
            return found[0]
        wanted = ", ".join(f"{name}={value!r}" for name, value in fields.items()) or "no conditions"
        shown = "\n".join(f"  {_short(repr(record))}" for record in (found or self)[-20:]) or "  nothing"
        raise AssertionError(f"expected 1 record with {wanted}, found {len(found)}; the records:\n{shown}")


@frozen(kw_only=True)
class RecordedRequest:
    """One request that reached the server, with its response.

    Attributes:
        method: such as `POST`.
        path: the path with the query; secrets are masked.
        body: the sent JSON with secrets masked; a string if it is not JSON, None if it is empty.
        status: the response's status; None if none was sent, for example after a disconnect.
        answer: the response's JSON, like `body`.
        key_id: the request's key, `key_…`; None without a valid one.
        at: the server's time at its arrival.
        answered_at: the server's time of the response.
    """

    method: str
    path: str
    body: Any
    status: int | None
    answer: Any
    key_id: str | None
    at: datetime
    answered_at: datetime
    number: int = field(repr=False)


@frozen(kw_only=True)
class UsdcMovement:
    """USDC that moved on chain.

    Attributes:
        source: token account that pays; None for minted USDC.
        destination: token account that receives.
    """

    source: str | None
    destination: str
    amount_usdc: Decimal


@frozen(kw_only=True)
class ChainTransaction:
    """One transaction that the server's chain executed.

    Attributes:
        error: the chain's error text; None if it succeeded.
        movements: the requested movements of USDC.
        memo: its on-chain memo; that of a transfer starts with the transfer_id.
        at: the server's time at its execution.
    """

    signature: str
    error: str | None
    movements: tuple[UsdcMovement, ...]
    memo: str | None
    at: datetime
    number: int = field(repr=False)


@define
class _Exchange:
    number: int
    method: str
    path: bytes
    at_us: int
    ended_us: int
    sent: list[bytes] = field(factory=list)
    status: int | None = None
    answered: list[bytes] = field(factory=list)
    key_id: str | None = None
    counted_bytes: int = 0
    is_kept: bool = True


class Recorder:
    """Bound to one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self._exchanges: deque[_Exchange] = deque()
        self._bytes_kept = 0
        self._chain: EmbeddedChain | None = None
        self._transactions: deque[tuple[int, int, VersionedTransaction, SignatureStatus]] = deque(
            maxlen=RECORDS_MAX
        )

    def watch(self, chain: Chain) -> Chain:
        """Record the transactions of an embedded chain; return the chain."""
        if not isinstance(chain, EmbeddedChain):
            return chain

        def executed(transaction: VersionedTransaction, status: SignatureStatus) -> None:
            self._transactions.append((next(self._numbers), self._clock.now_us(), transaction, status))

        chain.observe(executed)
        self._chain = chain
        return chain

    def capture(self) -> Restore:
        exchanges, transactions = tuple(self._exchanges), tuple(self._transactions)

        def restore() -> None:
            for exchange in self._exchanges:
                exchange.is_kept = False
            self._exchanges = deque(exchanges)
            for exchange in exchanges:
                exchange.is_kept = True
            self._bytes_kept = sum(exchange.counted_bytes for exchange in exchanges)
            self._transactions = deque(transactions, maxlen=RECORDS_MAX)

        return restore

    def release(self) -> None:
        if self._chain is not None:
            self._chain.release()
            self._chain = None

    def around(self, app: Asgi) -> Asgi:
        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            now_us = self._clock.now_us()
            path: bytes = scope.get("raw_path") or scope["path"].encode()
            query: bytes = scope["query_string"]
            exchange = _Exchange(
                next(self._numbers), scope["method"], path + b"?" + query if query else path, now_us, now_us
            )
            self._exchanges.append(exchange)

            async def recorded_receive() -> Message:
                message = await receive()
                if body := message.get("body"):
                    exchange.sent.append(body)
                return message

            async def recorded_send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    exchange.status = message["status"]
                elif (body := message.get("body")) and not message.get("more_body"):
                    # A stream never ends, so it is not recorded.
                    exchange.answered.append(body)
                await send(message)

            try:
                await app(scope, recorded_receive, recorded_send)
            finally:
                exchange.ended_us = self._clock.now_us()
                exchange.key_id = getattr(scope.get("agentpay.principal"), "key_id", None)
                self._keep_to_bound(exchange)

        return recorded

    def requests(self) -> Records[RecordedRequest]:
        return Records(_request(exchange) for exchange in self._exchanges)

    def transactions(self) -> Records[ChainTransaction]:
        return Records(itertools.starmap(_transaction, self._transactions))

    def _keep_to_bound(self, ended: _Exchange) -> None:
        if ended.is_kept:
            ended.counted_bytes = sum(map(len, ended.sent)) + sum(map(len, ended.answered))
            self._bytes_kept += ended.counted_bytes
        while len(self._exchanges) > RECORDS_MAX or self._bytes_kept > _BODIES_MAX_BYTES:
            oldest = self._exchanges.popleft()
            oldest.is_kept = False
            self._bytes_kept -= oldest.counted_bytes


def masked(text: str) -> str:
    return _SECRET.sub(_MASK, text)


def _request(exchange: _Exchange) -> RecordedRequest:
    return RecordedRequest(
        method=exchange.method,
        path=masked(exchange.path.decode("ascii", "replace")),
        body=_content(exchange.sent),
        status=exchange.status,
        answer=_content(exchange.answered),
        key_id=exchange.key_id,
        at=from_us(exchange.at_us),
        answered_at=from_us(exchange.ended_us),
        number=exchange.number,
    )


def _content(chunks: Iterable[bytes]) -> Any:  # noqa: ANN401 - whatever JSON held
    raw = b"".join(chunks)
    if not raw:
        return None
    text = masked(raw.decode("utf-8", "replace"))
    try:
        return json_text.parse_json(text.encode())
    except ValueError:
        return text


def _transaction(
    number: int, at_us: int, transaction: VersionedTransaction, status: SignatureStatus
) -> ChainTransaction:
    return ChainTransaction(
        signature=str(transaction.signatures[0]),
        error=None if status.failure is None else status.failure.detail,
        movements=tuple(
            UsdcMovement(
                source=moved.source,
                destination=moved.destination,
                amount_usdc=from_micro(moved.amount_micro),
            )
            for moved in movements(transaction)
        ),
        memo=memo_of(transaction),
        at=from_us(at_us),
        number=number,
    )


def _matches(record: object, fields: dict[str, object]) -> bool:
    kind: Any = type(record)
    names = {attribute.name for attribute in attrs.fields(kind)} - {"number"}
    for name in fields:
        if name not in names:
            raise TypeError(f"{kind.__name__} has no field {name!r}; it has {', '.join(sorted(names))}")
    return all(getattr(record, name) == value for name, value in fields.items())


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


_Line = tuple[int, int, datetime, str, str]
"""Number and rank of a line, which follows that record and lines of a lower rank; time, kind and text."""


async def timeline(server: Server, recorder: Recorder, *, seed: int | None, started_at: datetime) -> str:
    """Return what happened, in order, to find out why a test failed. Called on the server's thread.

    Requests and chain transactions appear in order of arrival. Events and delivery attempts follow the
    transaction that they report, the request that caused them, or the advance of the clock that made them
    due.
    """
    requests, transactions = recorder.requests(), recorder.transactions()
    events = await server.services.of(webhooks.FEATURE).deliveries.newest_events(RECORDS_MAX)
    deliveries = await server.services.of(webhooks.FEATURE).deliveries.newest_deliveries(RECORDS_MAX)
    positions = _Positions(requests, transactions)
    lines = [
        *(line for request in requests if (line := _request_line(request)) is not None),
        *map(_transaction_line, transactions),
        *(_event_line(event, positions) for event in events),
        *(line for delivery in deliveries for line in _attempt_lines(delivery, positions)),
    ]
    lines.sort(key=lambda line: line[:2])
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


def _request_line(request: RecordedRequest) -> _Line | None:
    if request.path == ADVANCE_CLOCK.path and request.status == 200:
        if request.at == request.answered_at:
            return None
        return request.number, 0, request.at, "clock", f"moved to {format_timestamp(request.answered_at)}"
    status = "no answer" if request.status is None else request.status
    asked = _cut(f"{request.method} {request.path}{_json(request.body)}", ASKED_CHARACTERS_MAX)
    return request.number, 0, request.at, "request", f"{asked} -> {status}{_json(request.answer)}"


def _transaction_line(transaction: ChainTransaction) -> _Line:
    moves = ", ".join(
        f"{moved.amount_usdc} USDC {_address(moved.source)} -> {_address(moved.destination)}"
        for moved in transaction.movements
    )
    parts = [moves, f"memo {transaction.memo}" if transaction.memo else ""]
    outcome = f"FAILED: {transaction.error}" if transaction.error else ""
    text = "; ".join(part for part in (outcome, *parts) if part)
    text = f"{_address(transaction.signature)} {text}".rstrip()
    return transaction.number, 0, transaction.at, "chain", text


def _event_line(event: Event, positions: _Positions) -> _Line:
    text = f"{event.type} {event.id}{_json(codec.unstructure(event.data))}"
    return positions.of_event(event), 1, event.created_at, "event", text


def _attempt_lines(delivery: Delivery, positions: _Positions) -> Iterator[_Line]:
    for count, attempt in enumerate(delivery.attempts, 1):
        outcome = attempt.error if attempt.status_code is None else attempt.status_code
        is_last = count == len(delivery.attempts)
        status = f", {delivery.status}" if is_last else ""
        text = f"{delivery.event_type} to {delivery.webhook_id}, attempt {count}: {outcome}{status}"
        yield positions.of_attempt(delivery.event_id, attempt.at), 2, attempt.at, "delivery", text


def _printed(line: _Line) -> str:
    _, _, at, kind, text = line
    shown = masked(text).replace("\n", " ")
    return _cut(f"{format_timestamp(at)} {kind:<8} {shown}", LINE_CHARACTERS_MAX)


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
