"""The sandbox's faults, armed by name: of the chain, of requests, of the facilitator, and failpoints.

`http/app.py` fails the requests of operations, the facilitator of the test kit those to settle a payment.
Only servers on test chains have them. They last as long as the process: a restarted server has none.
"""

from enum import StrEnum
from typing import Final

from attrs import evolve, frozen

from agentpay.contract.errors import FieldError
from agentpay_server.contract.endpoints import BOUND_ENDPOINTS
from agentpay_server.contract.sandbox import SANDBOX_ENDPOINTS, HttpEffect, SetFault
from agentpay_server.platform import failpoints as points
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.errors import Problem, invalid, quote
from agentpay_server.sandbox.faulty_chain import ChainFault, FaultyChain

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


CRASH_AT: Final = "crash_at:"
HTTP: Final = "http:"
FACILITATOR: Final = "facilitator:"
SLOW: Final = f"{FACILITATOR}{FacilitatorFault.SLOW}"
_NAMES: Final = ", ".join(ChainFault)


@frozen(kw_only=True)
class ArmedFault:
    """`times` is how often it will still happen; None until it is disarmed.

    Later faults have a greater `seq`.
    """

    name: str
    times: int | None
    seq: int
    effect: HttpEffect | None = None
    delay_ms: int | None = None


class Faults:
    """`may_crash`: the server's process may be killed."""

    def __init__(self, chain: FaultyChain, *, may_crash: bool) -> None:
        self._chain = chain
        self.http: RequestFaults = RequestFaults()
        self.facilitator: RequestFaults = RequestFaults()
        self._may_crash = may_crash
        self._seqs: dict[str, int] = {}
        self._last_seq = 0

    def check_name(self, name: str) -> None:
        if name in list(ChainFault):
            return
        if name.startswith(HTTP):
            if name.removeprefix(HTTP) not in OPERATIONS:
                raise _bad_name(
                    f"{quote(name)!r} is not an operation that can fail; write method and path as in the "
                    "OpenAPI documents, such as 'http:POST /v1/transfers' or 'http:GET "
                    "/v1/accounts/{account_id}'. Sandbox operations cannot fail"
                )
            return
        if name.startswith(FACILITATOR):
            fault = name.removeprefix(FACILITATOR)
            if fault not in list(FacilitatorFault):
                known = ", ".join(FacilitatorFault)
                raise _bad_name(
                    f"has an unknown fault of the facilitator: {quote(fault)!r}; available: {known}"
                )
            return
        if not name.startswith(CRASH_AT):
            known = f"{_NAMES}, {HTTP}<method> <path>, {FACILITATOR}<fault> and {CRASH_AT}<point>"
            raise _bad_name(f"is unknown: {quote(name)!r}; available: {known}")
        point = name.removeprefix(CRASH_AT)
        if point not in points.POINTS:
            known = ", ".join(sorted(points.POINTS))
            raise _bad_name(f"has an unknown failpoint: {quote(point)!r}; available: {known}")
        if not self._may_crash:
            raise _bad_name(
                "would kill the process that this server shares with its caller; run the server as a "
                "separate process, with agentpay-server serve"
            )

    def check(self, name: str, request: SetFault) -> None:
        """Refuse an unknown fault or invalid parameters."""
        self.check_name(name)
        wrong = []
        if name.startswith(HTTP) and request.effect is None:
            wrong.append(FieldError(field="effect", message=f"must be one of {', '.join(HttpEffect)}"))
        if not name.startswith(HTTP) and request.effect is not None:
            wrong.append(FieldError(field="effect", message=f"applies only to request faults, {HTTP}…"))
        is_delay = request.effect is HttpEffect.DELAY or name == SLOW
        if is_delay and request.delay_ms is None:
            wrong.append(
                FieldError(field="delay_ms", message=f"is required for the effect delay and for {SLOW}")
            )
        if not is_delay and request.delay_ms is not None:
            wrong.append(
                FieldError(field="delay_ms", message=f"applies only to the effect delay and to {SLOW}")
            )
        if name.startswith(CRASH_AT) and request.times not in (None, 1):
            wrong.append(FieldError(field="times", message="must be 1 or omitted: a process dies once"))
        if wrong:
            raise invalid(*wrong)

    def set(self, name: str, request: SetFault) -> ArmedFault:
        """The fault has passed `check`. Only one failpoint can be armed."""
        times = request.times
        if name.startswith(CRASH_AT):
            points.arm(name.removeprefix(CRASH_AT))
            times = 1
        elif (requests := self._requests(name)) is not None:
            fault = RequestFault(effect=request.effect, delay_ms=request.delay_ms, times=times)
            requests.arm(name.partition(":")[2], fault)
        else:
            self._chain.arm(ChainFault(name), times)
        self._last_seq += 1
        self._seqs[name] = self._last_seq
        return ArmedFault(
            name=name, times=times, seq=self._last_seq, effect=request.effect, delay_ms=request.delay_ms
        )

    def delete(self, name: str) -> None:
        if (requests := self._requests(name)) is not None:
            requests.disarm(name.partition(":")[2])
        elif not name.startswith(CRASH_AT):
            self._chain.disarm(ChainFault(name))
        elif name == self._crash():
            points.disarm()

    def clear(self) -> None:
        for fault in self.armed():
            self.delete(fault.name)

    def armed(self) -> list[ArmedFault]:
        """The last armed first."""
        counts: dict[str, int | None] = {str(fault): self._chain.times(fault) for fault in ChainFault}
        crash = self._crash()
        if crash is not None:
            counts[crash] = 1
        found = [
            ArmedFault(name=name, times=times, seq=self._seqs.get(name, 0))
            for name, times in counts.items()
            if times != 0
        ]
        for prefix, requests in ((HTTP, self.http), (FACILITATOR, self.facilitator)):
            for operation, fault in requests.armed().items():
                name = f"{prefix}{operation}"
                found.append(
                    ArmedFault(
                        name=name,
                        times=fault.times,
                        seq=self._seqs.get(name, 0),
                        effect=fault.effect,
                        delay_ms=fault.delay_ms,
                    )
                )
        return sorted(found, key=lambda fault: fault.seq, reverse=True)

    def capture(self) -> Restore:
        restore_faults = captured(self, "_chain", "http", "facilitator", "_seqs", "_last_seq")
        restore_crash = points.capture() if self._may_crash else None

        def restore() -> None:
            restore_faults()
            if restore_crash is not None:
                restore_crash()

        return restore

    def _requests(self, name: str) -> RequestFaults | None:
        """Return the faults of requests to which a name belongs; None for other faults."""
        if name.startswith(HTTP):
            return self.http
        return self.facilitator if name.startswith(FACILITATOR) else None

    def _crash(self) -> str | None:
        point = points.armed() if self._may_crash else None
        return None if point is None else f"{CRASH_AT}{point}"


def _bad_name(message: str) -> Problem:
    return invalid(FieldError(field="name", message=message))
