"""A payer of a crash test that uses the payment service, in Python: `python payer.py`.

Copy it, and put your agent's way to buy into `buy`, or into `call` for tools of MCP. It may be killed at any
moment and is asked again; what makes that safe here is that the order's name is the payment's key.
"""

import asyncio
import json
import os
import sys

import httpx

from agentpay import AgentPay, AsyncAgentPay, errors
from agentpay.payments import PaymentAuth

KEY, URL = os.environ["AGENTPAY_API_KEY"], os.environ["AGENTPAY_BASE_URL"]
ACCOUNT = os.environ["AGENTPAY_ACCOUNT_ID"]


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


async def call(order: str, url: str) -> str:
    """Call the tool that is named like the order, of the MCP server at the URL (--protocol mcp)."""
    from mcp import Client  # noqa: PLC0415 - an extra

    from agentpay.mcp import PaidTools  # noqa: PLC0415 - likewise

    result = "failed"
    try:
        async with (
            AsyncAgentPay(api_key=KEY, base_url=URL, max_retries=0) as client,
            Client(url) as mcp,
        ):
            try:
                bought = await PaidTools(mcp, client, account_id=ACCOUNT, url=url).call_tool(
                    order, payment_ref=order
                )
                result = "failed" if bought.result.is_error else "served"
            except errors.TransferRejectedError:
                result = "refused"
    except Exception as error:  # noqa: BLE001 - the client of MCP raises groups
        print(f"{order}: {error!r}", file=sys.stderr)
    return result


service = AgentPay(api_key=KEY, base_url=URL, max_retries=0)
# The cap is locked for each seller that sells by session (--protocol session).
auth = PaymentAuth(service, account_id=ACCOUNT, session_cap="0.1")
with httpx.Client(auth=auth, trust_env=False) as http:
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["protocol"] == "mcp":
            result = asyncio.run(call(asked["order"], asked["url"]))
        else:
            result = buy(http, asked["order"], asked["url"])
        print(json.dumps({"order": asked["order"], "result": result}), flush=True)
