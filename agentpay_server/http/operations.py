"""Endpoints for operations: `/healthz`, `/readyz` and `/metrics`.

Outside the endpoint tables: only GET, no API key, and no use of the server's randomness. They reveal no
secrets and nothing about accounts. A separate key can protect the metrics.
"""

import asyncio
import hmac
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from attrs import frozen
from sqlalchemy import bindparam, func, literal_column, select

from agentpay.contract import codec
from agentpay.contract.errors import ErrorCode
from agentpay_server.assembly import identity
from agentpay_server.assembly.server import Server
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.database.tables import accounts, chain_transactions, deliveries
from agentpay_server.engine.funding import TreasuryFunds
from agentpay_server.feature import Answer, Header
from agentpay_server.ledger.transactions import State
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.tasks import Tasks

if TYPE_CHECKING:
    from agentpay_server.http.exposition import Exposition

_SUSPENDED: Final = select(func.count()).where(accounts.c.suspended_us.is_not(None))
_DUE: Final = select(func.count(), func.min(deliveries.c.due_us)).where(
    deliveries.c.due_us <= bindparam("now_us")
)
# A literal, as in the partial index, which a parameter would prevent from being used.
_SUBMITTED: Final = select(func.count()).where(
    chain_transactions.c.state == literal_column(f"'{State.PENDING}'"),
    # An escrow counts as a spend when it is paid out, and a payment is sent by its seller.
    chain_transactions.c.spent_us.is_not(None),
    chain_transactions.c.expires_us.is_(None),
)


_WRITTEN: Final = "readiness"


@frozen(kw_only=True)
class Queue:
    """Work queued in the database, for any server process.

    Attributes:
        oldest_due_us: when the oldest due delivery became due.
        stopped_accounts: nothing is signed for them until an operator reviews them.
    """

    deliveries_due: int
    oldest_due_us: int | None
    transfers_submitted: int
    stopped_accounts: int


def write_probe(connection: Connection, now_us: int) -> None:
    """Prove that the database can write: a full disk can still be read."""
    identity.put(connection, _WRITTEN, str(now_us).encode("ascii"))


def queued_work(connection: Connection, now_us: int) -> Queue:
    due = connection.execute(_DUE, {"now_us": now_us}).one_or_none()
    assert due is not None  # noqa: S101 - a count is always one row
    return Queue(
        deliveries_due=int(due[0]),
        oldest_due_us=None if due[1] is None else int(due[1]),
        transfers_submitted=int(connection.execute(_SUBMITTED).scalar_one()),
        stopped_accounts=int(connection.execute(_SUSPENDED).scalar_one()),
    )


T = TypeVar("T")

_METRICS: Final = "/metrics"

PROBED_EVERY_SECONDS: Final = 1.0
"""How often at most the chain is read, and the database written to, for all callers together."""

PROBE_SECONDS: Final = 2.0
"""Timeout after which a part counts as not ready."""


class Probe(Generic[T]):
    """A question that anybody may cause, asked at most once in `PROBED_EVERY_SECONDS` for all callers."""

    def __init__(self, tasks: Tasks, ask: Callable[[], Awaitable[T]]) -> None:
        self._tasks = tasks
        self._ask = ask
        self._running: asyncio.Task[T | None] | None = None
        self._begun_at = -math.inf

    async def result(self) -> T | None:
        """Return the newest response; None if there was none, or it takes too long."""
        now, running = asyncio.get_running_loop().time(), self._running
        is_due = now >= self._begun_at + PROBED_EVERY_SECONDS
        if running is None or running.cancelled() or (running.done() and is_due):
            self._begun_at = now
            running = self._running = self._tasks.start(_answered(self._ask()))
        # A caller that stops waiting does not abort it for the others.
        await asyncio.wait({running}, timeout=PROBE_SECONDS)
        return running.result() if running.done() and not running.cancelled() else None


