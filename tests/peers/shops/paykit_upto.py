"""PyPI solana-pay-kit with FastAPI, which sells by x402 `upto`. It prints its URL as JSON."""

import json
import os
import socket

import solana_pay_kit as pk
import uvicorn
from fastapi import Depends, FastAPI, HTTPException
from solana_pay_kit.config import MppConfig
from solana_pay_kit.fastapi import RequireUsage, install, install_exception_handler
from solana_pay_kit.gate import Gate
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
gate = Gate.build(name="answer", amount=Price.usd("0.01"), default_pay_to=os.environ["PAY_TO"])
app = FastAPI()
install_exception_handler(app)
install(app)


@app.get("/some")
async def some(charge=Depends(RequireUsage(gate))) -> dict:
    charge.charge(3_777)
    return {"weather": "rain"}


@app.get("/boom")
async def boom(charge=Depends(RequireUsage(gate))) -> dict:
    raise HTTPException(500, "boom")


sock = socket.socket()
sock.bind(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{sock.getsockname()[1]}"}), flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[sock])
