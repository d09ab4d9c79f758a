"""The world of a crash test: a chain, servers that are killed, a seller, and an account with money."""

import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

from attrs import field, frozen

from agentpay import AgentPay
from agentpay.contract.ext.identity import KeyKind
from agentpay.contract.usdc import to_micro
from agentpay_lab.crash_test.node import ChainNode
from agentpay_server.clients import Sandbox
from agentpay_server.paywall import Paywall
from agentpay_server.platform.principals import new_key

NETWORK: Final = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
_START_USDC: Final = 1_000
_FUND_TRIES: Final = 50
_POLL_SECONDS: Final = 0.1
_START_SECONDS: Final = 120.0


class CannotStartError(Exception):
    """The message includes the end of the process's log."""


class ServerProcess:
    """A server on a fixed port; `options` are those of `serve`, except the port.

    Attributes:
        ready: set while it accepts requests.
    """

    def __init__(self, options: Sequence[str], environment: dict[str, str], log: Path) -> None:
        with socket.socket() as sock:
            # The port is released here. Another process is unlikely to take it.
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.url: str = f"http://127.0.0.1:{port}"
        self.ready = threading.Event()
        self._command = [sys.executable, "-m", "agentpay_server", "serve", "--port", str(port), *options]
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts requests; `CannotStartError` if not in time."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command, env=self._environment, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        ready, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
        line = self._process.stdout.readline() if ready else b""
        if not line.startswith(b"{"):
            self.kill()
            raise CannotStartError(
                f"a server did not start: {self._log.read_text('utf-8', 'replace')[-800:]}"
            )
        self.ready.set()

    def kill(self) -> None:
        self.ready.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


@frozen(kw_only=True)
class World:
    """The servers, the paying account and the sellers of a trial.

    Attributes:
        key: an operator key of the servers.
        account_id: the account that pays.
        environment: the variables of a payer, except the URL of its server.
        own_accounts: token accounts of the account and of the wallet for payers that sign themselves.
        own_addresses: owners of those.
    """

    node: ChainNode
    servers: Sequence[ServerProcess]
    shop: Paywall
    key: str = field(repr=False)
    account_id: str
    environment: dict[str, str] = field(repr=False)
    own_accounts: frozenset[str]
    own_addresses: frozenset[str]

    def client(self) -> AgentPay:
        return AgentPay(api_key=self.key, base_url=self.servers[0].url, timeout=60)


@contextlib.contextmanager
def started(
    scratch: Path,
    say: Callable[[str], None],
    *,
    speed: int,
    servers: int,
    database_url: str | None,
    cap_usdc: Decimal | None,
) -> Iterator[World]:
    """Start a world; `cap_usdc` is the daily limit of its account.

    Raises:
        CannotStartError: a server cannot be started.
    """
    key = new_key(KeyKind.OPERATOR, secrets.token_bytes(32))
    where = (
        ["--data-dir", str(scratch / "data")] if database_url is None else ["--database-url", database_url]
    )
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(contextlib.closing(ChainNode(speed=speed)))
        options = ["--rpc-url", node.url, "--operator-key", key, "--no-dashboard", *where]
        environment = {**node.environment, "AGENTPAY_SERVER_ENCRYPTION_KEY": secrets.token_hex(32)}
        say(f"starting {servers} server(s)")
        processes = [
            ServerProcess(options, environment, scratch / f"server-{number}.log") for number in range(servers)
        ]
        for server in processes:
            # One by one: the first one creates the tables.
            stack.callback(server.kill)
            server.start()
        shop = stack.enter_context(Paywall(rpc_url=node.url, clock=node.clock))
        shop.listen()
        yield _prepared(node, processes, shop, key, cap_usdc)


def _prepared(
    node: ChainNode, servers: Sequence[ServerProcess], shop: Paywall, key: str, cap_usdc: Decimal | None
) -> World:
    with AgentPay(api_key=key, base_url=servers[0].url, timeout=60) as client:
        account = client.accounts.create(name="Payer")
        if cap_usdc is not None:
            client.policies.update(account.account_id, max_daily_spend=cap_usdc)
        Sandbox(client).fund(account.account_id, _START_USDC)
        # Deposits are posted with a delay.
        for _ in range(_FUND_TRIES):
            if client.accounts.balance(account.account_id).balance_usdc == _START_USDC:
                break
            time.sleep(_POLL_SECONDS)
        agent_key = client.agent_keys.create(account.account_id, name="Crash test").key
    wallet = node.wallet(to_micro(_START_USDC))
    address = str(wallet.pubkey())
    return World(
        node=node,
        servers=servers,
        shop=shop,
        key=key,
        account_id=account.account_id,
        environment={
            "AGENTPAY_API_KEY": agent_key,
            "AGENTPAY_ACCOUNT_ID": account.account_id,
            "TRIAL_RPC_URL": node.url,
            "TRIAL_NETWORK": NETWORK,
            "TRIAL_USDC_MINT": node.usdc_mint,
            "TRIAL_WALLET_SECRET": json.dumps(list(bytes(wallet))),
        },
        own_accounts=frozenset({account.usdc_token_account, node.token_account(address)}),
        own_addresses=frozenset({account.chain_address, address}),
    )
