"""The sandbox client: test money, tenants, outside recipients, the clock, faults, snapshots."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Unpack

# unasync: async only
import anyio

# unasync: end of async only
from agentpay._async.client import AsyncAgentPay
from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._calls.invalid import InvalidArgumentError
from agentpay._calls.options import CallOptions
from agentpay.contract.fields import parse_timestamp
from agentpay.contract.usdc import EXACT
from agentpay_server.contract import sandbox
from agentpay_server.contract.sandbox import (
    Fault,
    Funding,
    HttpEffect,
    Operator,
    OutsideTokenAccount,
    Snapshot,
)


class AsyncSandboxClock(AsyncResource):
    """The server's clock."""

    async def now(self, **options: Unpack[CallOptions]) -> datetime:
        """Return the server's time, in UTC.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return (await self._call(sandbox.GET_CLOCK, locals(), options)).now

    async def advance(
        self,
        seconds: float | timedelta = 0,
        *,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        **options: Unpack[CallOptions],
    ) -> datetime:
        """Advance a manual clock, and return once everything that falls due has run, in order.

        Args:
            seconds: added to the duration, as a number or a `timedelta`; a total of 0 runs what is due now.
            minutes: added to the duration.
            hours: added to the duration.
            days: added to the duration.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The server's new time, in UTC.

        Raises:
            ConflictError: the clock is not manual, or another advance waits for an event receiver, which may
                be the caller.
            InvalidRequestError: the duration is negative, or more than ten years.
            ValueError: the duration is not a number.
        """
        arguments = locals()
        try:
            given = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
            duration = given + timedelta(minutes=minutes, hours=hours, days=days)
        except OverflowError:
            raise InvalidArgumentError("the duration must be from 0 seconds to ten years") from None
        exact = Decimal(duration // timedelta(microseconds=1)).scaleb(-6, EXACT)
        return (await self._call(sandbox.ADVANCE_CLOCK, {**arguments, "seconds": exact}, options)).now

    async def travel_to(self, moment: datetime | str, **options: Unpack[CallOptions]) -> datetime:
        """Advance a manual clock to a time, as `advance` does.

        Args:
            moment: a time with a UTC offset, or ISO 8601 text such as `2026-01-31T12:00:00Z`; the current
                time runs what is due now.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The server's new time, in UTC.

        Raises:
            InvalidRequestError: the time is in the past, more than ten years ahead or invalid text, or has no
                UTC offset.
            ConflictError: as for `advance`.
        """
        target = _moment(moment)
        now = await self.now(**options)
        if target < now:
            raise InvalidArgumentError(f"the clock is at {now.isoformat()} and cannot go back to {moment}")
        return await self.advance(target - now, **options)


class AsyncSandbox(AsyncResource):
    """Test features, which need a test chain. Every method raises the exceptions of `agentpay.errors`.

    Attributes:
        clock: the server's clock.
    """

    def __init__(self, client: AsyncAgentPay) -> None:
        """Create a client of a server's sandbox.

        Args:
            client: a client of the server with an operator key, whose connections and settings are used.
        """
        caller = client._caller  # noqa: SLF001 - the sandbox is a part of the client
        super().__init__(caller)
        self.clock: AsyncSandboxClock = AsyncSandboxClock(caller)

    async def fund(
        self, account_id: str, amount: Decimal | int | str, **options: Unpack[CallOptions]
    ) -> Funding:
        """Mint test USDC to an account. It appears in the history as a deposit.

        Args:
            account_id: the account, `acct_…`.
            amount: USDC, exact; floats are refused.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        return await self._call(sandbox.FUND, locals(), options)

    async def create_token_account(
        self, *, owner: str | None = None, **options: Unpack[CallOptions]
    ) -> OutsideTokenAccount:
        """Create an outside recipient: a USDC token account that does not belong to this service.

        Args:
            owner: on-chain address that is to own it, such as that of your own wallet; by default a new one,
                whose key is discarded. If its token account exists, that one is returned.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return await self._call(sandbox.CREATE_TOKEN_ACCOUNT, locals(), options)

    async def create_operator(self, name: str, **options: Unpack[CallOptions]) -> Operator:
        """Create another operator, with its own accounts and keys.

        Args:
            name: display label, 1 to 100 characters.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The operator with its key, which is shown only here.
        """
        return await self._call(sandbox.CREATE_OPERATOR, locals(), options)

    async def set_fault(
        self,
        name: str,
        times: int | None = None,
        *,
        effect: HttpEffect | str | None = None,
        delay_ms: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Fault:
        """Arm a fault.

        Args:
            name: `chain_down`, `chain_reply_lost`, `chain_never_lands`, `chain_slow`; requests of one
                operation, such as `http:POST /v1/transfers` or `http:GET /v1/accounts/{account_id}`, or of
                the whole service, `http:*`, except sandbox operations, and operations that another fault is
                set for;
                `facilitator:` with `slow`, `pending`, `false_success`, `false_failure`, `settles_twice` or
                `forgets`, for settlements of the local facilitator; or, on a server with a separate
                process, `crash_at:<point>`.
            times: how often, 1 to 1,000; None until it is disarmed.
            effect: the effect on a request. It is processed with `delay` and with `reply_lost` (then dropped
                without a response). It is not processed with `internal_error` (500), `unavailable` (503),
                `rate_limited` (429 with `Retry-After`) and `reset` (dropped). Only for request faults.
            delay_ms: how long `delay` delays each request, and `facilitator:slow` each response, 1 to 60,000
                milliseconds of real time.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            InvalidRequestError: the fault does not exist. The message lists the available ones.
            ValueError: the effect does not exist. The message lists the available ones.
        """
        arguments = {**locals(), "effect": None if effect is None else _effect(effect)}
        return await self._call(sandbox.SET_FAULT, arguments, options)

    async def delete_fault(self, name: str, **options: Unpack[CallOptions]) -> None:
        """Disarm a fault.

        Args:
            name: as for `set_fault`; it need not be armed.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            InvalidRequestError: the fault does not exist.
        """
        await self._call(sandbox.DELETE_FAULT, locals(), options)

    def faults(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[Fault]:
        """List the armed faults, the last armed first.

        Args:
            limit: faults per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(sandbox.LIST_FAULTS, locals(), options)

    async def clear_faults(self, **options: Unpack[CallOptions]) -> None:
        """Disarm all faults.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        await self._call(sandbox.CLEAR_FAULTS, locals(), options)

    @asynccontextmanager
    async def fault(
        self,
        name: str,
        times: int | None = None,
        *,
        effect: HttpEffect | str | None = None,
        delay_ms: int | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncIterator[Fault]:
        """Arm a fault within a `with` block.

        Args:
            name: as for `set_fault`.
            times: how often, 1 to 1,000; None until the block ends.
            effect: as for `set_fault`.
            delay_ms: as for `set_fault`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            InvalidRequestError: the fault does not exist.
            ValueError: the effect does not exist.
        """
        armed = await self.set_fault(name, times, effect=effect, delay_ms=delay_ms, **options)
        try:
            yield armed
        finally:
            # unasync: async only
            # A cancelled block disarms the fault, too.
            # unasync: end of async only
            with anyio.CancelScope(shield=True):
                await self.delete_fault(name, **options)

    async def snapshot(self, **options: Unpack[CallOptions]) -> Snapshot:
        """Take a snapshot of the server's state: database, chain, clock, queues, randomness, armed faults.

        For a server in memory. It waits up to five seconds for running work to finish.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The snapshot, which can be restored any number of times. A server keeps the 64 most recently used.

        Raises:
            ConflictError: part of the server's state is not in memory, or money is still in flight after the
                wait.
        """
        return await self._call(sandbox.CREATE_SNAPSHOT, locals(), options)

    def snapshots(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[Snapshot]:
        """List the snapshots of the operator that the server keeps, newest first.

        Args:
            limit: snapshots per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(sandbox.LIST_SNAPSHOTS, locals(), options)

    async def restore(self, snapshot: Snapshot | str, **options: Unpack[CallOptions]) -> None:
        """Restore a snapshot, for all tenants. Everything created after the snapshot is gone.

        That includes accounts, keys, webhooks and inboxes. Work in progress is cancelled without a response.
        On a server with a seed, the same operations give the same identifiers and signatures after each
        restore.

        Args:
            snapshot: the snapshot or its identifier.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such snapshot of this operator.
            ConflictError: part of the server's state is not in memory, or requests keep it busy.
        """
        arguments = {**locals(), "snapshot_id": getattr(snapshot, "snapshot_id", snapshot)}
        await self._call(sandbox.RESTORE_SNAPSHOT, arguments, options)

    async def reset(self, **options: Unpack[CallOptions]) -> None:
        """Restore the server's state at its start, for all tenants. Snapshots are kept.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            ConflictError: part of the server's state is not in memory, or requests keep it busy.
        """
        await self._call(sandbox.RESET, locals(), options)


def _effect(given: HttpEffect | str) -> HttpEffect:
    try:
        return HttpEffect(given)
    except ValueError:
        raise ValueError(f"unknown effect {given!r}; available: {', '.join(HttpEffect)}") from None


def _moment(given: datetime | str) -> datetime:
    if isinstance(given, str):
        try:
            return parse_timestamp(given)
        except ValueError as error:
            raise InvalidArgumentError(f"{given[:64]!r} {error}") from None
    if not isinstance(given, datetime):
        kind = type(given).__name__
        raise InvalidArgumentError(f"moment must be a datetime with a UTC offset, or a string, not {kind}")
    if given.utcoffset() is None:
        raise InvalidArgumentError("the time must have a UTC offset, such as datetime(…, tzinfo=UTC)")
    return given
