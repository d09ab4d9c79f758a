"""A charge of a session through its client in process, against the sum of what it cannot do without.

The floor is one httpx round trip that posts the same request into an ASGI application that does nothing and
reads its answer as JSON, and one commit of one row through SQLAlchemy Core into SQLite in memory. The client
is async, on the server's own event loop. Growth is a charge of a session with 100,000 charges against one of
a session with 10.
"""

import asyncio
import itertools
import json

import httpx
from harness import Result, compare
from sqlalchemy import create_engine, insert
from sqlalchemy.pool import StaticPool

from agentpay_server import AgentPayServer
from agentpay_server.database.tables import operators, session_charges

BATCH = 100
FEW, MANY = 10, 100_000
SESSION = "sess_01h455vb4pex5vsknk084sn02q"
ANSWER = json.dumps(
    {
        "session_id": SESSION,
        "account_id": "acct_01h455vb4pex5vsknk084sn02q",
        "to": "acct_01h455vb4pex5vsknk084sn02r",
        "category": None,
        "status": "open",
        "cap_usdc": "1000000.000000",
        "running_total_usdc": "1.000000",
        "settled_usdc": None,
        "returned_usdc": None,
        "escrow_token_account": "ChMKJjhEv4qrN5i3Vj2NJUPMstfX3Pwqwd8isMKY4Wzz",
        "tx_signature": "5" * 88,
        "settlement_tx_signature": None,
        "opened_at": "2026-01-01T00:00:00.000Z",
        "settled_at": None,
    }
).encode()
REQUEST = {"amount": "0.000001", "idempotency_key": "5f6b1d1a-3c62-4f39-9a3e-6f0f2f6f2a11"}


async def null_app(scope, receive, send):
    await receive()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    await send({"type": "http.response.body", "body": ANSWER})


def run() -> list[Result]:
    """Return the ratio of a charge to its floor, and of one in a long session to one in a short one."""
    connection = create_engine("sqlite://", poolclass=StaticPool).connect()
    with connection.begin():
        operators.create(connection)
    numbers = itertools.count()
    statement = insert(operators)

    def commit() -> None:
        with connection.begin():
            connection.execute(
                statement, {"operator_id": f"op_{next(numbers)}", "name": "operator", "created_us": 0}
            )

    async def floor(http: httpx.AsyncClient) -> None:
        for _ in range(BATCH):
            (await http.post(f"/ext/v1/sessions/{SESSION}/charges", json=REQUEST)).json()
            commit()

    with asyncio.Runner() as runner, AgentPayServer(seed=1) as server:
        client = server.client()
        payer = client.accounts.create(name="payer").account_id
        payee = client.accounts.create(name="payee").account_id
        server.sandbox.fund(payer, "1000000")
        few, many = (
            server.sessions.open(account_id=payer, to=payee, cap_usdc="1000").session_id for _ in range(2)
        )
        context = server._running.server.context

        def fill(connection) -> None:
            for session_id, count in ((few, FEW), (many, MANY)):
                rows = [
                    {
                        "session_id": session_id,
                        "idempotency_key": f"{number:036}",
                        "amount": 1,
                        "created_us": 0,
                    }
                    for number in range(count)
                ]
                connection.execute(insert(session_charges), rows)

        server._running._owner.call(context.database.run(fill))

        async def charge(session_id: str) -> None:
            for _ in range(BATCH):
                await server.async_client().sessions.charge(session_id, amount="0.000001")

        def charging(session_id: str):
            return lambda: server._running._owner.call(charge(session_id))

        http = httpx.AsyncClient(transport=httpx.ASGITransport(null_app), base_url="http://null.invalid")
        results = [
            compare(
                "charge of a session, async, on the server's loop",
                subject=charging(few),
                floor=lambda: runner.run(floor(http)),
                bound=1.5,
                calls=2,
            ),
            compare(
                f"charge of a session with {MANY:,} charges against {FEW}",
                subject=charging(many),
                floor=charging(few),
                bound=1.2,
                calls=2,
            ),
        ]
        runner.run(http.aclose())
    return [Result(r.name, r.subject_us / BATCH, r.floor_us / BATCH, r.ratio, r.bound) for r in results]
