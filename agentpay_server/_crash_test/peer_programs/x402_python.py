"""Buys with x402 from PyPI and its spend controls: `python x402_python.py PLAN.json`."""

import asyncio
import json
import sys
from pathlib import Path

from solders.keypair import Keypair
from x402 import x402Client
from x402.http.clients import x402HttpxClient
from x402.mechanisms.svm import KeypairSigner
from x402.mechanisms.svm.exact.client import ExactSvmScheme


async def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    done = Path(plan["done"])
    signer = KeypairSigner(Keypair.from_bytes(bytes(plan["secret"])))
    payer = x402Client().register(plan["network"], ExactSvmScheme(signer, rpc_url=plan["rpc_url"]))
    allowed = {
        "network": plan["network"],
        "asset": plan["mint"],
        "max_amount_per_payment": plan["price_micro"],
    }
    payer.set_spend_controls({"allowed_assets": [allowed]})

    def note(text: str) -> None:
        with done.open("a") as file:
            file.write(f"{text}\n")

    lines = done.read_text().splitlines() if done.exists() else []
    for name, path in plan["purchases"]:
        if f"{name} served" in lines or f"{name} unserved" in lines:
            continue
        is_served = False
        for _ in range(lines.count(f"{name} asked"), plan["tries"]):
            note(f"{name} asked")
            try:
                # A client for each request, as in the example of the package.
                async with x402HttpxClient(payer, timeout=70, trust_env=False) as http:
                    is_served = (await http.get(plan["shop"] + path)).status_code == 200
            except Exception as error:  # noqa: BLE001 - whatever it raises, the agent has no resource
                sys.stderr.write(f"{name} {error!r}\n")
            if is_served:
                break
        note(f"{name} {'served' if is_served else 'unserved'}")


asyncio.run(main())
