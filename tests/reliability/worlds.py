"""A whole server on the test's own event loop, with a chain that can fail and a database that lets others in.

Requests go through the real HTTP application; what they did is read from the chain and the tables themselves.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import books
import httpx
import stores
from attrs import evolve, frozen
from chains import FaultyChain
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from sqlalchemy import MetaData
from virtual_time import VirtualTimeLoop

from agentpay._async.client import AsyncAgentPay
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage, open_storage
from agentpay_server.assembly.server import Server, start_server
from agentpay_server.chain import transactions
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, sign_transaction
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.instructions import TOKEN_PROGRAM, memo
from agentpay_server.chain.protocol import Blockhash, SignedTransaction
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.runner import Database
from agentpay_server.database.sqlite import SqliteConnection
from agentpay_server.http.app import Application
from agentpay_server.http.requests import WHOLE
from agentpay_server.platform.clock import manual_clock
from agentpay_server.platform.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
BASE_URL = "http://agentpay.invalid"

P = ParamSpec("P")
T = TypeVar("T")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that never suspends, as those of the embedded chain."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    raise AssertionError("the coroutine suspended")


def micro(amount: str | Decimal) -> int:
    """Return USDC as micro-USDC."""
    return int(Decimal(amount).scaleb(6))


class InterruptedDatabase:
    """A database that lets others run before and after every unit of work, as one behind a socket does.

    It also checks that what is only read through it changes nothing.
    """

    is_inline = False

    def __init__(self, inner: Database, chance: random.Random | None) -> None:
        self._inner = inner
        self._chance = chance
        self.units_begun = 0
        """How many units of work have been begun so far, reading ones included."""
        self.violations = 0
        """How many of the next units of work violate a constraint; reading ones do not."""

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        await self._wander()
        self.units_begun += 1
        if self.violations:
            self.violations -= 1
            raise ConstraintError("a constraint other than that of keys")
        with _real_time():
            result = await self._inner.run(unit, *args, **kwargs)
        await self._wander()
        return result

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        await self._wander()
        self.units_begun += 1
        with _real_time():
            result = await self._inner.read(_unchanging(unit), *args, **kwargs)
        await self._wander()
        return result

    async def create_missing(self, tables: MetaData) -> None:
        with _real_time():
            await self._inner.create_missing(tables)

    async def close(self) -> None:
        with _real_time():
            await self._inner.close()

    async def _wander(self) -> None:
        if self._chance is not None:
            for _ in range(self._chance.randrange(4)):
                await asyncio.sleep(0)


def _real_time() -> AbstractContextManager[None]:
    """Work that virtual time must wait for: on other threads, and in other processes."""
    loop = asyncio.get_running_loop()
    return loop.held() if isinstance(loop, VirtualTimeLoop) else nullcontext()


def is_at_work() -> bool:
    """Whether another thread or process is at work for the server."""
    loop = asyncio.get_running_loop()
    return isinstance(loop, VirtualTimeLoop) and loop.is_held


def _unchanging(unit: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Connection, P], T]:
    """Return the unit with a check that it changes nothing, for engines that do not check."""

    def checked(connection: Connection, *args: P.args, **kwargs: P.kwargs) -> T:
        driver = connection._driver if isinstance(connection, SqliteConnection) else None
        before = None if driver is None else driver.total_changes
        result = unit(connection, *args, **kwargs)
        assert driver is None or driver.total_changes == before
        return result

    return checked


@lru_cache(maxsize=1024)
def _url(path: str) -> httpx.URL:
    return httpx.URL(BASE_URL + path)


@frozen
class Answer:
    """The response to a request."""

    status: int
    body: dict[str, Any]
    headers: httpx.Headers

    @property
    def error(self) -> str | None:
        return self.body.get("error")

    @property
    def transfer_id(self) -> str | None:
        return self.body.get("transfer_id")


@frozen
class Party:
    """An account, or an outside recipient: by its own name and by where its money is."""

    account_id: str
    token_account: str
    index: int = 0


def in_process(runtime: Server) -> httpx.ASGITransport:
    """Return a transport that calls the application with whole bodies, and says so."""
    app = Application(runtime)

    async def called(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, WHOLE: lambda: True}, receive, send)

    return httpx.ASGITransport(called)


class World:
    """A server, the chain under it, and what a test asks of both."""

    def __init__(self, runtime: Server, chain: FaultyChain) -> None:
        self.runtime = runtime
        self.chain = chain
        self._application = in_process(runtime)
        self.http = httpx.AsyncClient(
            transport=self._application,
            base_url=BASE_URL,
            headers={"Authorization": f"Bearer {runtime.operator.key}"},
            trust_env=False,
        )
        self._signed = 0

    async def stop(self) -> None:
        """End the server cleanly."""
        await self.http.aclose()
        await self.runtime.stop()

    async def kill(self) -> None:
        """End the server where it is: nothing is finished, nothing more is stored."""
        tasks = self.runtime.context.tasks
        ending = [*tasks._tasks, *tasks._loops]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self.http.aclose()
        await self.runtime.services.built["webhooks"].poster.close()
        await self.runtime.storage.close()

    async def cut_off(self, request: Coroutine[Any, Any, Answer], units: int) -> None:
        """Let so many units of work begin, of the database and of the chain's ledger, and kill the server.

        The last one may or may not be executed; no caller learns the outcome. Work that ends, or waits for
        time, is not waited for.
        """
        storage = self.runtime.storage
        kept: list[Any] = [storage.database, *([storage.ledger] if storage.ledger else [])]
        until = sum(each.units_begun for each in kept) + units
        asking, idle_turns = asyncio.ensure_future(request), 0
        while sum(each.units_begun for each in kept) < until and not asking.done() and idle_turns < 100:
            await asyncio.sleep(0)
            idle_turns = 0 if is_at_work() else idle_turns + 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await self.kill()

    async def look_back(self) -> None:
        """Find out what has landed in earlier lives of the chain."""
        ledger = self.runtime.storage.ledger
        assert ledger is not None
        succeeded = await books.rows(ledger, "chain_signatures", failure_reason=None)
        self.chain.landed_before = {row["signature"] for row in succeeded}

    def sdk(self, **options: Any) -> AsyncAgentPay:
        """Return an SDK client of the operator."""
        return AsyncAgentPay(
            api_key=self.runtime.operator.key,
            base_url=BASE_URL,
            transport=in_process(self.runtime),
            **options,
        )

    @property
    def treasury(self) -> str:
        """The address that pays the fees."""
        return self.runtime.context.signer.address(TREASURY)

    # --- What a caller can do -----------------------------------------------------------------------------

    async def agent_of(self, account: Party, **limits: Any) -> dict[str, str]:
        """Return the headers of an agent of an account, with a key for one run if there are limits."""
        body = {"account_id": account.account_id, **limits}
        made = await self.request("POST", "/ext/v1/console/agent-keys", body)
        return {"Authorization": f"Bearer {made.body['key']}"}

    async def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        content = None if body is None else json.dumps(body)
        sent = httpx.Headers(self.http.headers)
        sent.update(headers)
        # Past the client, which takes as long as the server to read addresses and cookies.
        request = httpx.Request(method, _url(path), content=content, headers=sent)
        response = await self._application.handle_async_request(request)
        told = await response.aread()
        return Answer(response.status_code, json.loads(told) if told else {}, response.headers)

    async def account(self, amount: str = "0", name: str = "Payer") -> Party:
        answer = await self.request("POST", "/v1/accounts", {"name": name})
        assert answer.status == 201, answer
        account_id = answer.body["account_id"]
        rows = await self.rows("accounts", account_id=account_id)
        if micro(amount):
            await self.fund(account_id, amount)
        return Party(account_id, answer.body["usdc_token_account"], rows[0]["key_index"])

    async def fund(self, account_id: str, amount: str) -> None:
        answer = await self.request("POST", f"/ext/v1/sandbox/accounts/{account_id}/fund", {"amount": amount})
        assert answer.status == 200, answer

    async def outside(self) -> Party:
        answer = await self.request("POST", "/ext/v1/sandbox/token-accounts")
        assert answer.status == 201, answer
        return Party(answer.body["usdc_token_account"], answer.body["usdc_token_account"])

    async def transfer(self, key: str, source: Party, to: Party | str, amount: str, **more: Any) -> Answer:
        recipient = to if isinstance(to, str) else to.account_id
        body = {"from": source.account_id, "to": recipient, "amount": amount, "idempotency_key": key, **more}
        return await self.request("POST", "/v1/transfers", body)

    async def get_transfer(self, transfer_id: str) -> dict[str, Any]:
        answer = await self.request("GET", f"/v1/transfers/{transfer_id}")
        assert answer.status == 200, answer
        return answer.body

    async def approve(self, transfer_id: str) -> Answer:
        return await self.request("POST", f"/ext/v1/console/approvals/{transfer_id}/approve")

    async def reject(self, transfer_id: str, reason: str = "no") -> Answer:
        return await self.request(
            "POST", f"/ext/v1/console/approvals/{transfer_id}/reject", {"reason": reason}
        )

    async def open_session(self, key: str, source: Party, to: Party, cap: str, **more: Any) -> Answer:
        body = {"account_id": source.account_id, "to": to.account_id, "cap_usdc": cap, "idempotency_key": key}
        return await self.request("POST", "/ext/v1/sessions", {**body, **more})

    async def opened_session(self, key: str, source: Party, to: Party, cap: str) -> str:
        answer = await self.open_session(key, source, to, cap)
        assert (answer.status, answer.body["status"]) == (201, "open"), answer
        return str(answer.body["session_id"])

    async def charge(self, key: str, session_id: str, amount: str) -> Answer:
        body = {"amount": amount, "idempotency_key": key}
        return await self.request("POST", f"/ext/v1/sessions/{session_id}/charges", body)

    async def close_session(self, session_id: str) -> Answer:
        return await self.request("POST", f"/ext/v1/sessions/{session_id}/close")

    async def get_session(self, session_id: str) -> dict[str, Any]:
        answer = await self.request("GET", f"/ext/v1/sessions/{session_id}")
        assert answer.status == 200, answer
        return answer.body

    async def policy(self, account: Party, **fields: Any) -> Answer:
        answer = await self.request("PUT", f"/v1/accounts/{account.account_id}/policy", fields)
        assert answer.status == 200, answer
        return answer

    async def detail(self, account: Party) -> dict[str, Any]:
        answer = await self.request("GET", f"/ext/v1/console/accounts/{account.account_id}")
        assert answer.status == 200, answer
        return answer.body

    async def advance(self, seconds: float = 0) -> None:
        # The shortest form of a float is what was typed, which the server reads as an exact decimal.
        answer = await self.request("POST", "/ext/v1/sandbox/clock/advance", {"seconds": seconds})
        assert answer.status == 200, answer

    async def rest(self) -> None:
        """Let everything in progress get as far as it can: two minutes of virtual time."""
        await asyncio.sleep(120)

    # --- What became of it --------------------------------------------------------------------------------

    async def rows(self, table: str, **where: object) -> list[dict[str, Any]]:
        """Return the rows of a table, oldest first."""
        return await books.rows(self.runtime.context.database, table, **where)

    async def events(self, transfer_id: str | None = None) -> list[dict[str, Any]]:
        """Return the events in the outbox, oldest first."""
        bodies = [json.loads(row["body"]) for row in await self.rows("events")]
        return [body for body in bodies if transfer_id in (None, body["data"].get("transfer_id"))]

    async def event_types(self, transfer_id: str) -> list[str]:
        return [event["type"] for event in await self.events(transfer_id)]

    async def entries(self, account: Party) -> list[dict[str, Any]]:
        """Return an account's history entries, oldest first."""
        return await self.rows("entries", account_id=account.account_id)

    def attempts(self, transfer_id: str | None) -> list[str]:
        """Return the fate of every transaction that was handed over for a transfer, oldest first."""
        assert transfer_id is not None
        # Its memo names the transfer, so that the bytes on the wire do.
        signatures = dict.fromkeys(
            signature for signature, raw in self.chain.sent if transfer_id.encode() in raw
        )
        landed = set(self.chain.landed())
        return ["landed" if signature in landed else "lost" for signature in signatures]

    def balance(self, party: Party) -> int:
        """Return the micro-USDC that the chain itself shows."""
        account = self.chain.inner._token_account(party.token_account)
        assert account is not None
        return account.amount_micro

    # --- What happens on chain without the service --------------------------------------------------------

    def freeze(self, party: Party) -> None:
        drive(self.set_frozen(party, is_frozen=True))

    def thaw(self, party: Party) -> None:
        drive(self.set_frozen(party, is_frozen=False))

    def drain(self, source: Party, to: Party, amount: str) -> None:
        """Move money with the spending key itself, behind the back of the service."""
        context = self.runtime.context
        self._signed += 1
        signed = transactions.transfer(
            context.signer,
            drive(self.chain.inner.latest_blockhash()),
            usdc_mint=self.chain.usdc_mint,
            account_index=source.index,
            source=source.token_account,
            recipient=to.token_account,
            amount_micro=micro(amount),
            memo=f"drain {self._signed}",
        )
        drive(self._landed(signed))

    async def set_frozen(self, party: Party, *, is_frozen: bool) -> None:
        """Freeze or thaw a token account; on a chain that is kept in a file this waits for the file."""
        signer = self.runtime.context.signer
        self._signed += 1
        accounts = [
            AccountMeta(Pubkey.from_string(party.token_account), is_signer=False, is_writable=True),
            AccountMeta(Pubkey.from_string(self.chain.usdc_mint), is_signer=False, is_writable=False),
            AccountMeta(
                Pubkey.from_string(signer.address(TEST_MINT_AUTHORITY)), is_signer=True, is_writable=False
            ),
        ]
        instruction = Instruction(TOKEN_PROGRAM, b"\x0a" if is_frozen else b"\x0b", accounts)
        signed = sign_transaction(
            signer,
            await self.chain.inner.latest_blockhash(),
            # The memo makes it another transaction than an equal one before.
            [instruction, memo(f"freeze or thaw {self._signed}")],
            TEST_MINT_AUTHORITY,
        )
        await self._landed(signed)

    def opening_of(self, owner: str, blockhash: Blockhash) -> SignedTransaction:
        """Return a transaction that opens a token account, signed and not sent."""
        signer = self.runtime.context.signer
        return transactions.create_token_account(
            signer, blockhash, usdc_mint=self.chain.usdc_mint, owner=owner
        )

    async def _landed(self, signed: SignedTransaction) -> None:
        await self.chain.inner.send(signed.raw)
        status = await self.chain.inner.signature_status(signed.signature)
        assert status is not None
        assert status.failure is None


