"""Receive webhooks in Starlette: `AGENTPAY_WEBHOOK_SECRET=whsec_… uvicorn starlette_app:app`."""

import logging
import os

from starlette.applications import Starlette
from starlette.routing import Route

from agentpay.integrations import WebhookRouter
from agentpay.integrations.starlette import receiver
from agentpay.webhooks import TransferSettled, UnknownEvent

log = logging.getLogger(__name__)

webhooks = WebhookRouter(secret=os.environ["AGENTPAY_WEBHOOK_SECRET"])


@webhooks.on(TransferSettled)
async def settled(event: TransferSettled) -> None:
    log.info("%s USDC are final: %s", event.data.amount_usdc, event.data.tx_signature)


@webhooks.on(UnknownEvent)
def unknown(event: UnknownEvent) -> None:
    log.info("an event of a newer type: %s", event.type)


app = Starlette(routes=[Route("/webhooks", receiver(webhooks), methods=["POST"])])
