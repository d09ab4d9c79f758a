"""`AgentPayServer`: the whole service in process, for tests and for starting out.

It lives on a thread of its own, with its database, chain and clock. Clients that it hands out reach it
without a socket; `listen` opens a real port beside them.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, get_args, overload

from agentpay._async.client import AsyncAgentPay
from agentpay._async.console import AsyncConsole
from agentpay._async.sessions import AsyncSessions
from agentpay._sync.client import AgentPay
from agentpay._sync.console import Console
from agentpay._sync.sessions import Sessions
from agentpay.contract.choices import EventType
from agentpay.contract.deliveries import Delivery
from agentpay.contract.events import Event
from agentpay.contract.policies import Limit
from agentpay.errors import ConflictError
from agentpay_server.chain.rpc.settings import RpcSettings
from agentpay_server.clients._async.sandbox import AsyncSandbox
from agentpay_server.clients._sync.sandbox import Sandbox
from agentpay_server.clock import Clock, SystemClock, from_us, manual_clock
from agentpay_server.config import ServerConfig
from agentpay_server.database.schema_name import DATABASE_SCHEMA
from agentpay_server.embedded.applications import Application, application
from agentpay_server.embedded.inbox import INBOX_URL, InboxTransport, WebhookInbox
from agentpay_server.embedded.owner_thread import OwnerThread
from agentpay_server.embedded.recorder import (
    RECORDS_MAX,
    ChainTransaction,
    RecordedRequest,
    Recorder,
    Records,
)
from agentpay_server.embedded.scenarios import (
    LowBalance,
    NearDailyLimit,
    NearSessionCap,
    PausedAccount,
    PendingApproval,
    Scenario,
    UndeliveredWebhook,
    stage,
)
from agentpay_server.embedded.timeline import timeline
from agentpay_server.embedded.world import World
from agentpay_server.server import start_server
from agentpay_server.settings import Settings

T = TypeVar("T")

_TIMELINE_SECONDS: Final = 5.0


class AgentPayServer:
    """A payment service in process: real behaviour, real Solana transactions, nothing outside.

    Use it as a context manager, sync or async:

        with AgentPayServer() as server:
            client = server.client()
            account = client.accounts.create(name="Research bot")
            server.sandbox.fund(account.account_id, "100")

    Every server is a world of its own; any number can live in one process. It may be used from any thread.
    """

    def __init__(
        self,
        *,
        clock: Literal["manual", "system"] | datetime = "manual",
        seed: int | None = None,
        operator_key: str | None = None,
        settings: Settings | None = None,
        data_dir: Path | str | None = None,
        database_url: str | None = None,
        database_schema: str = DATABASE_SCHEMA,
        rpc: RpcSettings | None = None,
        seeded_port_keys: bool = True,
    ) -> None:
        """Put a server together; it starts with `with`, or with `start`.

        Args:
            clock: `manual` stands still, at the time of the start, until `sandbox.clock.advance` moves it;
                a datetime does so at that time; `system` runs with the machine's. One that stands still goes
                on from where it stood when the same data was last used.
            seed: makes identifiers, keys and signatures repeat; None takes them from the system.
            operator_key: a key of the first operator; None makes a new one, at a later start on the same
                data for this run alone.
            settings: how the server behaves where the contract leaves a choice.
            data_dir: a directory to keep everything in, made if it is not there.
            database_url: a PostgreSQL database to keep everything in, `postgresql://…`; it needs an
                encryption key, in `settings` or in the environment variable AGENTPAY_SERVER_ENCRYPTION_KEY.
                With neither, everything ends with the server.
            database_schema: the schema of that database that holds all tables, made if it does not exist.
            rpc: a Solana cluster to work on, in the place of the chain within the server.
            seeded_port_keys: whether a port accepts API keys that follow from `seed`. Pass False if nobody
                chose the seed: `listen` then replaces `operator_key` by a random key, the only one of the
                first operator that its port accepts, and all other keys are random from the start. Only a
                server in memory takes False.

        Raises:
            ValueError: a datetime without a UTC offset, or another word for `clock`; both a data_dir and a
                database_url; one of them without `seeded_port_keys`; or a database_schema that cannot name
                one.
        """
        self._inboxes = InboxTransport()
        shown = _clock(clock)
        self._recorder = Recorder(shown)
        self._config = ServerConfig(
            settings=settings or Settings(),
            data_dir=None if data_dir is None else Path(data_dir),
            database_url=database_url,
            database_schema=database_schema,
            rpc=rpc,
            clock=shown,
            seed=seed,
            seeded_port_keys=seeded_port_keys,
            operator_key=operator_key,
            lend_key=True,
            mounts={INBOX_URL: self._inboxes},
            wrap_chain=self._recorder.watch,
        )
        self._owner: OwnerThread | None = None
        self._world: World | None = None

    def start(self) -> Self:
        """Start the server. Its methods can be called from then on.

        Raises:
            RuntimeError: it was started before.
            ValueError: `operator_key` is not an operator key, is revoked, or is another operator's.
            StartRefusedError: another server uses the data, a newer version wrote it, or the key is wrong;
                or the cluster is not to be used so, or does not answer.
            DatabaseUnavailableError: the data cannot be reached.
        """
        if self._owner is not None:
            raise RuntimeError("a server starts once; make a new one")
        self._owner = OwnerThread("agentpay-server")
        try:
            server = self._owner.call(start_server(self._config))
        except BaseException:
            self._owner.stop()
            raise
        self._started_at = from_us(self._config.clock.now_us())
        self._world = World(server, self._owner, self._inboxes, self._recorder)
        return self

    def close(self) -> None:
        """Finish what is under way, close the port and the clients' way in; calling it again does nothing.

        Raises:
            RuntimeError: called on the server's own thread, which would wait for itself.
        """
        if self._world is not None:
            self._world.close()
            self._world = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and is not closed."""
        return self._world is not None

    @property
    def operator_key(self) -> str:
        """A key of the first operator: its first one, or one for this run at a later start on its data."""
        return self._running.key

    @property
    def base_url(self) -> str:
        """Where it is reached: its port after `listen`, else a name that only its own clients know."""
        return self._running.base_url

    @property
    def sessions(self) -> Sessions:
        """Sessions of the first operator's accounts."""
        return self._running.operator.sessions

    @property
    def console(self) -> Console:
        """What the first operator does on the dashboard."""
        return self._running.operator.console

    @property
    def sandbox(self) -> Sandbox:
        """What only a test chain can do: money from nowhere, outside recipients, time."""
        return self._running.sandbox

    @property
    def async_sessions(self) -> AsyncSessions:
        """`sessions`, to be awaited."""
        return self._running.async_operator.sessions

    @property
    def async_console(self) -> AsyncConsole:
        """`console`, to be awaited."""
        return self._running.async_operator.console

    @property
    def async_sandbox(self) -> AsyncSandbox:
        """`sandbox`, to be awaited."""
        return self._running.async_sandbox

    def client(self, *, api_key: str | None = None) -> AgentPay:
        """Return a client of the server, in process. It needs no closing.

        Args:
            api_key: whose client; the first operator's by default.
        """
        return self._running.client(api_key)

    def async_client(self, *, api_key: str | None = None) -> AsyncAgentPay:
        """Return an async client of the server, in process, for any event loop. It needs no closing.

        Args:
            api_key: whose client; the first operator's by default.
        """
        return self._running.async_client(api_key)

    def agent_client(self, account_id: str) -> AgentPay:
        """Return the client of an agent: with a new agent-scoped key of one account (interface K5).

        Args:
            account_id: the account of the first operator, `acct_…`.

        Raises:
            NotFoundError: no such account.
        """
        return self.client(api_key=self.console.agent_keys.create(account_id).key)

    def async_agent_client(self, account_id: str) -> AsyncAgentPay:
        """Return the async client of an agent: with a new agent-scoped key of one account (interface K5).

        Args:
            account_id: the account of the first operator, `acct_…`.

        Raises:
            NotFoundError: no such account.
        """
        return self.async_client(api_key=self.console.agent_keys.create(account_id).key)

    def webhook_inbox(
        self,
        *,
        events: Sequence[EventType] = get_args(EventType),
        account_ids: Sequence[str] = (),
        low_balance_threshold_usdc: Limit = None,
    ) -> WebhookInbox:
        """Return a receiver of webhooks within the process, registered for the first operator.

        Args:
            events: names of the event types to receive; all by default.
            account_ids: accounts to hear of; all of the operator by default.
            low_balance_threshold_usdc: balance in USDC below which `balance.low_threshold` fires.

        Raises:
            InvalidRequestError: an event type or an account is unknown.
        """
        return self._registered(None, None, events, account_ids, low_balance_threshold_usdc)

    def deliver_to(
        self,
        app: Callable[..., Any],
        *,
        path: str = "/",
        secret: str | None = None,
        events: Sequence[EventType] = get_args(EventType),
        account_ids: Sequence[str] = (),
        low_balance_threshold_usdc: Limit = None,
    ) -> WebhookInbox:
        """Deliver to an application of yours in process, without a port, and return the inbox in front of it.

        An ASGI application runs on the event loop of the caller if there is one, else on a separate thread.
        Its lifespan is not run. A WSGI application runs in threads. `inbox.drain()` waits for its handlers.

        Args:
            app: an ASGI or a WSGI application, such as one of Starlette, FastAPI, Flask or Django.
            path: where the application takes deliveries.
            secret: what the application verifies with; by default the secret of the new webhook, which is
                `inbox.secret`.
            events: names of the event types to deliver; all by default.
            account_ids: accounts to hear of; all of the operator by default.
            low_balance_threshold_usdc: balance in USDC below which `balance.low_threshold` fires.

        Raises:
            TypeError: `app` is neither an ASGI nor a WSGI application.
            ValueError: `path` does not begin with a slash.
            InvalidRequestError: an event type or an account is unknown.
        """
        receiver = application(app, path)
        return self._registered(receiver, secret, events, account_ids, low_balance_threshold_usdc)

    def _registered(
        self,
        app: Application | None,
        app_secret: str | None,
        events: Sequence[EventType],
        account_ids: Sequence[str],
        threshold_usdc: Limit,
    ) -> WebhookInbox:
        world = self._running
        pump = self._pump if self._config.clock.is_manual else None
        inbox = world.inboxes.add(pump, app, app_secret)
        webhook = world.operator.webhooks.create(
            url=inbox.url,
            events=events,
            account_ids=account_ids,
            low_balance_threshold_usdc=threshold_usdc,
        )
        inbox.webhook_id = webhook.webhook_id
        inbox.trust(webhook.secret)
        inbox.watch(lambda: bool(self.deliveries.where(webhook_id=webhook.webhook_id, status="pending")))
        return inbox

    def listen(self, *, port: int = 0, allowed_hosts: Sequence[str] = ()) -> str:
        """Open a port on 127.0.0.1 beside the way in process, until the server closes.

        With a `seed` the keys are predictable: the event `server.keys_follow_from_seed` is logged as a
        warning. Without `seeded_port_keys` none is, and `operator_key` changes.

        Args:
            port: which one, 0 to 65535; 0 takes a free one.
            allowed_hosts: host names and IP addresses, without ports, to accept in addition to loopback
                ones. A request for any other host is refused with 421 (interface R19).

        Returns:
            The address of the server, which is `base_url` from then on.

        Raises:
            RuntimeError: it listens already.
            CannotListenError: the port is in use, or the process may not have it.
            ValueError: `port` is out of range, or one of `allowed_hosts` is not a host.
        """
        return self._running.listen(port, allowed_hosts)

    @property
    def rpc_url(self) -> str:
        """Where clients of Solana reach the chain within the server, by JSON-RPC over HTTP.

        The same address with `ws` in the place of `http` takes WebSockets. The first use opens a port for it
        on 127.0.0.1, until the server closes; it needs no key.

        Raises:
            ValueError: the server works on a cluster, whose nodes answer JSON-RPC.
        """
        return self._running.rpc_url()

    @property
    def facilitator_url(self) -> str:
        """Where sellers' x402 packages verify and settle payments on the chain within the server.

        Sellers pass it as the URL of their facilitator. The first use opens the port of `rpc_url`, which
        needs no key. The facilitator pays fees with a key of its own.

        Raises:
            ValueError: the server works on a cluster.
        """
        return self._running.facilitator_url()

    @property
    def seed(self) -> int | None:
        """What identifiers, keys and signatures follow from; None where they come from the system."""
        return self._config.seed

    @property
    def requests(self) -> Records[RecordedRequest]:
        """The newest requests with their answers, at most 1,000 of them, newest last; secrets are masked."""
        return self._running.call(_now(self._running.recorder.requests))

    @property
    def events(self) -> Records[Event]:
        """The newest events of all operators, at most 1,000, newest last, heard by a webhook or not.

        They are the events that a receiver gets: `events.one(type="transfer.settled").data.amount_usdc == 5`.
        """
        return Records(
            self._running.call(self._running.server.services.deliveries.newest_events(RECORDS_MAX))
        )

    @property
    def deliveries(self) -> Records[Delivery]:
        """The newest deliveries with their attempts, at most 1,000, newest last."""
        return Records(
            self._running.call(self._running.server.services.deliveries.newest_deliveries(RECORDS_MAX))
        )

    @property
    def transactions(self) -> Records[ChainTransaction]:
        """The newest transactions that the chain has executed in this run, at most 1,000, newest last.

        None of a cluster's: with `rpc`, other servers' would be among them, so the list is empty.
        """
        return self._running.call(_now(self._running.recorder.transactions))

    def timeline(self) -> str:
        """Return what has happened, in order, to be read by a person: how a test failed, for one.

        It shows requests and answers, chain transactions, events, deliveries, moves of the clock, and how to
        have the same identifiers again. It is bounded, leaves out the oldest, and holds no secret.

        Raises:
            TimeoutError: the server does not answer.
        """
        world = self._running
        work = timeline(world.server, world.recorder, seed=self._config.seed, started_at=self._started_at)
        return world.call(work, timeout=_TIMELINE_SECONDS)

    @overload
    def scenario(self, name: Literal["near_daily_limit"]) -> NearDailyLimit: ...
    @overload
    def scenario(self, name: Literal["paused_account"]) -> PausedAccount: ...
    @overload
    def scenario(self, name: Literal["low_balance"]) -> LowBalance: ...
    @overload
    def scenario(self, name: Literal["pending_approval"]) -> PendingApproval: ...
    @overload
    def scenario(self, name: Literal["near_session_cap"]) -> NearSessionCap: ...
    @overload
    def scenario(self, name: Literal["undelivered_webhook"]) -> UndeliveredWebhook: ...
    @overload
    def scenario(self, name: str) -> Scenario: ...
    def scenario(self, name: str) -> Scenario:
        """Bring about a situation that an agent must cope with, by the operations that lead there.

        Args:
            name: `near_daily_limit`, `paused_account`, `low_balance`, `pending_approval`,
                `near_session_cap`, or `undelivered_webhook`, which moves the clock. What each is, its type
                says.

        Raises:
            ValueError: there is no such scenario.
            ConflictError: the clock runs by itself, where it has to be moved.
        """
        return stage(self, name)

    def _pump(self) -> None:
        try:
            self.sandbox.clock.advance(0)
        except ConflictError:
            # Another advance waits for a receiver: it runs what is due, and an inbox looks again.
            return

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        # Starting takes milliseconds and waits for nothing outside: no reason to leave the caller's thread.
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        state = "not running" if self._world is None else self._world.base_url
        return f"<{type(self).__name__} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a server lives in its process: make a new one where it is needed")

    @property
    def _running(self) -> World:
        if self._world is None:
            raise RuntimeError("the server is not running: use it as a context manager, or call start()")
        return self._world


async def _now(look: Callable[[], T]) -> T:
    return look()


def _clock(choice: Literal["manual", "system"] | datetime) -> Clock:
    if isinstance(choice, datetime):
        return manual_clock(choice)
    if choice == "manual":
        return manual_clock()
    if choice == "system":
        return SystemClock()
    raise ValueError("clock is 'manual', 'system', or a datetime with a UTC offset")
