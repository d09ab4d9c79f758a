# Generated from _async by scripts/unasync.py. Edit that one.
"""The transfers resource: create, read, list, check and wait for transfers."""

import math
import uuid
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final, Unpack

from agentpay._sync.paging import Page
from agentpay._sync.resource import Resource
from agentpay._calls.options import CallOptions
from agentpay._calls.retries import Sleep
from agentpay._calls.settings import Steps, checked_max_retries, checked_timeout
from agentpay._calls.waiting import looks
from agentpay.contract import endpoints
from agentpay.contract.choices import TransferSort, TransferStatus
from agentpay.contract.ext import spending
from agentpay.contract.ext.spending import TransferCheck
from agentpay.contract.requests import UNSET
from agentpay.contract.transfers import Transfer
from agentpay.errors import AgentPayError

WAIT_SECONDS: Final = 60.0
"""How long `wait` waits by default."""


class Transfers(Resource):
    """Transfers of USDC out of accounts."""

    __module__ = "agentpay.resources"

    def create(
        self,
        *,
        from_: str,
        to: str,
        amount: Decimal | int | str,
        memo: str | None = None,
        category: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Transfer:
        """Move USDC out of an account.

        Failed requests are retried if that is safe, always with the same idempotency key, so that money moves
        at most once. The key is logged at INFO before the first byte is sent, and is the `idempotency_key` of
        whatever exception leaves the call. To survive a crash of your process, keep one before the call:

            key = str(uuid.uuid4())
            orders.save(order_id, key)
            client.transfers.create(from_=bot, to=shop, amount="5", idempotency_key=key)

        Args:
            from_: source account: its `acct_…`, name or handle.
            to: recipient: an `account_id`, or an on-chain USDC token account.
            amount: USDC, at least 0.000001, with at most 6 decimals: a `Decimal`, an `int` or a string such
                as `"25.50"`. Floats are refused.
            memo: at most 200 characters; required if the policy has `require_memo`.
            category: spend category, 1 to 64 characters; required if the policy has `categories`.
            idempotency_key: 1 to 128 characters; the same key never moves money out of an account twice
                within 24 hours. A random one by default, returned in the transfer.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The transfer: `settled`, or `pending_approval` if the policy escalates it (see `wait`).

        Raises:
            InvalidRequestError: the request is invalid, such as an amount that is a float; `details` lists
                every fault that the service finds.
            PolicyViolationError: the policy refuses it; the message names the limit.
            AccountPausedError: the account is paused.
            InsufficientBalanceError: the account holds too little.
            TransferFailedError: the chain refused the transaction; nothing moved.
            IdempotencyConflictError: the key was used with other parameters.
            InvalidRecipientError: `to` cannot hold USDC.
            ChainUnavailableError: the blockchain cannot be reached; nothing was done.
            TransferOutcomeUnknownError: the transfer may have been created. Call again with the idempotency
                key of the error, never with another.
        """
        if idempotency_key is None:
            idempotency_key = str(uuid.uuid4())
        return self._call(endpoints.CREATE_TRANSFER, locals(), options)

    def get(self, transfer_id: str, **options: Unpack[CallOptions]) -> Transfer:
        """Read a transfer.

        Args:
            transfer_id: the transfer, `txn_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such transfer of this operator.
        """
        return self._call(endpoints.GET_TRANSFER, locals(), options)

    def check(
        self,
        *,
        from_: str,
        to: str,
        amount: Decimal | int | str,
        memo: str | None = None,
        category: str | None = None,
        **options: Unpack[CallOptions],
    ) -> TransferCheck:
        """Predict the outcome of a transfer without creating it.

        An extension. Nothing is reserved: another transfer may come first.

        Args:
            from_: source account: its `acct_…`, name or handle.
            to: recipient: an `account_id`, or an on-chain USDC token account.
            amount: USDC, at least 0.000001, with at most 6 decimals. Floats are refused.
            memo: at most 200 characters; required if the policy has `require_memo`.
            category: spend category, 1 to 64 characters; required if the policy has `categories`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            Whether it would settle, be escalated to an operator or be rejected, and why.

        Raises:
            InvalidRequestError: the amount is a float, negative, not finite, or has more than 6 decimals.
            NotFoundError: no such account of this operator.
            InvalidRecipientError: `to` cannot hold USDC.
            ChainUnavailableError: the blockchain cannot be reached.
            NotSupportedError: the service does not offer this extension.
        """
        return self._call(spending.CHECK_TRANSFER, locals(), options)

    def list(
        self,
        *,
        account_id: str | None = None,
        status: TransferStatus | None = None,
        idempotency_key: str | None = None,
        error: str | None = None,
        key_id: str | None = None,
        memo: str | None = None,
        min_amount: Decimal | int | str | None = None,
        max_amount: Decimal | int | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        sort: TransferSort | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Page[Transfer]:
        """List transfers of every status, newest first or sorted.

        An extension. An agent-scoped key lists those of its account.

        Args:
            account_id: only transfers out of this account.
            status: only transfers with this status.
            idempotency_key: only transfers with this key.
            error: only transfers with this error code, such as `insufficient_balance`.
            key_id: only transfers requested with this key, `key_…`, revoked or not.
            memo: only transfers whose memo begins with this text, ignoring case.
            min_amount: only transfers of at least this many USDC. Floats are refused.
            max_amount: only transfers of at most this many USDC. Floats are refused.
            since: only transfers requested after this time; with a UTC offset.
            until: only transfers requested up to and including this time; with a UTC offset.
            sort: `amount`, the smallest first, or `-amount`, the largest first.
            limit: transfers per page, 1 to 100; 20 by default. Iterating reads all pages.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The first page. Iterating over it yields all transfers, fetching further pages as needed.

        Raises:
            InvalidRequestError: `since` has no UTC offset; an amount is a float, less than 0.000001, or has
                more than 6 decimals.
            NotSupportedError: the service does not offer this extension.
        """
        return self._pages(spending.LIST_TRANSFERS, locals(), options)

    def wait(
        self,
        transfer_id: str,
        *,
        poll_interval: float = 0.5,
        **options: Unpack[CallOptions],
    ) -> Transfer:
        """Read a transfer until it is settled, rejected or failed.

        A rejected or failed transfer is returned, not raised, as in `get`. Temporary failures (no response,
        408, 429, and every 5xx except 501) do not end the wait, unless `max_retries` limits them.

        Args:
            transfer_id: the transfer, `txn_…`.
            poll_interval: maximum pause before the second read, in seconds, above 0. The maximum grows by
                half with each read, up to 5 s. Each pause is random, from half of the maximum to the maximum,
                and at least as long as the service asks for.
            **options: `total_timeout` is how many seconds to wait in all, 60 by default or less if the
                client's setting is shorter; 0 reads once, None means no limit. The last read may take up to 5
                seconds more for each step of its exchange. `max_retries` is how often a read is retried after
                a temporary failure; by default, as often as the time allows. For `timeout` and others, see
                `CallOptions`.

        Returns:
            The transfer in its final state; check its `status`, and `error` and `message` unless it is
            `settled`. A status that this version does not know is not final.

        Raises:
            InvalidRequestError: `total_timeout` is below 0, or `poll_interval` not above 0.
            ConfigurationError: an option is invalid.
            NotFoundError: no such transfer of this operator.
            WaitTimeoutError: it was not final in time. It may still settle later.
        """
        arguments = locals()
        http, setting = self._caller.http, self._caller.settings.total_timeout
        seconds = options.pop("total_timeout", UNSET)
        if seconds is UNSET:
            seconds = WAIT_SECONDS if setting is None else min(WAIT_SECONDS, setting)
        max_retries = options.pop("max_retries", UNSET)
        flow = looks(
            transfer_id,
            timeout=seconds,
            poll_interval=poll_interval,
            max_retries=math.inf if max_retries is UNSET else checked_max_retries(max_retries),
            now=http.monotonic,
            random=http.random,
        )
        step = next(flow)
        while not isinstance(step, Transfer):
            if isinstance(step, Sleep):
                http.sleep(step.seconds)
                step = next(flow)
            else:
                step = flow.send(self._look(arguments, step.timeout, options))
        return step

    def _look(
        self, arguments: Mapping[str, object], seconds: float, options: CallOptions
    ) -> Transfer | AgentPayError:
        given = options.get("timeout", UNSET)
        usual = self._caller.settings.timeout if given is UNSET else checked_timeout(given)
        usual = usual.read if isinstance(usual, Steps) else usual
        seconds = seconds if usual is None else min(seconds, usual)
        # Without retries: the wait has its own pauses, and those of retries would add to them.
        once: CallOptions = {**options, "timeout": None if seconds == math.inf else seconds, "max_retries": 0}
        try:
            return self._call(endpoints.GET_TRANSFER, arguments, once)
        except AgentPayError as error:
            return error
