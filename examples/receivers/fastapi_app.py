"""Receive webhooks in FastAPI: `AGENTPAY_WEBHOOK_SECRET=whsec_… uvicorn fastapi_app:app`."""

import os

from fastapi import FastAPI

from agentpay.integrations import WebhookRouter
from agentpay.integrations.fastapi import receiver
from agentpay.webhooks import Event, SessionSettled, TransferSettled

webhooks = WebhookRouter(secret=os.environ["AGENTPAY_WEBHOOK_SECRET"])


@webhooks.on(Event)
async def spent(event: Event) -> None:
    match event:
        case TransferSettled(data=data):
            print(f"{event.type} {event.id}: {data.amount_usdc} USDC are final", flush=True)
        case SessionSettled(data=data):
            print(f"{event.type} {event.id}: {data.settled_usdc} USDC are final", flush=True)
        case _:
            print(f"{event.type} {event.id}", flush=True)


app = FastAPI()
app.add_route("/webhooks", receiver(webhooks), methods=["POST"])
