"""The checks of a receiver, each a short exchange with one expectation (interface W5 to W12).

A check makes deliveries through `Desk` and notes what must follow: a response, or that an event is acted on
once or never, which is judged at the end, when the receiver has had time to act.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

from agentpay.webhooks import RETRY_SCHEDULE
from agentpay_lab.receiver_test.deliveries import (
    DeliveryRequest,
    Events,
    SampleEvent,
    delivery,
    rotating,
    signed,
)

_OTHER_SECRET: Final = "whsec_of_nobody"  # noqa: S105 - a wrong one, for forgeries
_HUGE_BYTES: Final = 16 * 2**20
_TOGETHER: Final = 8
_LATE: Final = RETRY_SCHEDULE + timedelta(minutes=1)


class Desk(Protocol):
    """What a check may do."""

    events: Events
    secret: str
    old_secret: str | None

    async def deliver(self, sent: DeliveryRequest) -> int | None:
        """Make a delivery; return the status, or None without a response in 10 seconds."""
        ...

    def miss(self, sentence: str, sent: DeliveryRequest) -> None:
        """Note what the receiver did wrong, and the request that shows it."""
        ...

    def acts_once(self, event: SampleEvent, sent: DeliveryRequest, cause: str) -> None:
        """Expect that the event is acted on exactly once."""
        ...

    def never_acts(self, event: SampleEvent, sent: DeliveryRequest, cause: str) -> None:
        """Expect that the event is never acted on."""
        ...


Check = Callable[[Desk], Awaitable[None]]


def _said(status: int | None) -> str:
    return "did not respond within 10 seconds" if status is None else f"responded {status}"


async def _accepted(desk: Desk, event: SampleEvent, sent: DeliveryRequest, what: str) -> None:
    status = await desk.deliver(sent)
    if status is None or not 200 <= status < 300:
        desk.miss(f"It {_said(status)} to {what}: the service gives up after 4 retries.", sent)
    desk.acts_once(event, sent, what)


async def _refused(desk: Desk, event: SampleEvent, sent: DeliveryRequest, what: str) -> None:
    status = await desk.deliver(sent)
    if status is None or not 400 <= status < 500:
        desk.miss(f"It {_said(status)} to {what}, instead of 401.", sent)
    desk.never_acts(event, sent, what)


async def genuine(desk: Desk) -> None:
    """Accepts a genuine delivery, and acts on it once."""
    event = desk.events.settled()
    await _accepted(desk, event, delivery(event, desk.secret), "a genuine delivery")


async def unsigned(desk: Desk) -> None:
    """Refuses a delivery without a signature."""
    event = desk.events.settled()
    sent = delivery(event, desk.secret).with_headers(X_Service_Signature=None)
    await _refused(desk, event, sent, "a delivery without a signature")


async def forged(desk: Desk) -> None:
    """Refuses a signature made with another secret."""
    event = desk.events.settled()
    await _refused(desk, event, delivery(event, _OTHER_SECRET), "a signature made with another secret")


async def altered(desk: Desk) -> None:
    """Refuses a body that was changed after it was signed."""
    event = desk.events.settled()
    genuine = delivery(event, desk.secret)
    sent = DeliveryRequest(event.body.replace(b"25.000000", b"95.000000"), genuine.headers)
    await _refused(desk, event, sent, "a body that was changed after it was signed")


async def raw_bytes(desk: Desk) -> None:
    """Verifies the raw bytes, not JSON that was parsed and written again."""
    event = desk.events.settled()
    genuine = delivery(event, desk.secret)
    # The same JSON in other bytes. A receiver that compares parsed JSON cannot tell them apart.
    sent = DeliveryRequest(event.body.replace(b" , ", b",").replace(b" : ", b":"), genuine.headers)
    await _refused(desk, event, sent, "the signed JSON in other bytes")


async def malformed_signatures(desk: Desk) -> None:
    """Refuses malformed signatures without failing."""
    for value in (b"", b"deadbeef", b"x" * 64, b"0" * 10_000, b"\xff" * 64):
        event = desk.events.settled()
        sent = delivery(event, desk.secret).with_headers(X_Service_Signature=value)
        await _refused(desk, event, sent, "a malformed signature")


async def malformed_bodies(desk: Desk) -> None:
    """Refuses signed bodies that are no events, without failing."""
    for body in (b"", b"{", b"[]", b"null", b'{"id": 7}', b"\xff\xfe", b"[" * 5_000):
        event = SampleEvent(desk.events.identifier("evt_"), body)
        sent = signed(body, desk.secret, event_id=event.id)
        status = await desk.deliver(sent)
        if status is None or status >= 500:
            desk.miss(f"It {_said(status)} to a signed body that is no event, instead of 400.", sent)
        desk.never_acts(event, sent, "a signed body that is no event")


async def huge(desk: Desk) -> None:
    """Refuses a huge body, and still works."""
    event = desk.events.settled()
    sent = DeliveryRequest(b" " * _HUGE_BYTES, delivery(event, _OTHER_SECRET).headers)
    status = await desk.deliver(sent)
    # It may also close the connection.
    if status is not None and not 400 <= status < 500:
        desk.miss(f"It {_said(status)} to 16 MiB without a valid signature, instead of 413.", sent)
    desk.never_acts(event, sent, "16 MiB without a valid signature")
    event = desk.events.settled()
    await _accepted(desk, event, delivery(event, desk.secret), "a genuine delivery after a huge one")


async def repeated(desk: Desk) -> None:
    """Acts once on an event that is delivered again."""
    event = desk.events.settled()
    for attempt in (1, 2, 3):
        sent = delivery(event, desk.secret, attempt=attempt)
        await _accepted(desk, event, sent, "an event that was delivered three times")


async def two_at_once(desk: Desk) -> None:
    """Acts once on an event that is delivered several times at once."""
    for _ in range(3):
        event = desk.events.settled()
        sent = [delivery(event, desk.secret, attempt=attempt) for attempt in range(1, _TOGETHER + 1)]
        await asyncio.gather(*(desk.deliver(each) for each in sent))
        # A receiver may refuse the others meanwhile: the service retries them.
        await _accepted(desk, event, sent[-1], f"an event that was delivered {_TOGETHER} times at once")


async def late(desk: Desk) -> None:
    """Accepts a delivery at its last retry."""
    event = desk.events.settled(age=_LATE)
    sent = delivery(event, desk.secret, attempt=5)
    await _accepted(desk, event, sent, "the last retry, 2 h 36 min after the event")


async def reordered(desk: Desk) -> None:
    """Acts on events that arrive in another order."""
    for _ in range(2):
        transfer_id = desk.events.identifier("txn_")
        first, second = desk.events.initiated(transfer_id), desk.events.settled(transfer_id=transfer_id)
        older = desk.events.settled(age=timedelta(minutes=10))
        for event in (second, first, older):
            sent = delivery(event, desk.secret)
            await _accepted(desk, event, sent, "an event that arrived after a later one")


async def rotated(desk: Desk) -> None:
    """Accepts both signatures of a rotation: its secret may be the old or the new one."""
    event = desk.events.settled()
    sent = rotating(event, old=_OTHER_SECRET, new=desk.secret)
    await _accepted(desk, event, sent, "a rotation to its secret (X-Service-Signature-Next)")
    event = desk.events.settled()
    sent = rotating(event, old=desk.secret, new=_OTHER_SECRET)
    await _accepted(desk, event, sent, "a rotation from its secret")


async def old_secret(desk: Desk) -> None:
    """Refuses a secret that was rotated out."""
    if desk.old_secret is None:
        return
    event = desk.events.settled()
    sent = delivery(event, desk.old_secret)
    await _refused(desk, event, sent, "the old secret after the overlap")


async def newer_types(desk: Desk) -> None:
    """Accepts an event of a type that it does not know."""
    event = desk.events.unknown()
    sent = delivery(event, desk.secret)
    status = await desk.deliver(sent)
    if status is None or not 200 <= status < 300:
        desk.miss(f"It {_said(status)} to an event of a newer type: the service retries it in vain.", sent)


CHECKS: Final[tuple[Check, ...]] = (
    genuine,
    unsigned,
    forged,
    altered,
    raw_bytes,
    malformed_signatures,
    malformed_bodies,
    huge,
    repeated,
    two_at_once,
    late,
    reordered,
    rotated,
    old_secret,
    newer_types,
)


def title_of(check: Check) -> str:
    """Return what a check requires, as a sentence."""
    return (check.__doc__ or "").strip()
