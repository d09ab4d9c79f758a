"""A call of the SDK over a mock transport, against the same request made with bare httpx: post and json.

Both go through an httpx client, as they do over a network.
"""

import asyncio
import json

import httpx
from harness import Result, compare

from agentpay import AgentPay, AsyncAgentPay

ANSWER = json.dumps(
    {
        "transfer_id": "txn_01h455vb4pex5vsknk084sn02q",
        "status": "settled",
        "from": "acct_1",
        "to": "acct_2",
        "amount_usdc": "1.000000",
        "memo": None,
        "idempotency_key": "k",
        "tx_signature": "5" * 88,
        "chain_explorer_url": "https://explorer.solana.com/tx/" + "5" * 88,
        "settled_at": "2026-01-01T00:00:00.000Z",
    }
).encode()
REQUEST = {"from": "acct_1", "to": "acct_2", "amount": "1", "idempotency_key": "k"}
BASE_URL = "https://api.example.com"
KEY = "ap_operator_x"


def run() -> list[Result]:
    """Return the ratios of the sync and the async client."""
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, content=ANSWER, headers={"content-type": "application/json"})
    )
    headers = {"Authorization": f"Bearer {KEY}"}
    arguments = {"from_": "acct_1", "to": "acct_2", "amount": "1", "idempotency_key": "k"}

    with (
        httpx.Client(base_url=BASE_URL, headers=headers, transport=transport) as bare,
        httpx.Client(transport=transport) as given,
        AgentPay(api_key=KEY, base_url=BASE_URL, http_client=given) as client,
    ):
        in_sync = compare(
            "SDK call over a mock transport, sync",
            subject=lambda: client.transfers.create(**arguments),
            floor=lambda: bare.post("/v1/transfers", json=REQUEST).json(),
            bound=1.0,
        )

    async def repeated(call, count: int) -> None:
        for _ in range(count):
            await call()

    with asyncio.Runner() as runner:
        async_bare = httpx.AsyncClient(base_url=BASE_URL, headers=headers, transport=transport)
        async_given = httpx.AsyncClient(transport=transport)
        async_client = AsyncAgentPay(api_key=KEY, base_url=BASE_URL, http_client=async_given)

        async def post() -> object:
            return (await async_bare.post("/v1/transfers", json=REQUEST)).json()

        in_async = compare(
            "SDK call over a mock transport, async",
            subject=lambda: runner.run(repeated(lambda: async_client.transfers.create(**arguments), 100)),
            floor=lambda: runner.run(repeated(post, 100)),
            bound=1.0,
            calls=2,
        )
        runner.run(async_bare.aclose())
        runner.run(async_given.aclose())
        runner.run(async_client.close())
    per_call = Result(
        in_async.name, in_async.subject_us / 100, in_async.floor_us / 100, in_async.ratio, in_async.bound
    )
    return [in_sync, per_call]
