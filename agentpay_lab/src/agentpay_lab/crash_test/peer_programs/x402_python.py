"""Buys with x402 from PyPI and its spend controls: `python x402_python.py PLAN.json`."""

import asyncio

import httpx
from purchasing import SECONDS, buy, read_plan
from solders.keypair import Keypair
from x402 import x402Client
from x402.http.clients import x402HttpxClient
from x402.mechanisms.svm import KeypairSigner
from x402.mechanisms.svm.exact.client import ExactSvmScheme


async def main() -> None:
    plan = read_plan()
    signer = KeypairSigner(Keypair.from_bytes(bytes(plan["secret"])))
    payer = x402Client().register(plan["network"], ExactSvmScheme(signer, rpc_url=plan["rpc_url"]))
    allowed = {
        "network": plan["network"],
        "asset": plan["mint"],
        "max_amount_per_payment": plan["price_micro"],
    }
    payer.set_spend_controls({"allowed_assets": [allowed]})

    async def fetch(url: str) -> httpx.Response:
        # A client per request, as in the package's example.
        async with x402HttpxClient(payer, timeout=SECONDS, trust_env=False) as http:
            return await http.get(url)

    await buy(plan, fetch)


asyncio.run(main())
