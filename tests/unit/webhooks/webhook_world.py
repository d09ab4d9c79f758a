"""A signed delivery and what it takes to make one go wrong."""

import json

from agentpay.webhooks import sign

SECRET = "whsec_SECRET_of_the_webhook"
OTHER = "whsec_SECRET_that_is_new"
MOMENT = "2026-01-31T12:00:00.000Z"

ENVELOPE = {
    "id": "evt_a",
    "type": "transfer.settled",
    "created_at": MOMENT,
    "data": {
        "transfer_id": "txn_a",
        "account_id": "acct_a",
        "amount_usdc": "1.500000",
        "tx_signature": "5ig",
        "settled_at": MOMENT,
    },
}


def payload(**changes):
    """The body of a delivery; `data` and the rest of the envelope may be changed."""
    return json.dumps({**ENVELOPE, **changes}, separators=(",", ":")).encode()


PAYLOAD = payload()


def signed(body=PAYLOAD, secret=SECRET):
    """The headers of a delivery."""
    return {
        "Content-Type": "application/json",
        "X-Service-Event-Id": "evt_a",
        "X-Service-Signature": sign(body, secret),
    }
