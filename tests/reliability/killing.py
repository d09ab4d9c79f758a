"""Servers in separate processes that are killed, and the state that they leave behind.

A child serves a directory or a database and dies by SIGKILL at a named point. What it leaves is then served
again, in process, where a test can look at the chain and the tables themselves.
"""

import asyncio
import itertools
import json
import os
import shutil
import signal
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select as readable
from typing import Any

import books
import httpx
import rpc_world
import signed
import stores
import validators
from attrs import evolve, frozen
from loaded_python import LoadedPython
from solders.litesvm import LiteSVM
from solders.token.state import Mint, TokenAccount
from surfpool import Surfpool

from agentpay._http.clients import shared_ssl_context
from agentpay_server import AgentPayServer
from agentpay_server.assembly.opening import KEY_VARIABLE
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.instructions import TOKEN_PROGRAM
from agentpay_server.platform.settings import Settings
from agentpay_server.plugins.cluster.settings import FEE_PAYER_VARIABLE, MINT_AUTHORITY_VARIABLE

WAIT_SECONDS = 120

# A busy machine takes long: a request that finishes a killed one's work must not end before it.
PATIENT: Any = {"settlement_wait_seconds": 60}


@frozen
class Directory:
    """Data in a directory."""

    path: Path

    @property
    def options(self) -> list[str]:
        return ["--data-dir", str(self.path)]

    @property
    def environment(self) -> dict[str, str]:
        return {}

    def serve(self, **options: Any) -> AgentPayServer:
        return AgentPayServer(data_dir=self.path, **{"settings": Settings(**PATIENT), **options})

    def survey(self, server: AgentPayServer) -> "Survey":
        return Survey(server)

    def copied(self, scratch: Path, name: str) -> "Directory":
        shutil.copytree(self.path, scratch / name)
        return Directory(scratch / name)


@frozen
class Postgres:
    """Data in a PostgreSQL database."""

    name: str

    @property
    def options(self) -> list[str]:
        return ["--database-url", stores.url_of(self.name)]

    @property
    def environment(self) -> dict[str, str]:
        return {KEY_VARIABLE: stores.KEY.hex()}

    def serve(self, **options: Any) -> AgentPayServer:
        settings = Settings(encryption_key=stores.KEY, **PATIENT)
        return AgentPayServer(database_url=stores.url_of(self.name), settings=settings, **options)

    def survey(self, server: AgentPayServer) -> "Survey":
        return Survey(server)

    def copied(self, scratch: Path, name: str) -> "Postgres":
        return self.made(f"TEMPLATE {self.name} STRATEGY file_copy")

    @classmethod
    def made(cls, how: str = "") -> "Postgres":
        """Make a database."""
        name = f"{stores.prefix()}killed_{os.getpid()}_{next(_numbers)}"
        asyncio.run(stores.administer(stores.postgres_url(), f"CREATE DATABASE {name} {how}"))
        return cls(name)


@frozen
class OnValidator(Directory):
    """Data in a directory, and money on a validator."""

    node: Surfpool

    @property
    def options(self) -> list[str]:
        cluster = ["--rpc-url", self.node.url, "--rpc-websocket-url", self.node.websocket_url]
        # Lost transactions take some ten seconds to expire.
        return ["--data-dir", str(self.path), *cluster, "--settlement-wait", "60"]

    @property
    def environment(self) -> dict[str, str]:
        keys = {FEE_PAYER_VARIABLE: TREASURY, MINT_AUTHORITY_VARIABLE: TEST_MINT_AUTHORITY}
        return {variable: json.dumps(list(rpc_world.GIVEN[key])) for variable, key in keys.items()}

    def serve(self, **options: Any) -> AgentPayServer:
        rpc = validators.rpc_settings(self.node)
        return AgentPayServer(data_dir=self.path, rpc=rpc, **{"clock": "system", **options})

    def survey(self, server: AgentPayServer) -> "Survey":
        return NodeSurvey(server, self.node)

    def copied(self, scratch: Path, name: str) -> "OnValidator":
        shutil.copytree(self.path, scratch / name)
        return OnValidator(scratch / name, self.node)


_numbers = itertools.count()

Place = Directory | Postgres


@frozen
class Prepared:
    """A place where a payer has 100 USDC and a payee has none, and an operator's key."""

    place: Place
    key: str
    payer: str
    payee: str

    def copied(self, scratch: Path, name: str) -> "Prepared":
        return evolve(self, place=self.place.copied(scratch, name))

    def served(self) -> AgentPayServer:
        """Return a server of the place in this process."""
        return self.place.serve(operator_key=self.key)

    def transfer(self, key: str = "key", amount: str = "7") -> dict[str, str]:
        """Return the body of a transfer from the payer to the payee."""
        return {"from": self.payer, "to": self.payee, "amount": amount, "idempotency_key": key}


