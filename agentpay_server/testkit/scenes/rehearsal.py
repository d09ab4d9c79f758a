"""Builds a scene in memory first, so that one that cannot be built leaves nothing in stored data."""

from typing import TYPE_CHECKING

import httpx

from agentpay_server.platform.settings import Settings
from agentpay_server.testkit.scenes.document import Scene, SceneError

if TYPE_CHECKING:
    from agentpay._sync.client import AgentPay

_NOT_EMPTY = (
    "the data is not empty, and a scene is built only on empty data. A start that was killed leaves a part "
    "of its scene: delete the data and start again, or omit the scene"
)


class Unheard(httpx.AsyncBaseTransport):
    """Delivers nothing: the receivers of a scene must not hear of its rehearsal."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Refuse a delivery."""
        return httpx.Response(503, request=request)


def rehearse(scene: Scene, *, settings: Settings, has_manual_clock: bool, has_inboxes: bool) -> None:
    """Build a scene on a server of its own, and forget it.

    Raises:
        SceneError: it cannot be built.
    """
    from agentpay_server.testkit.embedded.server import AgentPayServer  # noqa: PLC0415 - it imports this module

    created = AgentPayServer(clock="manual" if has_manual_clock else "system", settings=settings)
    with created._without_receivers() as server:  # noqa: SLF001 - a part of it
        server._build(scene, has_inboxes=has_inboxes)  # noqa: SLF001 - as above


def require_empty(client: "AgentPay | None") -> None:
    """Raise `SceneError` if the operator has accounts; None is one of an earlier start."""
    if client is None or client.accounts.list(limit=1).data:
        raise SceneError(_NOT_EMPTY)
