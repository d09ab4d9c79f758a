"""Receive webhooks in Starlette: `AGENTPAY_WEBHOOK_SECRET=whsec_… uvicorn starlette_app:app`."""

import os

from starlette.applications import Starlette
from starlette.routing import Route

from agentpay.integrations import WebhookRouter
from agentpay.integrations.starlette import receiver
from agentpay.webhooks import TransferSettled, UnknownEvent

webhooks = WebhookRouter(secret=os.environ["AGENTPAY_WEBHOOK_SECRET"])


@webhooks.on(TransferSettled)
async def settled(event: TransferSettled) -> None:
    print(f"{event.type} {event.id}: {event.data.amount_usdc} USDC are final", flush=True)


@webhooks.on(UnknownEvent)
def unknown(event: UnknownEvent) -> None:
    print(f"{event.type} {event.id}: an event of a newer type", flush=True)


app = Starlette(routes=[Route("/webhooks", receiver(webhooks), methods=["POST"])])
