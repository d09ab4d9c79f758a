"""A payer of a crash test that uses the payment service, in Python: `python payer.py`.

Copy it, and put your agent's way to buy into `buy`. It may be killed at any moment and is asked again; what
makes that safe here is that the order's name is the payment's key.
"""

import json
import os
import sys

import httpx

from agentpay import AgentPay, errors
from agentpay.payments import PaymentAuth


def buy(http: httpx.Client, order: str, url: str) -> str:
    """Return `served` if the resource was obtained, `refused` if it never will be, else `failed`."""
    try:
        response = http.get(url, extensions={"payment_key": order})
    except errors.TransferRejectedError:
        return "refused"
    except (errors.AgentPayError, httpx.HTTPError) as error:
        print(f"{order}: {error}", file=sys.stderr)
        return "failed"
    return "served" if response.status_code == 200 else "failed"


service = AgentPay(
    api_key=os.environ["AGENTPAY_API_KEY"], base_url=os.environ["AGENTPAY_BASE_URL"], max_retries=0
)
# The cap is locked for each seller that sells by session (--protocol session).
auth = PaymentAuth(service, account_id=os.environ["AGENTPAY_ACCOUNT_ID"], session_cap="0.1")
with httpx.Client(auth=auth, trust_env=False) as http:
    for line in sys.stdin:
        asked = json.loads(line)
        result = buy(http, asked["order"], asked["url"])
        print(json.dumps({"order": asked["order"], "result": result}), flush=True)
