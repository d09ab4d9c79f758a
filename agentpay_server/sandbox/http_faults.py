"""Faults of requests: what goes wrong with which operation, and how often still.

Which request suffers is decided here; how it does is the business of `http/app.py`.
"""

from collections.abc import Callable
from typing import Final

from attrs import evolve, frozen

from agentpay_server.contract.endpoints import BOUND_ENDPOINTS
from agentpay_server.contract.sandbox import HttpEffect

OPERATIONS: Final = frozenset(
    f"{endpoint.method} {endpoint.path}"
    for endpoint in BOUND_ENDPOINTS
    # A fault of the sandbox could keep whoever armed it from disarming it.
    if not endpoint.path.startswith("/sandbox/")
)
"""The operations that can be made to fail, `POST /v1/transfers` and others."""


@frozen(kw_only=True)
class HttpFault:
    """A fault of one operation.

    Attributes:
        effect: what goes wrong.
        delay_ms: how long a request is held; None where it is not.
        times: how often it is still to happen; None until it is disarmed.
    """

    effect: HttpEffect
    delay_ms: int | None
    times: int | None


class HttpFaults:
    """The faults that are armed, one at most for each operation; an empty one is false."""

    def __init__(self) -> None:
        self._armed: dict[str, HttpFault] = {}

    def __bool__(self) -> bool:
        """Whether any is armed: all that a request costs while none is."""
        return bool(self._armed)

    def arm(self, operation: str, fault: HttpFault) -> None:
        """Let a fault happen to an operation, in the place of one that is armed."""
        self._armed[operation] = fault

    def disarm(self, operation: str) -> None:
        """Let nothing happen to an operation."""
        self._armed.pop(operation, None)

    def armed(self) -> dict[str, HttpFault]:
        """Return the faults by operation."""
        return self._armed.copy()

    def take(self, operation: str) -> HttpFault | None:
        """Return what happens to a request for an operation, and count it."""
        fault = self._armed.get(operation)
        if fault is not None and fault.times is not None:
            if fault.times > 1:
                self._armed[operation] = evolve(fault, times=fault.times - 1)
            else:
                del self._armed[operation]
        return fault

    def capture(self) -> Callable[[], None]:
        """Return what brings back the faults that are armed now."""
        armed = self._armed.copy()

        def restore() -> None:
            self._armed = armed.copy()

        return restore
