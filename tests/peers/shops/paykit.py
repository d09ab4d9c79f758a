"""PyPI solana-pay-kit with FastAPI, which offers x402 and MPP in one 402. It prints its URL as JSON."""

import json
import os
import socket

import solana_pay_kit as pk
import uvicorn
from fastapi import Depends, FastAPI
from solana_pay_kit.config import MppConfig
from solana_pay_kit.fastapi import RequirePayment, install, install_exception_handler
from solana_pay_kit.operator import Operator
from solana_pay_kit.price import Price
from solana_pay_kit.signer import Signer

pk.configure(
    network="solana_localnet",
    rpc_url=os.environ["RPC_URL"],
    operator=Operator(
        recipient=os.environ["PAY_TO"], signer=Signer.bytes(json.loads(os.environ["FEE_PAYER"]))
    ),
    mpp=MppConfig(challenge_binding_secret="k" * 40, realm="shop"),
    preflight=False,
)
app = FastAPI()
install_exception_handler(app)
install(app)


@app.get("/plain")
async def plain(payment=Depends(RequirePayment(Price.usd("0.001")))) -> dict:
    return {"weather": "rain"}


sock = socket.socket()
sock.bind(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{sock.getsockname()[1]}"}), flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[sock])
