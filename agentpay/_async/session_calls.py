"""The session tools: operations of `AsyncAgentTools` on sessions and charges, by reference."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from agentpay._async.client import AsyncAgentPay
from agentpay.contract.sessions import Session
from agentpay.errors import (
    APIError,
    ChainUnavailableError,
    IdempotencyConflictError,
    OutcomeUnknownError,
    SessionClosedError,
    TransferFailedError,
)
from agentpay.tools import reports
from agentpay.tools.reports import idempotency_key
from agentpay.tools.results import SessionResult


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
                session.session_id, amount=amount_usdc, idempotency_key=idempotency_key(charge_ref)
            )
        except Exception as error:  # noqa: BLE001 - it may have been charged
            if session is not None and reports.is_refusal(error):
                return _refused_charge(session, ref, charge_ref, error)
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
            except (ChainUnavailableError, TransferFailedError, SessionClosedError) as error:
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
                idempotency_key=idempotency_key(ref),
            )
        except (IdempotencyConflictError, OutcomeUnknownError) as error:
            held = await self._found(ref)
            if held is None:
                return _unknown(ref, error)
            return _same(held, ref, to, cap_usdc)
        except (TransferFailedError, ChainUnavailableError) as error:
            return reports.session_without_record(ref, "failed", reason=reports.reason_of(error))
        except (APIError, ValueError) as error:
            if not reports.is_refusal(error):
                raise
            refused = reports.session_without_record(ref, "rejected", reason=reports.reason_of(error))
            return cast("SessionResult", {**refused, **reports.refusal(error)})
        return reports.session_of(session, ref)

    async def _found(self, ref: str) -> Session | None:
        page = await self._client.sessions.list(
            account_id=await self._account_id(), idempotency_key=idempotency_key(ref), limit=100
        )
        alive = [session for session in page.data if str(session.status) != "failed"]
        return next(iter(alive or page.data), None)


def _same(session: Session, ref: str, to: str, cap_usdc: str) -> SessionResult:
    result = reports.session_of(session, ref)
    if session.to == to and result["cap_usdc"] == reports.padded(cap_usdc):
        return result
    reason = (
        f"session_ref {ref} was used for a session of {result['cap_usdc']} USDC with {session.to}. This call "
        "asked for another one and opened nothing."
    )
    return cast("SessionResult", {**result, "reason": reason})


def _refused_charge(session: Session, ref: str, charge_ref: str, error: Any) -> SessionResult:  # noqa: ANN401
    changes = {"status": "rejected", "money_moved": "no", **reports.refusal(error)}
    if isinstance(error, IdempotencyConflictError):
        changes = {
            "money_moved": "yes",
            "reason": f"charge_ref {charge_ref} already charged another amount; nothing was charged now.",
            "next_step": "The same charge is done: do not repeat it. Only a different one gets a new ref.",
        }
    return reports.session_of(session, ref, charge_ref=charge_ref, **changes)


def _unfound(ref: str, charge_ref: str | None) -> SessionResult:
    reason = "No session is recorded under this session_ref; nothing was charged or closed by this call."
    result = reports.session_without_record(ref, "unknown", reason=reason, charge_ref=charge_ref)
    step = "Call open_session with the same session_ref first."
    return cast("SessionResult", {**result, "next_step": step})


def _unknown(ref: str, error: Exception, *, charge_ref: str | None = None) -> SessionResult:
    reason = reports.logged_reason(error)
    return reports.session_without_record(ref, "unknown", reason=reason, charge_ref=charge_ref)
