"""The session tools: operations of `AsyncAgentTools` on sessions and charges, by reference."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import cast

from agentpay._async.client import AsyncAgentPay
from agentpay.contract.identifiers import SESSION, is_identifier
from agentpay.contract.sessions import Session
from agentpay.errors import (
    APIError,
    ChainUnavailableError,
    IdempotencyConflictError,
    NotFoundError,
    OutcomeUnknownError,
    SessionClosedError,
    TransferFailedError,
)
from agentpay.tools import reports
from agentpay.tools.references import key_of
from agentpay.tools.results import SessionResult, SessionStatusOrRefusal


class AsyncSessionCalls:
    """Opens, charges and closes sessions by reference. Nothing raises once it may have had an effect."""

    def __init__(self, client: AsyncAgentPay, account_id: Callable[[], Awaitable[str]]) -> None:
        self._client = client
        self._account_id = account_id

    async def open(self, ref: str, to: str, cap_usdc: str, category: str | None) -> SessionResult:
        """Return the session of a reference, opened at most once."""
        try:
            return await self._opened(ref, to, cap_usdc, category)
        except Exception as error:  # noqa: BLE001 - it may have been opened
            return _unknown(ref, error)

    async def charge(self, ref: str, charge_ref: str, amount_usdc: str) -> SessionResult:
        """Return the session of a reference, charged at most once for the charge reference."""
        session: Session | None = None
        try:
            session = await self._found(ref)
            if session is None:
                return _unfound(ref, charge_ref)
            charged = await self._client.sessions.charge(
                session.session_id, amount=amount_usdc, idempotency_key=key_of(charge_ref)
            )
        except Exception as error:  # noqa: BLE001 - it may have been charged
            if isinstance(error, IdempotencyConflictError) and session is not None:
                return reports.charge_conflict(session, ref, charge_ref)
            is_refused = reports.is_refusal(error) and not reports.is_unauthorized(error)
            if session is not None and is_refused:
                changes = {"status": "rejected", "money_moved": "no", **reports.refusal(error)}
                return reports.session_of(session, ref, charge_ref=charge_ref, **changes)
            return _unknown(ref, error, charge_ref=charge_ref)
        return reports.session_of(charged, ref, charge_ref=charge_ref, money_moved="yes")

    async def close(self, ref: str) -> SessionResult:
        """Settle the session of a reference, and return it."""
        try:
            session = await self._found(ref)
            if session is None:
                return _unfound(ref, None)
            try:
                session = await self._client.sessions.close(session.session_id)
            except (
                ChainUnavailableError,
                OutcomeUnknownError,
                SessionClosedError,
                TransferFailedError,
            ) as error:
                session = await self._client.sessions.get(session.session_id)
                return reports.session_of(session, ref, reason=reports.reason_of(error))
            return reports.session_of(session, ref)
        except Exception as error:  # noqa: BLE001 - it may be closing
            return _unknown(ref, error)

    async def _opened(self, ref: str, to: str, cap_usdc: str, category: str | None) -> SessionResult:
        account_id = await self._account_id()
        earlier = await self._found(ref)
        if earlier is not None and str(earlier.status) not in ("failed", "opening"):
            return _same(earlier, ref, to, cap_usdc)
        try:
            session = await self._client.sessions.open(
                account_id=account_id,
                to=to,
                cap_usdc=cap_usdc,
                category=category,
                idempotency_key=key_of(ref),
            )
        except (IdempotencyConflictError, OutcomeUnknownError) as error:
            held = await self._found(ref)
            # A failed session says nothing about the request that came after it.
            is_old = isinstance(error, OutcomeUnknownError) and held == earlier
            if held is None or (is_old and _is_failed(held)):
                return _unknown(ref, error)
            return _same(held, ref, to, cap_usdc)
        except (TransferFailedError, ChainUnavailableError) as error:
            return reports.session_without_record(ref, "failed", reason=reports.reason_of(error))
        except (APIError, ValueError) as error:
            if not reports.is_refusal(error) or reports.is_unauthorized(error):
                raise
            refused = reports.session_without_record(ref, "rejected", reason=reports.reason_of(error))
            return cast("SessionResult", {**refused, **reports.refusal(error)})
        return reports.session_of(session, ref)

    async def _found(self, ref: str) -> Session | None:
        if is_identifier(ref, SESSION):
            with contextlib.suppress(NotFoundError):
                return await self._client.sessions.get(ref)
        page = await self._client.sessions.list(
            account_id=await self._account_id(), idempotency_key=key_of(ref), limit=100
        )
        alive = [session for session in page.data if not _is_failed(session)]
        return next(iter(alive or page.data), None)


def _is_failed(session: Session) -> bool:
    return str(session.status) == "failed"


def _same(session: Session, ref: str, to: str, cap_usdc: str) -> SessionResult:
    result = reports.session_of(session, ref)
    if session.to == to and result["cap_usdc"] == reports.padded(cap_usdc):
        return result
    return reports.session_conflict(session, ref, to=to, cap_usdc=cap_usdc)


def _unfound(ref: str, charge_ref: str | None) -> SessionResult:
    reason = "No session is recorded under this session_ref; nothing was charged or closed by this call."
    return reports.session_without_record(
        ref, "unknown", reason=reason, charge_ref=charge_ref, advice=reports.NO_SESSION
    )


def _unknown(ref: str, error: Exception, *, charge_ref: str | None = None) -> SessionResult:
    status: SessionStatusOrRefusal = "unauthorized" if reports.is_unauthorized(error) else "unknown"
    if reports.is_other_kind(error):
        status = "conflict"
    reason = reports.logged_reason(error)
    return reports.session_without_record(ref, status, reason=reason, charge_ref=charge_ref)
