"""Decides which requests fail, how, and how often.

`http/app.py` fails the requests of operations, the facilitator of the test kit those to settle a payment.
"""

from enum import StrEnum
from typing import Final

from attrs import evolve, frozen

from agentpay_server.contract.endpoints import BOUND_ENDPOINTS
from agentpay_server.contract.sandbox import SANDBOX_ENDPOINTS, HttpEffect
from agentpay_server.platform.capturing import Restore, captured

OPERATIONS: Final = frozenset(
    endpoint.operation
    for endpoint in BOUND_ENDPOINTS
    # Sandbox operations never fail, so that every fault can be disarmed.
    if endpoint not in SANDBOX_ENDPOINTS
)
"""The operations that can fail, such as `POST /v1/transfers`."""


class FacilitatorFault(StrEnum):
    """What the facilitator does with a request to settle a payment that pays its terms."""

    SLOW = "slow"
    """It settles at once, and responds `delay_ms` of real time later."""

    PENDING = "pending"
    """It broadcasts the payment, and responds `settlement_pending` without waiting for it."""

    FALSE_SUCCESS = "false_success"
    """It responds that the payment has settled, and never broadcasts it."""

    FALSE_FAILURE = "false_failure"
    """It settles, and responds that the payment failed."""

    SETTLES_TWICE = "settles_twice"
    """It responds that a payment has settled each time it is asked, not only the first."""

    FORGETS = "forgets"
    """It responds `settlement_pending`, and never broadcasts the payment."""


@frozen(kw_only=True)
class RequestFault:
    """`times` is None until it is disarmed."""

    effect: HttpEffect | None
    delay_ms: int | None
    times: int | None


class RequestFaults:
    """At most one per operation, or per fault of the facilitator."""

    def __init__(self) -> None:
        self._armed: dict[str, RequestFault] = {}

    def __bool__(self) -> bool:
        """Whether any is armed: the only cost of a request while none is."""
        return bool(self._armed)

    def arm(self, operation: str, fault: RequestFault) -> None:
        self._armed[operation] = fault

    def disarm(self, operation: str) -> None:
        self._armed.pop(operation, None)

    def armed(self) -> dict[str, RequestFault]:
        return self._armed.copy()

    def take(self, operation: str) -> RequestFault | None:
        """Return the fault for a request, and count it."""
        fault = self._armed.get(operation)
        if fault is not None and fault.times is not None:
            if fault.times > 1:
                self._armed[operation] = evolve(fault, times=fault.times - 1)
            else:
                del self._armed[operation]
        return fault

    def capture(self) -> Restore:
        return captured(self, "_armed")