async def started(
    *,
    seed: int = 7,
    settlement_wait_seconds: float = 20.0,
    interrupted: int | None = None,
    data_dir: Path | None = None,
    store: str | None = None,
    after: World | None = None,
    **settings: Any,
) -> World:
    """Return a running server on a clock at 2026-01-01T00:00:00Z, or where it was before.

    Args:
        seed: makes identifiers, keys and signatures repeat.
        settlement_wait_seconds: how long a transfer waits for finality, in the loop's own time.
        interrupted: the seed by which every call of the chain and the database lets others in; None lets
            no other in, as the embedded server itself.
        data_dir: a directory to keep everything in, chain included; else it ends with the world.
        store: where the database is without one: memory, file or postgres; where the run was told to if None.
        after: the world that was in the directory before; faults that do not end with a server continue.
        settings: other settings of the server.
    """
    chance = None if interrupted is None else random.Random(interrupted)
    made: list[FaultyChain] = []

    def wrap(inner: Any) -> FaultyChain:
        made.append(FaultyChain(inner, chance=chance))
        if after is not None:
            made[0].sent, made[0].black_holes = after.chain.sent, after.chain.black_holes
        return made[0]

    # Machines work in the smallest units, where every mistake shows.
    settings = {"min_session_cap_usdc": "0.000001", **settings}
    if data_dir is not None:
        settings = {"encryption_key": stores.KEY, **settings}
    wanted = Settings(settlement_wait_seconds=settlement_wait_seconds, **settings)
    with _real_time():
        if data_dir is None:
            storage = Storage(database=await stores.new_database(store), ledger=None, settings=wanted)
        else:
            if stores.is_empty(data_dir):
                await stores.lay_out(data_dir)
            storage = await open_storage(ServerConfig(settings=wanted, data_dir=data_dir))
    ledger = None if storage.ledger is None else InterruptedDatabase(storage.ledger, None)
    runtime = await start_server(
        ServerConfig(
            clock=manual_clock(START),
            seed=seed,
            operator_key=None if after is None else after.runtime.operator.key,
            wrap_chain=wrap,
        ),
        evolve(storage, database=InterruptedDatabase(storage.database, chance), ledger=ledger),
    )
    return World(runtime, made[0])


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    """Return a running world, as `started` does, for as long as a block runs."""
    made = await started(**options)
    try:
        yield made
    finally:
        await made.stop()
        chain = made.chain.inner
        if isinstance(chain, EmbeddedChain):
            # For the next world: a machine takes longer to make than the rest of a server.
            chain.release()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a separate event loop, for hypothesis, which calls it many times."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(test())


async def settled_as_answered(world: World, session_id: str, charges: list[Answer], each_micro: int) -> None:
    """Assert that a settlement is, to the unit, the charges that were answered with success."""
    session = await world.get_session(session_id)
    made = [answer for answer in charges if answer.status == 200]
    assert session["status"] == "settled"
    settled, returned = micro(session["settled_usdc"]), micro(session["returned_usdc"])
    assert settled == each_micro * len(made)
    assert settled + returned == micro(session["cap_usdc"])
    assert len(await world.rows("session_charges", session_id=session_id)) == len(made)
