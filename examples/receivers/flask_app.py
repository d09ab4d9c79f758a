"""Receive webhooks in Flask: `AGENTPAY_WEBHOOK_SECRET=whsec_… flask --app flask_app run`."""

import os

from flask import Flask, current_app

from agentpay.integrations import WebhookRouter
from agentpay.integrations.flask import receiver
from agentpay.webhooks import TransferSettled

webhooks = WebhookRouter(secret=os.environ["AGENTPAY_WEBHOOK_SECRET"])


@webhooks.on("transfer.settled")
def settled(event: TransferSettled) -> None:
    current_app.logger.info("%s USDC are final: %s", event.data.amount_usdc, event.data.tx_signature)


app = Flask(__name__)
app.add_url_rule("/webhooks", view_func=receiver(webhooks), methods=["POST"])