def prepared(place: Place) -> Prepared:
    """Prepare a directory by a server that is stopped cleanly."""
    with place.serve(clock="system") as server:
        client = server.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        server.sandbox.fund(payer.account_id, "100")
        return Prepared(place, server.operator_key, payer.account_id, payee.account_id)


_SERVE = """
import sys
from agentpay_server import cli
from agentpay_server.platform import failpoints

if sys.argv[1]:
    failpoints.arm(sys.argv[1])
cli.main(sys.argv[2:])
"""


@contextmanager
def child(it: Prepared, crash_at: str | None = None, *options: str) -> Iterator["Child"]:
    """Serve a directory in a separate process, which is killed at the end if it is still running."""
    # Loads are many and small: a killed process leaves sessions open.
    bounds = ["--min-session-cap", "0.000001", "--max-open-sessions", "1000000"]
    arguments = ["serve", "--port", "0", "--settlement-wait", "10", *bounds, *it.place.options, *options]
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        LoadedPython(
            *("-c", _SERVE, crash_at or "", *arguments),
            environment={**os.environ, **it.place.environment},
            stderr=nowhere.fileno(),
        ) as process,
    ):
        running = Child(process)
        try:
            yield running
        finally:
            running.close()


class Child:
    """A server in a separate process.

    Args:
        process: it has just begun to start.
    """

    def __init__(self, process: LoadedPython) -> None:
        self._process = process
        assert process.stdout is not None
        assert readable([process.stdout], [], [], WAIT_SECONDS)[0], "the child says nothing"
        # Nothing if it died before.
        announced = process.stdout.readline()
        self.base_url: str | None = json.loads(announced)["base_url"] if announced else None
        self._http = httpx.Client(
            base_url=self.base_url or "", verify=shared_ssl_context(), trust_env=False, timeout=WAIT_SECONDS
        )

    def request(self, method: str, path: str, key: str, body: object = None) -> httpx.Response | None:
        """Return the response to a request; None if the server died during or before it."""
        if self.base_url is None:
            return None
        try:
            return self._http.request(method, path, json=body, headers={"Authorization": f"Bearer {key}"})
        except httpx.TransportError:
            return None

    def assert_killed(self) -> None:
        """Wait for the death that the child was armed for."""
        assert self._process.wait() == -signal.SIGKILL

    def kill(self) -> None:
        """Kill it, if it lives, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._http.close()


def catch_up(server: AgentPayServer) -> None:
    """Let a server that has just started end all transactions in flight, however slow the machine is."""
    deadline = time.monotonic() + WAIT_SECONDS
    server.sandbox.clock.advance(0)
    while Survey(server).rows("chain_transactions", state="pending") and time.monotonic() < deadline:
        time.sleep(0.05)


def close_sessions(server: AgentPayServer) -> None:
    """Let a server that has just started end the closes that it resumes, however slow the machine is.

    It does not wait for them at its start, and an advance of the clock waits only for those that it begins.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while Survey(server).rows("sessions", status="closing") and time.monotonic() < deadline:
        time.sleep(0.05)


