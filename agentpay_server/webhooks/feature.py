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
        public_only = not context.chain.is_test_chain
        self.poster: HttpPoster = core.keep(
            HttpPoster,
            lambda: HttpPoster(public_only=public_only, mounts=config.mounts, authority=config.webhook_ca),
        )
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
        "webhooks.create": Route(201, lambda s: s.webhooks.create),
        "webhooks.list": Route(200, lambda s: s.webhooks.list),
        "webhooks.update": Route(200, lambda s: s.webhooks.update),
        "webhooks.delete": Route(204, lambda s: s.webhooks.delete),
        "webhooks.rotate_secret": Route(200, lambda s: s.webhooks.rotate_secret),
        "webhooks.test": Route(202, lambda s: s.deliveries.test),
        "events.stream": Route(_stream, lambda s: s.tail.stream),
        "events.list": Route(200, lambda s: s.deliveries.list_events),
        "events.replay": Route(202, lambda s: s.deliveries.replay),
        "deliveries.replay": Route(202, lambda s: s.deliveries.replay_since),
        "deliveries.list": Route(200, lambda s: s.deliveries.list_deliveries),
    },
)
