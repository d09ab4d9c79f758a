"""A payer of a crash test with a wallet of its own: the package x402, with its spend controls.

pip install "x402[svm,httpx]==2.25.0", then `python x402_python.py`. The package has no key for a purchase: an
order that is asked for again is a new call.
"""

import asyncio
import json
import os
import sys
from decimal import Decimal

from solders.keypair import Keypair
from x402 import x402Client
from x402.http.clients import x402HttpxClient
from x402.mechanisms.svm import KeypairSigner
from x402.mechanisms.svm.exact.client import ExactSvmScheme

NETWORK, MINT = os.environ["TRIAL_NETWORK"], os.environ["TRIAL_USDC_MINT"]
SECONDS = 25


async def buy(url: str, price_usdc: str) -> str:
    """Return `served` if the resource was obtained, else `failed`."""
    signer = KeypairSigner(Keypair.from_bytes(bytes(json.loads(os.environ["TRIAL_WALLET_SECRET"]))))
    scheme = ExactSvmScheme(signer, rpc_url=os.environ["TRIAL_RPC_URL"])
    payer = x402Client().register(NETWORK, scheme)
    most = str(int(Decimal(price_usdc) * 10**6))
    allowed = {"network": NETWORK, "asset": MINT, "max_amount_per_payment": most}
    payer.set_spend_controls({"allowed_assets": [allowed]})
    async with x402HttpxClient(payer, timeout=SECONDS, trust_env=False) as http:
        return "served" if (await http.get(url)).status_code == 200 else "failed"


for line in sys.stdin:
    asked = json.loads(line)
    try:
        result = asyncio.run(buy(asked["url"], asked["price_usdc"]))
    except Exception as error:  # noqa: BLE001 - whatever it raises, the payer has no resource
        print(f"{asked['order']}: {error!r}", file=sys.stderr)
        result = "failed"
    print(json.dumps({"order": asked["order"], "result": result}), flush=True)
