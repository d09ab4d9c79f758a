"""Receive webhooks in FastAPI: `AGENTPAY_WEBHOOK_SECRET=whsec_… uvicorn fastapi_app:app`."""

import logging
import os

from fastapi import FastAPI

from agentpay.integrations import WebhookRouter
from agentpay.integrations.starlette import receiver
from agentpay.webhooks import Event, SessionSettled, TransferSettled

log = logging.getLogger(__name__)

webhooks = WebhookRouter(secret=os.environ["AGENTPAY_WEBHOOK_SECRET"])


@webhooks.on(Event)
async def spent(event: Event) -> None:
    match event:
        case TransferSettled(data=data):
            log.info("%s USDC are final: %s", data.amount_usdc, data.tx_signature)
        case SessionSettled(data=data):
            log.info("%s USDC are final: %s", data.settled_usdc, data.tx_signature)
        case _:
            log.info("%s", event.type)


app = FastAPI()
app.add_route("/webhooks", receiver(webhooks), methods=["POST"])
