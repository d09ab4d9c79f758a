"""PyPI x402 with FastAPI, put together as its documentation says. It prints its URL as JSON."""

import json
import os
import socket

import uvicorn
from fastapi import FastAPI, Response
from x402 import x402ResourceServer
from x402.http import FacilitatorConfig, HTTPFacilitatorClient
from x402.http.middleware.fastapi import payment_middleware
from x402.mechanisms.svm.exact.server import ExactSvmScheme
from x402.schemas import AssetAmount

NETWORK = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
USDC = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"

server = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=os.environ["FACILITATOR_URL"])))
# With an RPC URL, its challenges carry a blockhash as a hint.
server.register(NETWORK, ExactSvmScheme(rpc_url=os.environ.get("HINT_RPC_URL")))


def sold(**extra: str) -> dict:
    return {
        "accepts": {
            "scheme": "exact",
            "network": NETWORK,
            "payTo": os.environ["PAY_TO"],
            "price": AssetAmount(amount="1000", asset=USDC, extra=extra),
        },
        "description": 'A "quoted", thing',
    }


routes = {
    "GET /plain": sold(),
    "POST /plain": sold(),
    "GET /external-id": sold(memo="order-42"),
    "GET /upfront": sold(paymentFlow="upfront"),
    "GET /boom": sold(),
}
app = FastAPI()
middleware = payment_middleware(routes, server)


@app.middleware("http")
async def paid(request, call_next):
    return await middleware(request, call_next)


@app.api_route("/plain", methods=["GET", "POST"])
@app.get("/external-id")
@app.get("/upfront")
async def thing() -> dict:
    return {"weather": "rain"}


@app.get("/boom")
async def boom() -> Response:
    return Response('{"error":"boom"}', 500, media_type="application/json")


sock = socket.socket()
sock.bind(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{sock.getsockname()[1]}"}), flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[sock])