class Survey:
    """The chain and the tables of a server that is running in process."""

    is_of_node = False

    def __init__(self, server: AgentPayServer) -> None:
        world: Any = server._running
        self._call = world._owner.call
        self._context = world.server.context
        self._ledger = world.server.storage.ledger

    def _machine(self) -> LiteSVM:
        """Return the machine that executes, whatever the services see of it."""
        chain: Any = self._context.chain
        while not isinstance(chain, EmbeddedChain):
            chain = chain.inner
        return chain._svm

    def rows(self, table: str, **where: object) -> list[dict[str, Any]]:
        database = self._ledger if table in books.LEDGER else self._context.database
        return self._call(books.rows(database, table, **where))

    def landed(self) -> set[str]:
        """Return the signatures of all transactions that the chain executed with success."""
        return {row["signature"] for row in self.rows("chain_signatures", failure_reason=None)}

    def balances(self) -> dict[str, int]:
        """Return what every USDC token account on chain holds, in micro-USDC."""

        async def read() -> dict[str, int]:
            machine = self._machine()
            return {
                str(address): TokenAccount.from_bytes(account.data).amount
                for address, account in machine.get_program_accounts(TOKEN_PROGRAM)
                if len(account.data) == 165
            }

        return self._call(read())

    def minted(self) -> int:
        """Return the supply of USDC, in micro-USDC."""

        async def read() -> int:
            machine, mint = self._machine(), self._context.chain.usdc_mint
            (data,) = [a.data for k, a in machine.get_program_accounts(TOKEN_PROGRAM) if str(k) == mint]
            return Mint.from_bytes(data).supply

        return self._call(read())

    def assert_conserved(self, *, unposted: int = 0) -> None:
        """Assert that no money was made or lost, and that the books say what the chain says.

        Args:
            unposted: micro-USDC that arrived on chain and is not posted yet.
        """
        balances = self.balances()
        assert sum(balances.values()) == self.minted()
        accounts = self.rows("accounts")
        # Nothing half-made is ever listed.
        assert {row["usdc_token_account"] for row in accounts} <= balances.keys()
        on_chain = sum(balances[row["usdc_token_account"]] for row in accounts)
        assert sum(row["balance"] for row in accounts) + unposted == on_chain
        if not unposted:
            assert all(row["balance"] == balances[row["usdc_token_account"]] for row in accounts)

    def assert_settled_once(
        self, it: Prepared, answer: Any, landed_before: set[str], *, was_escalated: bool = False
    ) -> None:
        """Assert that one transfer of 7 USDC happened, on chain and in every table: the one of `answer`."""
        (transfer,) = self.rows("transfers")
        assert (transfer["transfer_id"], transfer["status"]) == (answer.transfer_id, "settled")
        assert self.landed() - landed_before == {transfer["tx_signature"]} == {answer.tx_signature}
        (tx,) = signed.of_kind(self.rows("chain_transactions"), "transfer")[-1:]
        assert (tx["state"], tx["raw"], tx["leased_until_us"]) == ("finalized", None, 0)
        accounts = {row["account_id"]: row for row in self.rows("accounts")}
        payer, payee = accounts[it.payer], accounts[it.payee]
        assert (payer["in_flight"], payee["in_flight"]) == (0, 0)
        assert (payer["balance"], payee["balance"]) == (93_000_000, 7_000_000)
        assert payer["spent_total"] == 7_000_000
        assert len(signed.spends(self.rows("chain_transactions"))) == 1
        assert signed.releases(self.rows("chain_transactions")) == []
        entries = Counter((row["account_id"], row["type"]) for row in self.rows("entries"))
        assert entries == {(it.payer, "deposit"): 1, (it.payer, "transfer"): 1, (it.payee, "deposit"): 1}
        types = [row["type"] for row in self.rows("events")]
        escalation = ["escalation.required"] if was_escalated else []
        assert types == [*escalation, "transfer.initiated", "transfer.settled"]
        self.assert_conserved()


class NodeSurvey(Survey):
    """The same, of a server whose accounts are on a node that other servers use too."""

    is_of_node = True

    def __init__(self, server: AgentPayServer, node: Surfpool) -> None:
        super().__init__(server)
        self._node = node

    def _of_token_accounts(self, method: str) -> dict[str, Any]:
        accounts = [row["usdc_token_account"] for row in self.rows("accounts")]
        escrows = [row["escrow_token_account"] for row in self.rows("sessions")]
        commitment = {"commitment": "confirmed", "encoding": "base64"}
        return {each: self._node.call(method, each, commitment) for each in [*accounts, *escrows]}

    def landed(self) -> set[str]:
        """Return the signatures of the transactions that did something to the accounts."""
        told = self._of_token_accounts("getSignaturesForAddress")
        return {line["signature"] for lines in told.values() for line in lines if line["err"] is None}

    def balances(self) -> dict[str, int]:
        told = self._of_token_accounts("getAccountInfo")
        existing = {each: found["value"]["data"][0] for each, found in told.items() if found["value"]}
        return {each: TokenAccount.from_bytes(b64decode(data)).amount for each, data in existing.items()}

    def assert_conserved(self, *, unposted: int = 0) -> None:
        assert not unposted
        balances = self.balances()
        assert all(row["balance"] == balances[row["usdc_token_account"]] for row in self.rows("accounts"))


def expiring(it: Prepared, dying: Child, point: str) -> None:
    """Lose a transaction until it has expired, where that is what the point is about."""
    if point.endswith(".expired"):
        lost = dying.request("PUT", "/ext/v1/sandbox/faults/chain_never_lands", it.key, {"times": 1})
        assert lost is not None
        assert lost.status_code == 200
