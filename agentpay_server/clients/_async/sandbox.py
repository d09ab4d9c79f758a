"""The sandbox as a resource: test money, tenants, outside recipients, the clock, faults, snapshots."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Unpack

from agentpay._async.client import AsyncAgentPay
from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract.fields import parse_timestamp
from agentpay.contract.usdc import to_decimal
from agentpay_server.contract import sandbox
from agentpay_server.contract.sandbox import (
    AdvanceClock,
    ClockReading,
    CreateOperator,
    Fault,
    Fund,
    Funding,
    HttpEffect,
    Operator,
    OutsideTokenAccount,
    SetFault,
    Snapshot,
)


class AsyncSandboxClock(AsyncResource):
    """The server's clock."""

    async def now(self, **options: Unpack[CallOptions]) -> datetime:
        """Return what the server takes for now, in UTC.

        Args:
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        reading: ClockReading = await self._call(prepare(sandbox.GET_CLOCK), options)
        return reading.now

    async def advance(
        self,
        seconds: float = 0,
        *,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        **options: Unpack[CallOptions],
    ) -> datetime:
        """Move a manual clock, and return when all that fell due on the way has run, in order.

        Args:
            seconds: how far to move; 0 in all runs what is due now.
            minutes: added to it.
            hours: added to it.
            days: added to it.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            What the server takes for now, in UTC.

        Raises:
            ConflictError: the clock runs by itself; or another advance waits for a receiver of events, which
                may be the caller.
            InvalidRequestError: it would move back, or by more than ten years.
        """
        duration = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        exact = Decimal(duration // timedelta(microseconds=1)).scaleb(-6)
        request = prepare(sandbox.ADVANCE_CLOCK, body=AdvanceClock(seconds=exact))
        reading: ClockReading = await self._call(request, options)
        return reading.now

    async def travel_to(self, moment: datetime | str, **options: Unpack[CallOptions]) -> datetime:
        """Move a manual clock to a moment, as `advance` does.

        Args:
            moment: with a UTC offset, or as ISO 8601 text such as `2026-01-31T12:00:00Z`; where the clock
                stands already, what is due now is run.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            What the server takes for now, in UTC.

        Raises:
            ValueError: the moment is in the past, has no UTC offset, or is no such text.
            ConflictError: as for `advance`.
            InvalidRequestError: it lies more than ten years ahead.
        """
        target = _moment(moment)
        now = await self.now(**options)
        if target < now:
            raise ValueError(f"the clock stands at {now.isoformat()} and does not go back to {moment}")
        return await self.advance((target - now) / timedelta(seconds=1), **options)


class AsyncSandbox(AsyncResource):
    """What only a test chain can do. Every method raises the exceptions of `agentpay.errors`.

    Attributes:
        clock: the server's clock.
    """

    def __init__(self, client: AsyncAgentPay) -> None:
        """Use the sandbox of a server.

        Args:
            client: a client of the server, with an operator key; its connections and settings are used.
        """
        caller = client._caller  # noqa: SLF001 - the sandbox is a part of the client
        super().__init__(caller)
        self.clock: AsyncSandboxClock = AsyncSandboxClock(caller)

    async def fund(
        self, account_id: str, amount: Decimal | int | str, **options: Unpack[CallOptions]
    ) -> Funding:
        """Mint test USDC to an account; it is in the history as a deposit.

        Args:
            account_id: the account, `acct_…`.
            amount: USDC, exact; floats are refused.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(sandbox.FUND, path={"account_id": account_id}, body=Fund(amount=to_decimal(amount)))
        funding: Funding = await self._call(request, options)
        return funding

    async def create_token_account(self, **options: Unpack[CallOptions]) -> OutsideTokenAccount:
        """Make an outside recipient: a USDC token account that does not belong to this service.

        Args:
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        account: OutsideTokenAccount = await self._call(prepare(sandbox.CREATE_TOKEN_ACCOUNT), options)
        return account

    async def create_operator(self, name: str, **options: Unpack[CallOptions]) -> Operator:
        """Make a second tenant.

        Args:
            name: display label, 1 to 100 characters.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The operator with its key, which is shown here and never again.
        """
        request = prepare(sandbox.CREATE_OPERATOR, body=CreateOperator(name=name))
        operator: Operator = await self._call(request, options)
        return operator

    async def set_fault(
        self,
        name: str,
        times: int | None = None,
        *,
        effect: HttpEffect | str | None = None,
        delay_ms: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Fault:
        """Let something fail from now on.

        Args:
            name: `chain_down`, `chain_reply_lost`, `chain_never_lands`, `chain_slow`; requests of one
                operation, such as `http:POST /v1/transfers` or `http:GET /v1/accounts/{account_id}`; or, on
                a server in a process of its own, `crash_at:<point>`.
            times: how often, 1 to 1,000; None until it is deleted.
            effect: what goes wrong with a request: `delay`, `internal_error`, `reset` (the connection is
                dropped, nothing is done), `reply_lost` (all is done, the connection is dropped instead of
                the answer). For faults of requests, and for no other.
            delay_ms: how long `delay` holds each request, 1 to 60,000 milliseconds of real time.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            InvalidRequestError: there is no such fault; the message lists those that there are.
            ValueError: there is no such effect.
        """
        body = SetFault(times=times, effect=None if effect is None else HttpEffect(effect), delay_ms=delay_ms)
        request = prepare(sandbox.SET_FAULT, path={"name": name}, body=body)
        fault: Fault = await self._call(request, options)
        return fault

    async def delete_fault(self, name: str, **options: Unpack[CallOptions]) -> None:
        """Let one fault happen no more.

        Args:
            name: as for `set_fault`; one that is not armed stays so.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            InvalidRequestError: there is no such fault.
        """
        await self._call(prepare(sandbox.DELETE_FAULT, path={"name": name}), options)

    def faults(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[Fault]:
        """List the faults that will happen, the one that was armed last first.

        Args:
            limit: faults per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        return self._pages(sandbox.LIST_FAULTS, options, query={"limit": limit, "cursor": cursor})

    async def clear_faults(self, **options: Unpack[CallOptions]) -> None:
        """Let nothing fail any more.

        Args:
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        await self._call(prepare(sandbox.CLEAR_FAULTS), options)

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
        """Let something fail within a `with` block.

        Args:
            name: as for `set_fault`.
            times: how often, 1 to 1,000; None until the block ends.
            effect: as for `set_fault`.
            delay_ms: as for `set_fault`.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            InvalidRequestError: there is no such fault.
            ValueError: there is no such effect.
        """
        armed = await self.set_fault(name, times, effect=effect, delay_ms=delay_ms, **options)
        try:
            yield armed
        finally:
            await self.delete_fault(name, **options)

    async def snapshot(self, **options: Unpack[CallOptions]) -> Snapshot:
        """Remember all that the server knows: database, chain, clock, queues, chance, armed faults.

        For a server in memory. What is under way is waited for, up to five seconds.

        Args:
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The snapshot, to go back to any number of times. A server keeps 64; the one that was used least
            recently makes way.

        Raises:
            ConflictError: the server keeps its state elsewhere than in memory, or money stays under way.
        """
        snapshot: Snapshot = await self._call(prepare(sandbox.CREATE_SNAPSHOT), options)
        return snapshot

    def snapshots(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[Snapshot]:
        """List the snapshots of the operator that the server keeps, newest first.

        Args:
            limit: snapshots per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        return self._pages(sandbox.LIST_SNAPSHOTS, options, query={"limit": limit, "cursor": cursor})

    async def restore(self, snapshot: Snapshot | str, **options: Unpack[CallOptions]) -> None:
        """Go back to a snapshot, for every tenant: what has happened since has not happened.

        What is made since vanishes: accounts, keys, webhooks, inboxes. What is under way is cut off, and
        whoever waits for it gets no answer. The same operations give the same results as after any other
        restore of it: on a server with a seed, the same identifiers and signatures.

        Args:
            snapshot: from `snapshot`, or its identifier.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            NotFoundError: no such snapshot of this operator.
            ConflictError: the server keeps its state elsewhere than in memory, or is kept at work.
        """
        snapshot_id = snapshot.snapshot_id if isinstance(snapshot, Snapshot) else snapshot
        await self._call(prepare(sandbox.RESTORE_SNAPSHOT, path={"snapshot_id": snapshot_id}), options)

    async def reset(self, **options: Unpack[CallOptions]) -> None:
        """Go back to where the server was when it had started, for every tenant. Snapshots are kept.

        Args:
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            ConflictError: the server keeps its state elsewhere than in memory, or is kept at work.
        """
        await self._call(prepare(sandbox.RESET), options)


def _moment(given: datetime | str) -> datetime:
    if isinstance(given, str):
        try:
            return parse_timestamp(given)
        except ValueError as error:
            raise ValueError(f"{given[:64]!r} {error}") from None
    if given.tzinfo is None:
        raise ValueError("a moment has a UTC offset, such as datetime(…, tzinfo=UTC)")
    return given
