# Generated from _async by scripts/unasync.py. Edit that one.
"""The sessions resource, an extension: open, charge, close and read sessions."""

import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any, Unpack

from agentpay._sync.paging import Page
from agentpay._sync.resource import Resource
from agentpay._calls.options import CallOptions
from agentpay.contract.choices import SessionStatus
from agentpay.contract.ext import sessions
from agentpay.contract.ext.sessions import Session


class Sessions(Resource):
    """Sessions: a cap in escrow, charged in small amounts, settled in one transaction.

    Every method works with an operator key, and with an agent-scoped key of the account that pays. Every
    method raises the exceptions of `agentpay.errors`.
    """

    __module__ = "agentpay.resources"

    def open(
        self,
        account_id: str,
        *,
        to: str,
        cap_usdc: Decimal | int | str,
        category: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Session:
        """Open a session: put its cap into an escrow on chain.

        Failed requests are retried if that is safe, always with the same idempotency key, so that at most one
        session is opened. To survive a crash of your process, store a key before calling, and pass it.

        Args:
            account_id: the account that pays: its `acct_…`, name or handle.
            to: the payee: an `account_id`, or an on-chain USDC token account.
            cap_usdc: USDC to put into escrow, with at most 6 decimals, and at least the server's minimum,
                0.01 by default. It counts against `max_daily_spend` in full until the session is settled.
                Floats are refused.
            category: spend category, 1 to 64 characters; required if the policy has `categories`.
            idempotency_key: 1 to 128 characters; a random one by default.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The open session. A key that was used before returns the current state of its session.

        Raises:
            NotFoundError: no such account of this operator.
            PolicyViolationError: the policy refuses it; the message names the limit. A cap at or above
                `escalation_threshold` needs an operator key.
            AccountPausedError: the account is paused.
            InsufficientBalanceError: the account holds too little.
            TransferFailedError: the chain refused the funding of the escrow; nothing moved.
            IdempotencyConflictError: the key was used with other parameters.
            ConflictError: the account has too many unsettled sessions (`too_many_sessions`).
            InvalidRequestError: the cap is below the server's minimum, a float, or has more than 6 decimals.
            InvalidRecipientError: `to` cannot hold USDC.
            ChainUnavailableError: the blockchain cannot be reached; nothing was done.
            OutcomeUnknownError: it may have been opened. Call again with the idempotency key of the
                error, never with another.
        """
        if idempotency_key is None:
            idempotency_key = str(uuid.uuid4())
        return self._call(sessions.OPEN_SESSION, locals(), options)

    def charge(
        self,
        session_id: str,
        *,
        amount: Decimal | int | str,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Session:
        """Add a micropayment to a session's running total. Nothing moves on chain until it is closed.

        Args:
            session_id: the session, `sess_…`.
            amount: USDC, at least 0.000001, with at most 6 decimals. Floats are refused.
            idempotency_key: 1 to 128 characters; the same key never charges a session twice. A random one by
                default.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The session with its new running total.

        Raises:
            InvalidRequestError: the amount is a float, negative, not finite, or has more than 6 decimals.
            NotFoundError: no such session of this operator.
            PolicyViolationError: the amount exceeds `max_single_transfer`.
            AccountPausedError: the account is paused.
            SessionCapExceededError: the running total would exceed the cap.
            SessionClosedError: the session accepts no more charges.
            IdempotencyConflictError: the key was used in this session with another amount.
            ChainUnavailableError: the session is not open yet; nothing was charged.
            OutcomeUnknownError: it may have been charged. Call again with the idempotency key of the
                error, never with another.
        """
        if idempotency_key is None:
            idempotency_key = str(uuid.uuid4())
        return self._call(sessions.CHARGE_SESSION, locals(), options)

    def close(
        self,
        session_id: str,
        *,
        seller_client: Any = None,  # noqa: ANN401 - a client of either library
        present: bool = True,
        **options: Unpack[CallOptions],
    ) -> Session:
        """Close a session: pay the charges to the payee, return the rest. Works while paused.

        A session over 402 is closed by its seller: this presents the close at the session's `url`, whichever
        process opened it. If that fails, the failure is logged, and the service closes the session by force.

        Args:
            session_id: the session, `sess_…`.
            seller_client: the HTTP client that presents the close to the seller; by default a new one,
                without proxies. It connects to private addresses, and without TLS, only if the service's own
                URL is `http`. Pass one for a seller in this process.
            present: whether to present the close; otherwise send the session's `header` yourself.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The settled session; closing it again returns the same. One over 402 is `closing` until the chain
            shows its end.

        Raises:
            NotFoundError: no such session of this operator.
            SessionClosedError: its opening failed; nothing can be closed.
            TransferFailedError: the payee's token account, or the account's own, cannot receive now; the
                money is safe in the escrow. Call again once it can.
            ChainUnavailableError: it is not settled yet; call again to get the result. If it is still
                opening, nothing was done; otherwise the server settles it.
        """
        session = self._call(sessions.CLOSE_SESSION, locals(), options)
        if present and session.header is not None:
            from agentpay._pay402._sync.closing import present_close  # noqa: PLC0415 - only sessions over 402 need it

            base_url = self._caller.settings.base_url
            present_close(session, base_url=base_url, seller_client=seller_client)
        return session

    def get(self, session_id: str, **options: Unpack[CallOptions]) -> Session:
        """Read a session.

        Args:
            session_id: the session, `sess_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such session of this operator.
        """
        return self._call(sessions.GET_SESSION, locals(), options)

    def list(
        self,
        *,
        account_id: str | None = None,
        status: SessionStatus | None = None,
        idempotency_key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Page[Session]:
        """List sessions, newest first. An agent-scoped key lists those of its account.

        Args:
            account_id: only sessions paid by this account.
            status: only sessions that are `opening`, `open`, `closing`, `settled` or `failed`.
            idempotency_key: only sessions with this key.
            since: only sessions requested after this time; with a UTC offset.
            until: only sessions requested up to and including this time; with a UTC offset.
            limit: sessions per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The first page. Iterating over it yields all sessions, fetching further pages as needed.
        """
        return self._pages(sessions.LIST_SESSIONS, locals(), options)
