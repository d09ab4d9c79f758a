"""A settled transfer through the SDK in process, against the sum of what it cannot do without.

The floor is: LiteSVM builds, signs and executes a transfer with a memo; one httpx round trip posts the same
request into an ASGI application that does nothing and reads its answer as JSON; two commits of one row each
through SQLAlchemy Core into SQLite in memory.

An async client on the server's own event loop is compared with a floor on one thread. A sync client's calls
cross to the server's thread and back, so its floor does too: the same round trip into an application on a
separate thread. Waking two threads takes 20 to 200 us, depending on how deeply idle cores sleep.
"""

import asyncio
import itertools
import json
import sys
import threading
from collections import Counter
from types import FrameType

import httpx
from harness import Result, compare
from solders.account import Account
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from sqlalchemy import create_engine, insert
from sqlalchemy.pool import StaticPool

from agentpay_server import AgentPayServer
from agentpay_server.chain import instructions
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, Custody
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.database.tables import operators
from agentpay_server.testkit.embedded.owner_thread import OwnerThread
from agentpay_server.testkit.embedded.transports import EmbeddedTransport

BATCH = 50
ANSWER = json.dumps(
    {
        "transfer_id": "txn_01h455vb4pex5vsknk084sn02q",
        "status": "settled",
        "from": "acct_01h455vb4pex5vsknk084sn02q",
        "to": "acct_01h455vb4pex5vsknk084sn02r",
        "amount_usdc": "0.010000",
        "memo": None,
        "idempotency_key": "5f6b1d1a-3c62-4f39-9a3e-6f0f2f6f2a11",
        "tx_signature": "5" * 88,
        "chain_explorer_url": "https://explorer.solana.com/tx/" + "5" * 88,
        "settled_at": "2026-01-01T00:00:00.000Z",
    }
).encode()
REQUEST = {
    "from": "acct_01h455vb4pex5vsknk084sn02q",
    "to": "acct_01h455vb4pex5vsknk084sn02r",
    "amount": "0.010000",
    "idempotency_key": "5f6b1d1a-3c62-4f39-9a3e-6f0f2f6f2a11",
}


async def null_app(scope, receive, send):
    await receive()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    await send({"type": "http.response.body", "body": ANSWER})


class BareChain:
    """LiteSVM with two token accounts and nothing of ours around the transfers."""

    def __init__(self) -> None:
        custody = Custody(bytes(64))
        chain = EmbeddedChain(
            treasury=custody.address(TREASURY),
            mint_authority=custody.address(TEST_MINT_AUTHORITY),
            now_us=lambda: 0,
        )
        asyncio.run(chain.restore())
        self.svm: LiteSVM = chain._svm
        self.payer, self.owner = Keypair(), Keypair()
        self.mint = Pubkey.from_string(chain.usdc_mint)
        mint_authority = Keypair.from_seed_and_derivation_path(bytes(64), "m/44'/501'/0'/2'")
        self.svm.set_account(self.payer.pubkey(), Account(10**12, b"", instructions.SYSTEM_PROGRAM))
        other = Keypair().pubkey()
        owners = (self.owner.pubkey(), other)
        create = instructions.create_associated_token_account_idempotent
        self.source, self.target = (
            Pubkey.from_string(instructions.associated_token_address(str(owner), chain.usdc_mint))
            for owner in owners
        )
        opening = [create(payer=self.payer.pubkey(), owner=owner, mint=self.mint) for owner in owners]
        funding = instructions.mint_to_checked(
            mint=self.mint,
            destination=self.source,
            mint_authority=mint_authority.pubkey(),
            amount_micro=10**15,
        )
        self._execute([*opening, funding], mint_authority)
        self._numbers = itertools.count()

    def transfer(self) -> None:
        """Build, sign and execute one."""
        step = instructions.transfer_checked(
            source=self.source,
            destination=self.target,
            owner=self.owner.pubkey(),
            mint=self.mint,
            amount_micro=10_000,
        )
        memo = instructions.memo(f"txn_01h455vb4pex5vsk{next(self._numbers):010}")
        self._execute([step, memo], self.owner)

    def _execute(self, steps, *signers) -> None:
        message = Message.new_with_blockhash(steps, self.payer.pubkey(), self.svm.latest_blockhash())
        result = self.svm.send_transaction(VersionedTransaction(message, [self.payer, *signers]))
        if not hasattr(result, "signature"):
            raise RuntimeError(str(result.err()))


def calls() -> tuple[int, int]:
    """Return how many functions one transfer calls, the sync client's included: in all, and Python's own."""
    events: Counter[str] = Counter()
    is_counting = False

    def count(_: FrameType, event: str, __: object) -> None:
        if is_counting:
            events[event] += 1

    # Threads that start from now on, the server's too, are profiled as long as they live.
    threading.setprofile(count)
    try:
        with AgentPayServer(seed=1) as server:
            client = server.client()
            source, target = (client.accounts.create(name=name).account_id for name in ("source", "target"))
            server.sandbox.fund(source, "1")
            client.transfers.create(from_=source, to=target, amount="0.01")
            sys.setprofile(count)
            is_counting = True
            client.transfers.create(from_=source, to=target, amount="0.01")
            is_counting = False
            sys.setprofile(None)
    finally:
        threading.setprofile(None)
    return events["call"] + events["c_call"], events["call"]


def run() -> list[Result]:
    """Return the ratios of a settled transfer to its floors, and print how many calls it takes."""
    print("calls of a settled transfer, sync: {}, of which {} are of Python functions".format(*calls()))
    bare = BareChain()
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

    async def floor_here(http: httpx.AsyncClient) -> None:
        for _ in range(BATCH):
            bare.transfer()
            (await http.post("/v1/transfers", json=REQUEST)).json()
            commit()
            commit()

    def floor_across(http: httpx.Client) -> None:
        for _ in range(BATCH):
            bare.transfer()
            http.post("/v1/transfers", json=REQUEST).json()
            commit()
            commit()

    null_owner = OwnerThread("null")
    with asyncio.Runner() as runner, AgentPayServer(seed=1) as server:
        client, async_client = server.client(), server.async_client()
        source = client.accounts.create(name="source").account_id
        target = client.accounts.create(name="target").account_id
        server.sandbox.fund(source, "1000000")

        async def pay() -> None:
            for _ in range(BATCH):
                await async_client.transfers.create(from_=source, to=target, amount="0.01")

        def pay_across() -> None:
            for _ in range(BATCH):
                client.transfers.create(from_=source, to=target, amount="0.01")

        here = httpx.AsyncClient(transport=httpx.ASGITransport(null_app), base_url="http://null.invalid")
        across = httpx.Client(
            transport=EmbeddedTransport(null_app, null_owner), base_url="http://null.invalid"
        )
        results = [
            compare(
                "settled transfer, async, on the server's loop",
                subject=lambda: server._running._owner.call(pay()),
                floor=lambda: runner.run(floor_here(here)),
                bound=2.0,
                calls=2,
            ),
            compare(
                "settled transfer, sync, across threads",
                subject=pay_across,
                floor=lambda: floor_across(across),
                bound=2.0,
                calls=2,
            ),
            compare(
                "the same, against the floor on one thread",
                subject=pay_across,
                floor=lambda: runner.run(floor_here(here)),
                bound=None,
                calls=2,
            ),
        ]
        runner.run(here.aclose())
        across.close()
    null_owner.stop()
    return [Result(r.name, r.subject_us / BATCH, r.floor_us / BATCH, r.ratio, r.bound) for r in results]
