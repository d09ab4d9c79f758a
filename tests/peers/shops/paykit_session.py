"""PyPI solana-pay-kit, which sells `/tick` by session of MPP. It prints its URL as JSON."""

import json
import os
import socket
from types import SimpleNamespace

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from solana_pay_kit._paycore.rpc import SolanaRpc
from solana_pay_kit.protocols.mpp.server.session import Split
from solana_pay_kit.protocols.mpp.server.session_method import (
    SessionChallengeOptions,
    SessionOptions,
    new_session,
)
from solana_pay_kit.signer import Signer


class Rpc(SolanaRpc):
    """The package's own client returns accounts in another form than its sessions read."""

    async def get_account_info(self, address, commitment="confirmed"):
        found = await super().get_account_info(str(address), commitment)
        return SimpleNamespace(value=found and SimpleNamespace(data=found[0], owner=found[1]))


signer = Signer.bytes(json.loads(os.environ["FEE_PAYER"]))
session = new_session(
    SessionOptions(
        # Only the payee can settle, and the package settles with the key of the operator.
        recipient=str(signer.pubkey()),
        amount=1_000,
        currency=os.environ["MINT"],
        network="localnet",
        secret_key="k" * 40,
        realm="shop",
        fee_payer=True,
        splits=[Split(os.environ["PARTNER"], 333)],
        rpc=Rpc(os.environ["RPC_URL"]),
        signer=signer,
    )
)
app = FastAPI()


@app.get("/tick")
async def tick(request: Request) -> JSONResponse:
    gate = await session.handle(request.headers.get("authorization"), SessionChallengeOptions())
    body = {"weather": "rain"} if gate.ok else gate.body
    return JSONResponse(body, gate.status, gate.headers)


sock = socket.socket()
sock.bind(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{sock.getsockname()[1]}"}), flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[sock])
