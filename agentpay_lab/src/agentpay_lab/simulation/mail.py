"""The simulated webhook receivers: check signatures, and that an event always has the same bytes."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx

from agentpay.errors import WebhookError
from agentpay.webhooks import unwrap

if TYPE_CHECKING:
    from agentpay_lab.simulation.world import SimulatedWorld


class Mail:
    """`webhooks` are identifiers and subscribed event types, `received` accepted events, by path."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self._digests: dict[str, bytes] = {}
        self._unsure: list[tuple[str, dict[str, str], bytes]] = []
        self.webhooks: dict[str, tuple[str, frozenset[str]]] = {}
        self.received: defaultdict[str, set[str]] = defaultdict(set)

    def registered(self, path: str, webhook_id: str, events: Sequence[str]) -> None:
        self.webhooks[path] = (webhook_id, frozenset(events))

    def arrived(self, path: str, headers: httpx.Headers, body: bytes) -> None:
        event_id, digest = headers["x-service-event-id"], hashlib.sha256(body).digest()
        if self._digests.setdefault(event_id, digest) != digest:
            self._world.violate("an event came with other bytes", path, event_id)
        kept = dict(headers)
        if not self._is_signed(path, kept, body):
            # Perhaps signed with a secret whose response has not arrived.
            self._unsure.append((path, kept, body))

    def check(self) -> None:
        """Check the unverified posts once every secret is known."""
        for path, headers, body in self._unsure:
            if not self._is_signed(path, headers, body):
                self._world.violate("a post is not signed", path, headers["x-service-event-id"])

    def _is_signed(self, path: str, headers: dict[str, str], body: bytes) -> bool:
        webhook_id = self.webhooks.get(path, ("", frozenset()))[0]
        secrets: Any = self._world.secrets.get(webhook_id)
        if secrets is None:
            return False
        if secrets.is_lost:
            return True
        try:
            event = unwrap(body, headers, secret=secrets.known, tolerance=None)
        except WebhookError:
            return False
        return event.id == headers["x-service-event-id"]
