"""Decides which requests fail, how, and how often; `http/app.py` makes them fail."""

from collections.abc import Callable
from typing import Final

from attrs import evolve, frozen

from agentpay_server.contract.endpoints import BOUND_ENDPOINTS
from agentpay_server.contract.sandbox import SANDBOX_ENDPOINTS, HttpEffect

OPERATIONS: Final = frozenset(
    endpoint.operation
    for endpoint in BOUND_ENDPOINTS
    # Sandbox operations never fail, so that every fault can be disarmed.
    if endpoint not in SANDBOX_ENDPOINTS
)
"""The operations that can fail, such as `POST /v1/transfers`."""


@frozen(kw_only=True)
class HttpFault:
    """`times` is None until it is disarmed."""

    effect: HttpEffect
    delay_ms: int | None
    times: int | None


class HttpFaults:
    """At most one per operation."""

    def __init__(self) -> None:
        self._armed: dict[str, HttpFault] = {}

    def __bool__(self) -> bool:
        """Whether any is armed: the only cost of a request while none is."""
        return bool(self._armed)

    def arm(self, operation: str, fault: HttpFault) -> None:
        self._armed[operation] = fault

    def disarm(self, operation: str) -> None:
        self._armed.pop(operation, None)

    def armed(self) -> dict[str, HttpFault]:
        return self._armed.copy()

    def take(self, operation: str) -> HttpFault | None:
        """Return the fault for a request, and count it."""
        fault = self._armed.get(operation)
        if fault is not None and fault.times is not None:
            if fault.times > 1:
                self._armed[operation] = evolve(fault, times=fault.times - 1)
            else:
                del self._armed[operation]
        return fault

    def capture(self) -> Callable[[], None]:
        armed = self._armed.copy()

        def restore() -> None:
            self._armed = armed.copy()

        return restore
