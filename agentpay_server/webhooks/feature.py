"""The feature: events, as webhooks, as a stream and as a list."""

from collections.abc import AsyncGenerator
from typing import Final

from agentpay_server.feature import Core, Feature, Phase, Reply, Route
from agentpay_server.webhooks.deliveries import Deliveries
from agentpay_server.webhooks.http import HttpPoster
from agentpay_server.webhooks.sender import FirstAttempts, WebhookSender
from agentpay_server.webhooks.service import Webhooks
from agentpay_server.webhooks.tail import EventTail


class WebhookServices:
    def __init__(self, core: Core) -> None:
        context, config = core.context, core.config

        def make_poster() -> HttpPoster:
            public_only = not context.chain.is_test_chain
            return HttpPoster(public_only=public_only, mounts=config.mounts, authority=config.webhook_ca)

        self.poster: HttpPoster = core.keep(HttpPoster, make_poster)
        self.webhooks: Webhooks = Webhooks(context)
        self.deliveries: Deliveries = Deliveries(context, self.poster.is_held)
        self.sender: WebhookSender = WebhookSender(context, self.poster)
        self.tail: EventTail = EventTail(context)


def _stream(stream: AsyncGenerator[bytes]) -> Reply:
    return Reply(status=200, stream=stream)


FEATURE: Final[Feature[WebhookServices]] = Feature(
    name="webhooks",
    build=WebhookServices,
    work=lambda s: [(Phase.LATER, s.sender)],
    at_once=lambda s: FirstAttempts(s.sender, s.poster),
    routes={
        "webhooks.create": Route(201, lambda s, c: s.webhooks.create(c.principal, c.body)),
        "webhooks.list": Route(200, lambda s, c: s.webhooks.list(c.principal, c.query)),
        "webhooks.update": Route(
            200, lambda s, c: s.webhooks.update(c.principal, c.path["webhook_id"], c.body)
        ),
        "webhooks.delete": Route(204, lambda s, c: s.webhooks.delete(c.principal, c.path["webhook_id"])),
        "webhooks.rotate_secret": Route(
            200, lambda s, c: s.webhooks.rotate_secret(c.principal, c.path["webhook_id"], c.body)
        ),
        "webhooks.test": Route(202, lambda s, c: s.deliveries.test(c.principal, c.path["webhook_id"])),
        "events.stream": Route(
            _stream, lambda s, c: s.tail.stream(c.principal, c.headers.get("last-event-id"))
        ),
        "events.list": Route(200, lambda s, c: s.deliveries.list_events(c.principal, c.query)),
        "events.replay": Route(
            202, lambda s, c: s.deliveries.replay(c.principal, c.path["event_id"], c.body)
        ),
        "deliveries.replay": Route(202, lambda s, c: s.deliveries.replay_since(c.principal, c.body)),
        "deliveries.list": Route(200, lambda s, c: s.deliveries.list_deliveries(c.principal, c.query)),
    },
)
