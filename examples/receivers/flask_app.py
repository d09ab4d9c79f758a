"""Receive webhooks in Flask: `AGENTPAY_WEBHOOK_SECRET=whsec_… flask --app flask_app run`."""

import os

from flask import Flask

from agentpay.integrations import WebhookRouter
from agentpay.integrations.flask import receiver
from agentpay.webhooks import TransferSettled

webhooks = WebhookRouter(secret=os.environ["AGENTPAY_WEBHOOK_SECRET"])


@webhooks.on("transfer.settled")
def settled(event: TransferSettled) -> None:
    print(f"{event.type} {event.id}: {event.data.amount_usdc} USDC are final", flush=True)


app = Flask(__name__)
app.add_url_rule("/webhooks", view_func=receiver(webhooks), methods=["POST"])
