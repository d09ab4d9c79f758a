"""Act on each event exactly once in spite of kills: `AGENTPAY_WEBHOOK_SECRET=whsec_… python durable_app.py`.

The event's identifier and what it causes are one transaction, and the response comes after it. A repeated
delivery finds the identifier and does nothing.
"""

import os
import sqlite3
from functools import cache

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentpay.webhooks import TransferSettled, WebhookPayloadError, WebhookSignatureError, unwrap

SECRET = os.environ["AGENTPAY_WEBHOOK_SECRET"]
MAX_BYTES = 1024 * 1024


@cache
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(
        os.environ.get("RECEIVER_DATABASE", "receiver.sqlite"), check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS acted (event_id TEXT PRIMARY KEY, amount TEXT)")
    return connection


async def receive(request: Request) -> Response:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            return Response(status_code=413)
    try:
        event = unwrap(body, request.headers, SECRET)
    except WebhookSignatureError:
        return Response(status_code=401)
    except WebhookPayloadError:
        return Response(status_code=400)
    amount = str(event.data.amount_usdc) if isinstance(event, TransferSettled) else None
    with database() as connection:
        connection.execute("INSERT OR IGNORE INTO acted VALUES (?, ?)", (event.id, amount))
    return Response(status_code=200)


async def acted(_: Request) -> Response:
    rows = database().execute("SELECT event_id FROM acted")
    return PlainTextResponse("\n".join(event_id for (event_id,) in rows))


app = Starlette(routes=[Route("/webhooks", receive, methods=["POST"]), Route("/acted", acted)])

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), log_level="warning")
