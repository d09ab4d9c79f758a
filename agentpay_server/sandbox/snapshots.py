"""Snapshots: the whole state of a server in memory, captured while idle and restored (interface SB9, SB10).

A snapshot contains all state that a restart would find or a caller could notice: the database with its
queues, the chain, the clock, the randomness, armed faults, receivers within the process. Each part captures
itself. Services are created again, as after a restart. Capturing and restoring happen without an await, so
that no task sees an intermediate state. Metrics continue to count, and revoked keys stay revoked.

A server with external state cannot do this: a directory or a PostgreSQL database has its own backup tools,
and an external chain cannot be reverted.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import format_timestamp
from agentpay_server.contract.sandbox import CREATE_SNAPSHOT, RESET, RESTORE_SNAPSHOT
from agentpay_server.ledger import audit
from agentpay_server.ledger.context import Context
from agentpay_server.operators import keys
from agentpay_server.platform.capturing import Restore
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import Problem, not_found
from agentpay_server.platform.principals import Principal

KEPT: Final = 64
"""Snapshots that a server keeps; the least recently used one is dropped."""

_REST_SECONDS: Final = 5.0


@runtime_checkable
class Part(Protocol):
    """A part of the state. Capturing and restoring it must not wait."""

    def capture(self) -> Restore: ...


@frozen(kw_only=True)
class StoredSnapshot:
    """`seq` is greater for later snapshots; `taken_us` is the server's time."""

    snapshot_id: str
    operator_id: str
    seq: int
    taken_us: int
    restorers: Sequence[Restore]


class Snapshots:
    """Takes and restores snapshots.

    `parts` is None if the server cannot take snapshots. `restarted` starts the server's services after a
    restore, without waiting. Code that awaits compares `restores`, because a restore invalidates earlier
    results, such as the holder of a key.
    """

    def __init__(
        self,
        context: Context,
        parts: Sequence[Part] | None,
        restarted: Callable[[], None],
    ) -> None:
        self.restores: int = 0
        self._context = context
        self._restarted = restarted
        self._parts = None if parts is None else list(parts)
        self._start: list[Restore] = []
        self._taken = 0
        self._kept: OrderedDict[str, StoredSnapshot] = OrderedDict()

    @property
    def are_possible(self) -> bool:
        """Whether the server can take and restore snapshots."""
        return self._parts is not None

    def mark_start(self) -> None:
        """Capture the current state for `reset`."""
        self._start = self._captured()

    def include(self, part: Part) -> None:
        """Add a part to a server that has started and has not handled any request."""
        if self._parts is not None:
            self._parts.append(part)
            self._start.append(part.capture())

    async def take(self, principal: Principal) -> StoredSnapshot:
        """Wait until the server is idle; `not_at_rest` if it stays busy."""
        self._require_parts()
        if not await self._context.tasks.drain(within_seconds=_REST_SECONDS):
            raise Problem(
                ErrorCode.NOT_AT_REST,
                f"Work was still in progress after {_REST_SECONDS:.0f} seconds, so no snapshot was taken.",
            )
        # In memory nothing below waits, so the server stays idle.
        snapshot_id = self._context.lasting_identifiers.new(identifiers.SNAPSHOT)
        await self._record(principal, CREATE_SNAPSHOT, snapshot_id)
        self._taken += 1
        snapshot = self._kept[snapshot_id] = StoredSnapshot(
            snapshot_id=snapshot_id,
            operator_id=principal.operator_id,
            seq=self._taken,
            taken_us=self._context.clock.now_us(),
            restorers=self._captured(),
        )
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return snapshot

    def of_operator(self, operator_id: str) -> Sequence[StoredSnapshot]:
        """Newest first."""
        kept = [snapshot for snapshot in self._kept.values() if snapshot.operator_id == operator_id]
        return sorted(kept, key=lambda snapshot: snapshot.seq, reverse=True)

    async def restore(self, principal: Principal, snapshot_id: str) -> StoredSnapshot:
        """Work in progress is cancelled, as if the server had died."""
        self._require_parts()
        snapshot = self._kept.get(snapshot_id)
        if snapshot is None or snapshot.operator_id != principal.operator_id:
            raise not_found("snapshot", snapshot_id)
        self._kept.move_to_end(snapshot_id)
        await self._restore_all(snapshot.restorers)
        taken_at = format_timestamp(from_us(snapshot.taken_us))
        await self._record(principal, RESTORE_SNAPSHOT, snapshot_id, {"created_at": taken_at})
        return snapshot

    async def reset(self, principal: Principal) -> None:
        """Snapshots are kept."""
        self._require_parts()
        await self._restore_all(self._start)
        await self._record(principal, RESET, "server")

    async def _restore_all(self, restorers: Sequence[Restore]) -> None:
        if not await self._context.tasks.cancel_all(within_seconds=_REST_SECONDS):
            raise Problem(
                ErrorCode.NOT_AT_REST,
                f"Requests kept the server busy for {_REST_SECONDS:.0f} seconds, so nothing was restored.",
            )
        # In memory nothing below waits.
        database, at_us = self._context.database, self._context.clock.now_us()
        issued = await database.read(keys.issued)
        for restore in restorers:
            restore()
        await database.run(keys.keep, issued, at_us=at_us, now_us=self._context.clock.now_us())
        self.restores += 1
        self._restarted()

    def _captured(self) -> list[Restore]:
        return [part.capture() for part in self._parts or ()]

    async def _record(
        self,
        principal: Principal,
        endpoint: Endpoint[Any],
        subject: str,
        after: Mapping[str, object] | None = None,
    ) -> None:
        now_us = self._context.clock.now_us()
        await self._context.database.run(
            audit.record,
            principal,
            action=endpoint.name,
            subject=subject,
            now_us=now_us,
            after=after,
            has_happened=True,
        )

    def _require_parts(self) -> None:
        if self._parts is None:
            raise Problem(
                ErrorCode.NOT_IN_MEMORY,
                "Snapshots and reset need a server that keeps everything in memory.",
            )
