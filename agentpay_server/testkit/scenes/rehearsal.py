"""Builds a scene in memory first, so that one that cannot be built leaves nothing in stored data."""

import math
from typing import TYPE_CHECKING

import httpx
from attrs import evolve

from agentpay_server.platform.failpoints import exempt_thread
from agentpay_server.platform.settings import Settings
from agentpay_server.testkit.scenes.building import GoOn
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


def rehearse(
    scene: Scene,
    *,
    settings: Settings,
    has_manual_clock: bool,
    has_inboxes: bool,
    has_sellers: bool = True,
    go_on: GoOn = lambda: None,
) -> None:
    """Build a scene on a server of its own, and forget it.

    Raises:
        SceneError: it cannot be built.
    """
    from agentpay_server.testkit.embedded.server import AgentPayServer  # noqa: PLC0415 - it imports this module

    # A limit of requests would count the rehearsal, too.
    settings = evolve(settings, rate_limit_per_minute=math.inf)
    created = AgentPayServer(clock="manual" if has_manual_clock else "system", settings=settings)
    with created._without_receivers() as server:  # noqa: SLF001 - a part of it
        server._running.call(_exempt())  # noqa: SLF001 - as above
        server._build(scene, has_inboxes=has_inboxes, has_sellers=has_sellers, go_on=go_on)  # noqa: SLF001 - as above


async def _exempt() -> None:
    exempt_thread()


def require_empty(client: "AgentPay | None") -> None:
    """Raise `SceneError` if the operator has accounts; None is one of an earlier start."""
    if client is None or client.accounts.list(limit=1).data:
        raise SceneError(_NOT_EMPTY)
