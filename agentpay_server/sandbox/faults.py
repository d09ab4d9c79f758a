"""The sandbox's faults, armed by name: of the chain, of requests, of the facilitator, and failpoints.

`FaultyChain` has the faults of a chain, on top of any real one. A fault changes which responses the service
gets, or whether a send arrives, never the effects of a transaction. No fault gives a response that a real
chain could not give: a landed transaction is never missing above its last valid block height, because that
would prove that it never lands.

`http/app.py` fails the requests of operations, the facilitator of the test kit those to settle a payment.
Only servers on test chains have them. They last as long as the process: a restarted server has none.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast

from attrs import evolve, frozen
from solders.transaction import VersionedTransaction

from agentpay.contract.errors import FieldError
from agentpay_server.chain.protocol import (
    Absence,
    Chain,
    ChainUnreachableError,
    DepositBatch,
    Posted,
    SignatureStatus,
    nothing_posted,
)
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS, SANDBOX_ENDPOINTS, Fault, HttpEffect, SetFault
from agentpay_server.platform import failpoints as points
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.errors import Problem, invalid, quote

LOOK_UPS_UNTIL_KNOWN: Final = 5
"""Look-ups until a slow chain shows a transaction: 0.6 s of a driver's pauses."""


class ChainFault(StrEnum):
    DOWN = "chain_down"
    """Calls fail."""

    REPLY_LOST = "chain_reply_lost"
    """A send executes, but its response is lost."""

    NEVER_LANDS = "chain_never_lands"
    """A send is accepted but never executes.

    Its blockhash expires: at once if the fault has a count, otherwise when it is disarmed.
    """

    SLOW = "chain_slow"
    """A transaction is unknown for the first look-ups."""


@frozen
class _Hidden:
    """The look-ups until a slow chain shows a transaction, and the block height that it reports meanwhile."""

    look_ups_left: int
    height: int


_FACTS: Final = {name for name, member in vars(Chain).items() if isinstance(member, property)} | {
    "explorer_url",
    "wait_for_notice",
}
"""Members that still answer while the chain is down."""


