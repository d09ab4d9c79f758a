"""Looks up the purchase that a reference names, and the idempotency key for its next attempt."""

from collections.abc import Awaitable, Callable
from typing import Final

from agentpay._async.client import AsyncAgentPay
from agentpay.contract.ext.payments import SessionStep
from agentpay.contract.transfers import Transfer
from agentpay.errors import (
    ConflictError,
    NotSupportedError,
    OutcomeUnknownError,
    TransferRejectedError,
)
from agentpay.tools.references import (
    ATTEMPT_LAST,
    RecordedPurchase,
    is_alive,
    is_refused,
    key_of,
    newest_that_counts,
)

_PAGE: Final = 100


class AsyncPurchases:
    """Reads the transfers of a reference, and what it paid within sessions.

    Args:
        client: the client of the service.
        account_id: returns the account that pays.
    """

    def __init__(self, client: AsyncAgentPay, account_id: Callable[[], Awaitable[str]]) -> None:
        self._client = client
        self._account_id = account_id

    async def find(self, ref: str) -> RecordedPurchase:
        """Return what is recorded under a reference, however old; see `agentpay.tools.references`.

        A key has transfers only if the key before it was refused. So the number of refused keys is searched
        in steps that double, and halve once a key without transfers is found: a model that repeats a refused
        call a hundred times costs about a dozen reads. A transfer that is not refused ends the search: no
        other key of the reference can pay.

        Raises:
            AgentPayError: they cannot be read.
        """
        newest, refused, unused, step = await self._newest(ref, 0), 0, ATTEMPT_LAST + 1, 1
        if newest is None or not is_refused(newest):
            return await self._recorded(newest, key_of(ref))
        while unused - refused > 1:
            attempt = min(refused + step, (refused + unused) // 2 if unused <= ATTEMPT_LAST else ATTEMPT_LAST)
            found = await self._newest(ref, attempt)
            if found is None:
                unused = attempt
            elif not is_refused(found):
                return RecordedPurchase(found, key_of(ref, attempt))
            else:
                newest, refused, step = found, attempt, 2 * step
        return await self._recorded(newest, key_of(ref, min(unused, ATTEMPT_LAST)))

    async def found_after(
        self, ref: str, purchase: RecordedPurchase, error: Exception
    ) -> Transfer | SessionStep | None:
        """Return the recorded purchase that describes a request that failed.

        Args:
            ref: the reference.
            purchase: what was recorded before the request.
            error: the failure.

        Returns:
            None if only the error says what became of the request.

        Raises:
            AgentPayError: the transfers cannot be read.
        """
        if isinstance(error, OutcomeUnknownError):
            # An earlier refusal or failure says nothing about this request.
            return (await self.find(ref)).since(purchase)
        if isinstance(error, TransferRejectedError):
            # A repeated refusal may be older than what another process did meanwhile.
            return None if error.decided_at is None else (await self.find(ref)).transfer
        if isinstance(error, ConflictError):
            found = await self.find(ref)
            return found.step or found.transfer
        # A failed request does not undo earlier ones.
        return purchase.alive

    async def _recorded(self, newest: Transfer | None, key: str) -> RecordedPurchase:
        if newest is not None and is_alive(newest):
            return RecordedPurchase(newest, key)
        try:
            # Vouchers come first.
            page = await self._client.payments.list(
                account_id=await self._account_id(), idempotency_key=key, limit=1
            )
        except NotSupportedError:
            return RecordedPurchase(newest, key)
        steps = (each for each in page.data if isinstance(each, SessionStep))
        return RecordedPurchase(newest, key, next(steps, None))

    async def _newest(self, ref: str, attempt: int) -> Transfer | None:
        try:
            page = await self._client.transfers.list(
                account_id=await self._account_id(), idempotency_key=key_of(ref, attempt), limit=_PAGE
            )
        except NotSupportedError:
            # Such a service knows a purchase by its idempotency key alone.
            return None
        return newest_that_counts(page.data)
