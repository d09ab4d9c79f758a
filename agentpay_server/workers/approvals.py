"""When transfers that wait for an operator have waited too long: at the time that each was given.

See interface AP4.
"""

from agentpay_server.services.transfers.approvals import Approvals


class ApprovalWorker:
    """Has transfers rejected that nobody approved in time."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    async def next_due_us(self) -> int | None:
        """Return when the next one has waited too long; None while none waits."""
        return await self._approvals.next_due_us()

    async def run_due(self) -> bool:
        """Reject those that have, one batch of them."""
        return await self._approvals.expire_due()