class Operations:
    headers: tuple[Header, ...] = ()

    def __init__(self, server: Server) -> None:
        self._context = server.context
        self._server = server
        self._exposition: Exposition | None = None
        tasks = server.context.tasks
        self._written = Probe(tasks, self._write)
        self._height = Probe(tasks, self._read_height)
        self._treasury = Probe(tasks, self._read_treasury)
        self._by_path: Mapping[str, Callable[[], Awaitable[Answer]]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            _METRICS: self._metrics,
        }

    def route(self, path: str) -> str | None:
        return path if path in self._by_path else None

    async def answer(self, path: str, method: str, header: Callable[[bytes], bytes | None]) -> Answer:
        if path == _METRICS:
            self._require_metrics_key(header(b"authorization"))
        require_get(path, method)
        return await self._by_path[path]()

    def _require_metrics_key(self, authorization: bytes | None) -> None:
        key = self._context.settings.metrics_key
        scheme, _, given = (authorization or b"").partition(b" ")
        if key is None or (
            scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(b" "), key.encode("ascii"))
        ):
            return
        raise Problem(
            ErrorCode.UNAUTHORIZED,
            "No valid metrics key: send Authorization: Bearer followed by the key that the server was given "
            "as --metrics-key.",
            says_what_to_do=True,
        )

    async def _health(self) -> Answer:
        if self._server.storage.lost.is_set():
            # Another server may use the database: only a restart reserves it again.
            return Answer(503, b'{"status":"restart"}')
        return Answer(200, b'{"status":"ok"}')

    async def _readiness(self) -> Answer:
        context = self._context
        lag_seconds = self._server.services.schedule.lag_seconds()
        written, height, funds = await asyncio.gather(
            self._written.result(),
            self._height.result(),
            self._treasury.result(),
        )
        is_ready = {
            "database": written is not None,
            "chain": height is not None,
            # Unknown while the chain does not respond, which `chain` reports.
            "treasury": funds is None or funds.can_pay,
            "clock": context.clock_check.agrees(),
            "workers": lag_seconds <= context.settings.ready_lag_seconds,
        }
        missing = [part for part, ready in is_ready.items() if not ready]
        if missing:
            return Answer(503, codec.print_json({"status": "not_ready", "not_ready": missing}))
        return Answer(200, b'{"status":"ready"}')

    async def _read_height(self) -> int:
        return await self._context.chain.block_height()

    async def _read_treasury(self) -> TreasuryFunds:
        return await self._server.services.treasury.read()

    async def _write(self) -> bool:
        await self._context.database.run(write_probe, self._context.clock.now_us())
        return True

    async def _metrics(self) -> Answer:
        try:
            from agentpay_server.http import exposition  # noqa: PLC0415 - loaded for those alone who look
        except ModuleNotFoundError as missing:
            # Without the command that installs it, which may name a path on this machine.
            raise Problem(
                ErrorCode.NOT_FOUND,
                f"{_METRICS} needs {missing.name}: install the extra ops of agentpay-kit.",
                says_what_to_do=True,
            ) from missing

        if self._exposition is None:
            self._exposition = exposition.Exposition(self._context.metrics)
        now_us = self._context.clock.now_us()
        # If these are unavailable, the other metrics are still served, when they matter most.
        queue, funds = await asyncio.gather(
            _in_time(self._context.database.read(queued_work, now_us)),
            self._treasury.result(),
        )
        text = self._exposition.text(queue, now_us, None if funds is None else funds.sol)
        return Answer(200, text, exposition.CONTENT_TYPE)


def require_get(path: str, method: str) -> None:
    if method != "GET":
        raise Problem(
            ErrorCode.METHOD_NOT_ALLOWED, f"{path} supports only GET.", allow=("GET",), says_what_to_do=True
        )


async def _in_time(question: Awaitable[T]) -> T | None:
    """Return None if there is no response, or it takes too long."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await _answered(question)
    except TimeoutError:
        return None


async def _answered(question: Awaitable[T]) -> T | None:
    """Return None if there is no response."""
    try:
        return await question
    except (DatabaseUnavailableError, ChainUnreachableError):
        return None
