"""Deliveries of webhook events, genuine and not, without I/O.

A delivery is a POST as the service makes it (interface W5, W6, W12). The body of an event is not how a JSON
library would write it: only a receiver that verifies the raw bytes accepts it.
"""

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from attrs import evolve, field, frozen

from agentpay.contract.fields import format_timestamp
from agentpay.webhooks import NEXT_SIGNATURE_HEADER, SIGNATURE_HEADER, sign

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


@frozen
class SampleEvent:
    """An event: its identifier, and its body as the service sends it, byte for byte, at each attempt."""

    id: str
    body: bytes = field(repr=False)


@frozen
class DeliveryRequest:
    """One HTTP request to the receiver."""

    body: bytes
    headers: Mapping[str, str | bytes]

    def with_headers(self, **headers: str | bytes | None) -> "DeliveryRequest":
        """Return it with other headers, whose names have `_` for `-`; None removes one."""
        changed = {name.replace("_", "-"): value for name, value in headers.items()}
        kept = {name: value for name, value in self.headers.items() if name not in changed}
        return evolve(
            self, headers=kept | {name: value for name, value in changed.items() if value is not None}
        )

    @property
    def shown(self) -> dict[str, Any]:
        """The request, for a report; a long body is cut."""
        headers = {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in self.headers.items()
        }
        text = self.body[:500].decode("utf-8", "replace")
        more = len(self.body) - 500
        return {"headers": headers, "body": text if more <= 0 else f"{text}… ({more} more bytes)"}


class Events:
    """Creates events; a seed makes the identifiers of the next run the same."""

    def __init__(self, seed: int, now: datetime) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret depends on it
        self._now = now

    def identifier(self, prefix: str) -> str:
        """Return a new identifier."""
        return prefix + "".join(self._random.choices(_ALPHABET, k=26))

    def settled(self, *, age: timedelta = timedelta(0), transfer_id: str | None = None) -> SampleEvent:
        """Return a `transfer.settled` that was created some time ago."""
        created = format_timestamp(self._now - age)
        data = {
            "transfer_id": transfer_id or self.identifier("txn_"),
            "account_id": self.identifier("acct_"),
            "amount_usdc": "25.000000",
            "tx_signature": "5" * 88,
            "settled_at": created,
        }
        return self._event("transfer.settled", created, data)

    def initiated(self, transfer_id: str) -> SampleEvent:
        """Return the `transfer.initiated` of a transfer."""
        data = {
            "transfer_id": transfer_id,
            "account_id": self.identifier("acct_"),
            "to": self.identifier("acct_"),
            "amount_usdc": "25.000000",
            "tx_signature": "5" * 88,
        }
        return self._event("transfer.initiated", format_timestamp(self._now), data)

    def unknown(self) -> SampleEvent:
        """Return an event of a type that a later version may add."""
        return self._event("transfer.teleported", format_timestamp(self._now), {"speed": 1})

    def _event(self, kind: str, created: str, data: Mapping[str, object]) -> SampleEvent:
        event_id = self.identifier("evt_")
        envelope = {"type": kind, "data": data, "created_at": created, "id": event_id}
        # Neither the separators nor the escapes that serializers choose by default.
        text = json.dumps(envelope, separators=(" , ", " : ")).replace("transfer", "\\u0074ransfer", 1)
        return SampleEvent(event_id, text.encode())


def delivery(event: SampleEvent, secret: str, *, attempt: int = 1) -> DeliveryRequest:
    """Return an attempt to deliver an event, signed with a secret."""
    return signed(event.body, secret, event_id=event.id, attempt=attempt)


def signed(body: bytes, secret: str, *, event_id: str, attempt: int = 1) -> DeliveryRequest:
    """Return a delivery of any body, signed with a secret."""
    return DeliveryRequest(
        body,
        {
            "Content-Type": "application/json",
            "User-Agent": "agentpay-lab receiver-test",
            SIGNATURE_HEADER: sign(body, secret),
            "X-Service-Event-Id": event_id,
            "X-Service-Delivery-Attempt": str(attempt),
        },
    )


def rotating(event: SampleEvent, *, old: str, new: str) -> DeliveryRequest:
    """Return a delivery during a rotation, signed with both secrets."""
    both = dict(delivery(event, old).headers) | {NEXT_SIGNATURE_HEADER: sign(event.body, new)}
    return DeliveryRequest(event.body, both)


def now() -> datetime:
    """Return the current time: receivers may compare it with an event's."""
    return datetime.now(UTC)