class FaultyChain:
    """`expire` expires the valid blockhash of `inner`, the chain that executes; None if only time can."""

    def __init__(self, inner: Chain, expire: Callable[[], None] | None = None) -> None:
        self.inner = inner
        self._expire = expire
        self._armed: dict[ChainFault, int | None] = {}
        self._hidden: dict[str, _Hidden] = {}
        self._shown: set[str] = set()
        self._dropped: set[str] = set()
        # Whether any of these is non-empty, so that a call needs only one check.
        self._is_active = False

    def arm(self, fault: ChainFault, times: int | None) -> None:
        self._armed[fault] = times
        self._is_active = True

    def disarm(self, fault: ChainFault) -> None:
        if fault is ChainFault.SLOW:
            self._hidden.clear()
        if fault in self._armed:
            self._end(fault)
        self._update_active()

    def times(self, fault: ChainFault) -> int | None:
        """Return None until it is disarmed, 0 if it is not armed."""
        return self._armed.get(fault, 0)

    def capture(self) -> Restore:
        """Also captures the pending effects of earlier faults."""
        return captured(self, "_armed", "_hidden", "_shown", "_dropped", "_is_active")

    @property
    def chain(self) -> Chain:
        """Itself: `__getattr__` gives it the members that no method here changes."""
        return cast("Chain", self)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a member of the chain
        if name not in vars(Chain):
            raise AttributeError(name)
        member = getattr(self.inner, name)
        return member if name in _FACTS else partial(self._unless_down, member)

    async def _unless_down(self, call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:  # noqa: ANN401 - of any call
        self._check_down()
        return await call(*args, **options)

    async def block_height(self) -> int:
        """A slow chain reports an old height."""
        self._check_down()
        height = await self.inner.block_height()
        return min((hidden.height for hidden in self._hidden.values()), default=height)

    async def signature_status(
        self, signature: str, *, absence: Absence | None = None
    ) -> SignatureStatus | None:
        """Return None for the first look-ups of a slow transaction."""
        self._check_down()
        status = await self.inner.signature_status(signature, absence=absence)
        hidden = self._hidden.get(signature)
        if hidden is None:
            return status
        if hidden.look_ups_left > 1:
            self._hidden[signature] = evolve(hidden, look_ups_left=hidden.look_ups_left - 1)
        else:
            del self._hidden[signature]
            # It is slow only once, however often it is resent.
            self._shown.add(signature)
            self._update_active()
        return None

    async def send(self, raw: bytes, *, even_if_failing: bool = True) -> None:
        """Execute, lose, or execute with a lost response."""
        self._check_down()
        if not self._is_active:
            await self.inner.send(raw, even_if_failing=even_if_failing)
            return
        signature = str(VersionedTransaction.from_bytes(raw).signatures[0])
        if signature in self._dropped:
            return
        if ChainFault.NEVER_LANDS in self._armed:
            self._dropped.add(signature)
            if self._armed[ChainFault.NEVER_LANDS] is not None:
                self._let_expire()
            self._count(ChainFault.NEVER_LANDS)
            return
        if ChainFault.SLOW in self._armed and signature not in self._hidden.keys() | self._shown:
            # Read before the send, so that the height reported meanwhile proves no expiry.
            height = await self.inner.block_height()
            self._hidden[signature] = _Hidden(LOOK_UPS_UNTIL_KNOWN, height)
            self._count(ChainFault.SLOW)
        await self.inner.send(raw, even_if_failing=even_if_failing)
        if ChainFault.REPLY_LOST in self._armed:
            self._count(ChainFault.REPLY_LOST)
            raise ChainUnreachableError("sandbox fault: the chain's response was lost")

    async def deposits(
        self, token_account: str, *, after: str | None, posted: Posted = nothing_posted
    ) -> AsyncIterator[DepositBatch]:
        self._check_down()
        async for batch in self.inner.deposits(token_account, after=after, posted=posted):
            yield batch

    def _check_down(self) -> None:
        if self._is_active and ChainFault.DOWN in self._armed:
            self._count(ChainFault.DOWN)
            raise ChainUnreachableError("sandbox fault: the chain is down")

    def _count(self, fault: ChainFault) -> None:
        """The last occurrence disarms the fault."""
        times = self._armed.get(fault)
        if times is None:
            return
        if times > 1:
            self._armed[fault] = times - 1
        else:
            self._end(fault)
            self._update_active()

    def _end(self, fault: ChainFault) -> None:
        del self._armed[fault]
        if fault is ChainFault.SLOW:
            self._shown.clear()
        if fault is ChainFault.NEVER_LANDS and self._dropped:
            self._let_expire()

    def _let_expire(self) -> None:
        """Ensure that lost transactions never land; if only time can, keep losing them."""
        if self._expire is not None:
            self._expire()
            self._dropped.clear()

    def _update_active(self) -> None:
        self._is_active = bool(self._armed or self._hidden or self._dropped)


OPERATIONS: Final = frozenset(
    endpoint.operation
    for endpoint in BOUND_ENDPOINTS
    # Sandbox operations never fail, so that every fault can be disarmed.
    if endpoint not in SANDBOX_ENDPOINTS
)
"""The operations that can fail, such as `POST /v1/transfers`."""


class FacilitatorFault(StrEnum):
    """A fault of the facilitator as it settles a payment that pays its terms."""

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


EVERY: Final = "*"
"""In place of an operation: every one that can fail and that no other fault is set for."""


class RequestFaults:
    """At most one per operation, or per fault of the facilitator."""

    def __init__(self) -> None:
        self._armed: dict[str, SetFault] = {}

    def __bool__(self) -> bool:
        """Whether any is armed: the only cost of a request while none is."""
        return bool(self._armed)

    def arm(self, operation: str, fault: SetFault) -> None:
        self._armed[operation] = fault

    def disarm(self, operation: str) -> None:
        self._armed.pop(operation, None)

    def armed(self) -> dict[str, SetFault]:
        return self._armed.copy()

    def take(self, operation: str) -> SetFault | None:
        """Return the fault for a request, and count it."""
        name = EVERY if operation in OPERATIONS and operation not in self._armed else operation
        fault = self._armed.get(name)
        if fault is not None and fault.times is not None:
            if fault.times > 1:
                self._armed[name] = evolve(fault, times=fault.times - 1)
            else:
                del self._armed[name]
        return fault

    def capture(self) -> Restore:
        return captured(self, "_armed")


CRASH_AT: Final = "crash_at:"
HTTP: Final = "http:"
FACILITATOR: Final = "facilitator:"
SLOW: Final = f"{FACILITATOR}{FacilitatorFault.SLOW}"
_NAMES: Final = ", ".join(ChainFault)


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
            if name.removeprefix(HTTP) not in OPERATIONS | {EVERY}:
                raise _bad_name(
                    f"{quote(name)!r} is not an operation that can fail; write method and path as in the "
                    "OpenAPI documents, such as 'http:POST /v1/transfers' or 'http:GET "
                    "/v1/accounts/{account_id}', or 'http:*' for all operations. Those of the sandbox cannot "
                    "fail"
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
            known = f"{_NAMES}, {HTTP}<method> <path> or *, {FACILITATOR}<fault> and {CRASH_AT}<point>"
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

    def set(self, name: str, request: SetFault) -> Fault:
        """The fault has passed `check`. Only one failpoint can be armed."""
        times = request.times
        if name.startswith(CRASH_AT):
            points.arm(name.removeprefix(CRASH_AT))
            times = 1
        elif (requests := self._requests(name)) is not None:
            requests.arm(name.partition(":")[2], request)
        else:
            self._chain.arm(ChainFault(name), times)
        self._last_seq += 1
        self._seqs[name] = self._last_seq
        return _armed(name, request, times)

    def delete(self, name: str) -> None:
        if (requests := self._requests(name)) is not None:
            requests.disarm(name.partition(":")[2])
        elif not name.startswith(CRASH_AT):
            self._chain.disarm(ChainFault(name))
        elif name == self._crash():
            points.disarm()

    def clear(self) -> None:
        for _, fault in self.armed():
            self.delete(fault.name)

    def armed(self) -> list[tuple[int, Fault]]:
        """The last armed first, each with its number, which is greater for later ones."""
        crash = self._crash()
        found = [] if crash is None else [Fault(name=crash, times=1)]
        found += [
            Fault(name=fault, times=times) for fault in ChainFault if (times := self._chain.times(fault)) != 0
        ]
        for prefix, requests in ((HTTP, self.http), (FACILITATOR, self.facilitator)):
            found += [
                _armed(f"{prefix}{name}", fault, fault.times) for name, fault in requests.armed().items()
            ]
        numbered = [(self._seqs.get(fault.name, 0), fault) for fault in found]
        return sorted(numbered, key=lambda each: each[0], reverse=True)

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


def _armed(name: str, request: SetFault, times: int | None) -> Fault:
    return Fault(name=name, times=times, effect=request.effect, delay_ms=request.delay_ms)


def _bad_name(message: str) -> Problem:
    return invalid(FieldError(field="name", message=message))
