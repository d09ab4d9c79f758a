"""`AgentPayServer`: the whole service in process, on its own thread, for tests and for getting started."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar, get_args, overload

import anyio.to_thread

from agentpay._async.client import AsyncAgentPay
from agentpay._sync.accounts import Accounts
from agentpay._sync.approvals import Approvals
from agentpay._sync.client import AgentPay
from agentpay._sync.console import Console
from agentpay._sync.keys import AgentKeys, OperatorKeys
from agentpay._sync.payments import Payments
from agentpay._sync.policies import Policies
from agentpay._sync.sellers import Sellers
from agentpay._sync.sessions import Sessions
from agentpay._sync.transfers import Transfers
from agentpay._sync.webhooks import Webhooks
from agentpay.contract.choices import EventType
from agentpay.contract.policies import Limit
from agentpay.errors import APITimeoutError, ConflictError, OutcomeUnknownError
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.server import start_server
from agentpay_server.clients._async.sandbox import AsyncSandbox
from agentpay_server.clients._sync.sandbox import Sandbox
from agentpay_server.platform.clock import Clock, SystemClock, from_us, manual_clock
from agentpay_server.platform.settings import DATABASE_SCHEMA, Settings
from agentpay_server.testkit.embedded.applications import WebhookApplication, application
from agentpay_server.testkit.embedded.inbox import INBOX_URL, InboxTransport, WebhookInbox
from agentpay_server.testkit.embedded.owner_thread import OwnerThread
from agentpay_server.testkit.embedded.recorder import (
    RECORDS_MAX,
    ChainTransaction,
    RecordedRequest,
    Recorder,
    Records,
    timeline,
)
from agentpay_server.testkit.embedded.world import EmbeddedWorld, RecordedDeliveries, RecordedEvents
from agentpay_server.webhooks import feature as webhooks

if TYPE_CHECKING:
    from agentpay_server.plugins.cluster.settings import RpcSettings
    from agentpay_server.plugins.paywall.paywall import Paywall
    from agentpay_server.plugins.scenes.building import BuiltScene
    from agentpay_server.plugins.scenes.document import Scene, SceneSeller, SceneWebhook
    from agentpay_server.plugins.scenes.scenarios import (
        LowBalance,
        NearDailyLimit,
        NearSessionCap,
        PausedAccount,
        PendingApproval,
        Scenario,
        UndeliveredWebhook,
    )

T = TypeVar("T")

_TIMELINE_SECONDS: Final = 5.0
_PUMP_SECONDS_LEAST: Final = 0.01


class AgentPayServer:
    """A payment service in process: real behavior and real Solana transactions, without external systems.

    Use it as a context manager, sync or async:

        with AgentPayServer() as server:
            client = server.client()
            account = client.accounts.create(name="Research bot")
            server.sandbox.fund(account.account_id, "100")

    Any number of independent servers can run in one process, usable from any thread.

    Attributes:
        accounts: accounts of the first operator.
        policies: spending policies of the first operator's accounts.
        transfers: transfers from the first operator's accounts.
        payments: payments behind HTTP 402 from the first operator's accounts.
        sessions: sessions of the first operator's accounts.
        webhooks: webhooks of the first operator.
        approvals: transfers that wait for the first operator's approval.
        agent_keys: keys that are bound to one account of the first operator.
        operator_keys: keys of the first operator with full access.
        sellers: what the first operator allows each seller to be paid.
        console: the first operator's views of all accounts, its audit log, and sign-in.
    """

    accounts: Accounts
    policies: Policies
    transfers: Transfers
    payments: Payments
    sessions: Sessions
    webhooks: Webhooks
    approvals: Approvals
    agent_keys: AgentKeys
    operator_keys: OperatorKeys
    sellers: Sellers
    console: Console

    if not TYPE_CHECKING:
        # Type checkers would accept any name.
        def __getattr__(self, name: str) -> object:
            if name not in AgentPayServer.__annotations__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self._operator, name)

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
        rpc: "RpcSettings | None" = None,
        seeded_port_keys: bool = True,
        webhook_ca: Path | str | None = None,
        scene: Path | str | None = None,
    ) -> None:
        """Configure a server; `with` or `start` starts it.

        Args:
            clock: `manual` is paused at the current time, and `sandbox.clock.advance` advances it; a datetime
                is the same from that time; `system` follows the machine's clock. With stored data, a manual
                clock continues where it was, or where a server on the system's clock last signed.
            seed: makes identifiers, keys and signatures repeatable; None uses the system's randomness.
            operator_key: a key of the first operator; None creates one. A key created on existing data is
                valid for this run only.
            settings: limits, timeouts and the choices that the interface leaves open.
            data_dir: a directory for all data, created if missing.
            database_url: a PostgreSQL database for all data, `postgresql://…`. Needs an encryption key in
                `settings` or in AGENTPAY_SERVER_ENCRYPTION_KEY. Without `data_dir` and `database_url`, data
                is in memory.
            database_schema: the schema for all tables in that database, created if missing.
            rpc: a Solana cluster to use instead of the embedded chain.
            seeded_port_keys: whether ports accept API keys that are derived from `seed`. Pass False if no
                person chose the seed: `listen` then replaces `operator_key` by a random key, the only key of
                the first operator that its port accepts, and all other keys are random from the start. False
                requires a server in memory.
            webhook_ca: PEM file of a certificate authority that webhook receivers may have their certificate
                from, in addition to the usual ones, or to those in SSL_CERT_FILE.
            scene: file of a scene to build at the start: accounts, policies, keys, webhooks, history, and
                sellers that listen on a port each. Needs empty data, and no `rpc`. The property `scene` has
                what was created.

        Raises:
            ValueError: a datetime without a UTC offset, or another value for `clock`; an empty data_dir;
                both a data_dir and a database_url; one of them with `seeded_port_keys=False`; an invalid
                database_schema; a `webhook_ca` that cannot be read; or an invalid scene.
            TypeError: `settings` are no `Settings`.
        """
        if settings is not None and not isinstance(settings, Settings):
            kind = type(settings).__name__
            raise TypeError(f"settings must be Settings, not {kind}: pass Settings(…)")
        if data_dir == "":
            # As a path it would be the current directory.
            raise ValueError("data_dir is empty: pass a directory, or None to keep all data in memory")
        if scene is not None and rpc is not None:
            raise ValueError("a scene needs the embedded chain, and rpc uses a cluster: omit one of them")
        self._scene: Scene | None = None
        if scene is not None:
            from agentpay_server.plugins.scenes.document import read_scene  # noqa: PLC0415 - a plug-in

            self._scene = read_scene(scene)
        self._built: BuiltScene | None = None
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
            webhook_ca=None if webhook_ca is None else str(webhook_ca),
            temporary_key=True,
            mounts={INBOX_URL: self._inboxes},
            wrap_chain=self._recorder.watch,
        )
        self._owner: OwnerThread | None = None
        self._world: EmbeddedWorld | None = None

    def start(self) -> Self:
        """Start the server, so that its methods can be called.

        Raises:
            RuntimeError: it was started before.
            ValueError: `operator_key` is not an operator key, is revoked, or belongs to another operator; or
                a step of the scene has another outcome than it says, or the data is not empty.
            StartRefusedError: another server uses the data, a newer version wrote it, or the encryption key
                is wrong; or the cluster does not respond, or must not be used with this configuration.
            DatabaseUnavailableError: the database cannot be reached.
        """
        if self._owner is not None:
            raise RuntimeError("a server can start only once; create a new one")
        self._owner = OwnerThread("agentpay-server")
        try:
            server = self._owner.call(start_server(self._config))
        except BaseException:
            self._owner.stop()
            raise
        self._started_at = from_us(self._config.clock.now_us())
        self._world = EmbeddedWorld(server, self._owner, self._inboxes, self._recorder)
        if self._scene is not None:
            from agentpay_server.plugins.scenes.building import incomplete, require_empty  # noqa: PLC0415 - as above
            from agentpay_server.plugins.scenes.document import SceneError  # noqa: PLC0415 - as above

            try:
                require_empty(self._operator)
                self._built = self.build_scene(self._scene)
            except SceneError as error:
                self.close()
                raise incomplete(error, self._config) from error
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """Finish running work, close the port and all clients' access. Closing twice is allowed.

        Raises:
            RuntimeError: called on the server's own thread, which would deadlock.
        """
        if self._world is not None:
            self._world.close()
            self._world = None

    @property
    def is_running(self) -> bool:
        """Whether it is started and not closed."""
        return self._world is not None

    @property
    def operator_key(self) -> str:
        """A key of the first operator: its first one, or on existing data one for this run."""
        return self._running.key

    @property
    def base_url(self) -> str:
        """The server's URL: the port's after `listen`, otherwise one that only its own clients resolve."""
        return self._running.base_url

    @property
    def _operator(self) -> AgentPay:
        return self._running.operator

    @property
    def sandbox(self) -> Sandbox:
        """Test features: test money, outside recipients, the clock, faults, snapshots."""
        return self._running.sandbox

    @property
    def async_sandbox(self) -> AsyncSandbox:
        """The async version of `sandbox`."""
        return self._running.async_sandbox

    def client(self, *, api_key: str | None = None) -> AgentPay:
        """Return a client of the server, in process. It needs no closing.

        Args:
            api_key: the client's key; the first operator's by default.
        """
        return self._running.client(api_key)

    def async_client(self, *, api_key: str | None = None) -> AsyncAgentPay:
        """Return an async client of the server, in process, for any event loop. It needs no closing.

        Args:
            api_key: the client's key; the first operator's by default.
        """
        return self._running.async_client(api_key)

    def agent_client(self, account_id: str) -> AgentPay:
        """Return a client with a new agent key of one account.

        Args:
            account_id: the account of the first operator, `acct_…`.

        Raises:
            NotFoundError: no such account.
        """
        return self.client(api_key=self.agent_keys.create(account_id).key)

    def async_agent_client(self, account_id: str) -> AsyncAgentPay:
        """Return an async client with a new agent key of one account.

        Args:
            account_id: the account of the first operator, `acct_…`.

        Raises:
            NotFoundError: no such account.
        """
        return self.async_client(api_key=self.agent_keys.create(account_id).key)

    def webhook_inbox(
        self,
        *,
        events: Sequence[EventType] = get_args(EventType),
        account_ids: Sequence[str] = (),
        low_balance_threshold_usdc: Limit = None,
    ) -> WebhookInbox:
        """Return a webhook receiver within the process, registered for the first operator.

        Args:
            events: names of the event types to receive; all by default.
            account_ids: accounts whose events to receive; all of the operator by default.
            low_balance_threshold_usdc: balance in USDC below which `balance.low_threshold` is sent.

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
        """Deliver to your application in process, without a port, and return the inbox in front of it.

        An ASGI application runs on the caller's event loop if there is one, otherwise on its own thread; its
        lifespan is not run. A WSGI application runs in threads. `inbox.drain()` waits for its handlers.

        Args:
            app: an ASGI or WSGI application, such as one of Starlette, FastAPI, Flask or Django.
            path: the application's path for deliveries.
            secret: the secret that the application verifies with; by default the new webhook's,
                `inbox.secret`.
            events: names of the event types to deliver; all by default.
            account_ids: accounts whose events to deliver; all of the operator by default.
            low_balance_threshold_usdc: balance in USDC below which `balance.low_threshold` is sent.

        Raises:
            TypeError: `app` is neither an ASGI nor a WSGI application.
            ValueError: `path` does not begin with a slash.
            InvalidRequestError: an event type or an account is unknown.
        """
        receiver = application(app, path)
        return self._registered(receiver, secret, events, account_ids, low_balance_threshold_usdc)

    def _registered(
        self,
        app: WebhookApplication | None,
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
        inbox.subscribed = frozenset(webhook.events)
        inbox.trust(webhook.secret)
        inbox.watch(
            lambda: [
                delivery
                for delivery in self.deliveries.where(webhook_id=webhook.webhook_id)
                if delivery.next_attempt_at is not None
            ]
        )
        return inbox

    def listen(self, *, port: int = 0, allowed_hosts: Sequence[str] = ()) -> str:
        """Also open a port on 127.0.0.1, until the server closes.

        With a `seed` the keys are predictable, and the warning `server.keys_follow_from_seed` is logged.
        With `seeded_port_keys=False` it is not logged, and `operator_key` changes instead.

        Args:
            port: the port number, 0 to 65535; 0 selects a free one.
            allowed_hosts: host names and IP addresses, without ports, to accept in addition to loopback ones.
                A request for any other host is refused with 421.

        Returns:
            The server's URL, which is now also `base_url`.

        Raises:
            RuntimeError: the server already listens.
            CannotListenError: the port is in use, or not permitted.
            ValueError: `port` is out of range, or one of `allowed_hosts` is not a host.
            TypeError: `port` is no integer, or `allowed_hosts` is one string.
        """
        if not isinstance(port, int):
            raise TypeError(f"port must be an integer, not {type(port).__name__}")
        if isinstance(allowed_hosts, str):
            raise TypeError(f"allowed_hosts is a list of strings, not one string: write [{allowed_hosts!r}]")
        return self._running.listen(port, allowed_hosts)

    @property
    def console_url(self) -> str:
        """A new single-use link that signs in to the operator console within 10 minutes.

        Raises:
            RuntimeError: the server does not listen, or its settings disable the console.
        """
        return self._running.console_url()

    @property
    def rpc_url(self) -> str:
        """The URL of the embedded chain's JSON-RPC over HTTP, for Solana clients.

        With `ws` instead of `http`, it accepts WebSockets. The first access opens a port for it on 127.0.0.1,
        which needs no key.

        Raises:
            ValueError: the server uses a Solana cluster, which has its own JSON-RPC.
        """
        return self._running.rpc_url()

    @property
    def facilitator_url(self) -> str:
        """The URL at which sellers' x402 packages verify and settle payments on the embedded chain.

        It needs no key. The first access opens the port of `rpc_url`. The facilitator pays fees with its own
        key.

        Raises:
            ValueError: the server uses a Solana cluster.
        """
        return self._running.facilitator_url()

    @property
    def seed(self) -> int | None:
        """The seed of identifiers, keys and signatures; None for the system's randomness."""
        return self._config.seed

    @property
    def requests(self) -> Records[RecordedRequest]:
        """The newest requests with their responses, at most 1,000, newest last; secrets are masked."""
        return self._running.call(_now(self._running.recorder.requests))

    @property
    def events(self) -> RecordedEvents:
        """The newest events of all operators, at most 1,000, newest last, subscribed to or not.

        They are what a receiver gets: `events.one(type="transfer.settled").data.amount_usdc == 5`. It also
        has the methods of `client.events`, for the first operator.
        """
        newest = self._running.server.services.of(webhooks.FEATURE).deliveries.newest_events(RECORDS_MAX)
        return RecordedEvents(self._running.call(newest), self._operator.events)

    @property
    def deliveries(self) -> RecordedDeliveries:
        """The newest deliveries with their attempts, at most 1,000, newest last.

        It also has the methods of `client.deliveries`, for the first operator.
        """
        newest = self._running.server.services.of(webhooks.FEATURE).deliveries.newest_deliveries(RECORDS_MAX)
        return RecordedDeliveries(self._running.call(newest), self._operator.deliveries)

    @property
    def transactions(self) -> Records[ChainTransaction]:
        """The newest transactions that the chain executed in this run, at most 1,000, newest last.

        Always empty on a Solana cluster.
        """
        return self._running.call(_now(self._running.recorder.transactions))

    def timeline(self) -> str:
        """Return what happened, in order, as text, for example to see why a test failed.

        It contains requests and responses, chain transactions, events, deliveries and advances of the clock,
        and how to reproduce the run. It contains no secrets. The oldest lines are left out beyond 100.

        Raises:
            TimeoutError: the server does not respond.
        """
        world = self._running
        work = timeline(world.server, world.recorder, seed=self._config.seed, started_at=self._started_at)
        return world.call(work, timeout=_TIMELINE_SECONDS)

    @overload
    def scenario(self, name: Literal["near_daily_limit"]) -> "NearDailyLimit": ...
    @overload
    def scenario(self, name: Literal["paused_account"]) -> "PausedAccount": ...
    @overload
    def scenario(self, name: Literal["low_balance"]) -> "LowBalance": ...
    @overload
    def scenario(self, name: Literal["pending_approval"]) -> "PendingApproval": ...
    @overload
    def scenario(self, name: Literal["near_session_cap"]) -> "NearSessionCap": ...
    @overload
    def scenario(self, name: Literal["undelivered_webhook"]) -> "UndeliveredWebhook": ...
    @overload
    def scenario(self, name: str) -> "Scenario": ...
    def scenario(self, name: str) -> "Scenario":
        """Create a situation that an agent must handle, by real operations.

        Args:
            name: `near_daily_limit`, `paused_account`, `low_balance`, `pending_approval`,
                `near_session_cap`, or `undelivered_webhook`, which advances the clock. The returned types
                describe them.

        Raises:
            ValueError: the scenario does not exist.
            ConflictError: the clock is not manual, and the scenario has to advance it.
        """
        from agentpay_server.plugins.scenes.scenarios import stage  # noqa: PLC0415 - a plug-in

        return stage(self, name)

    @property
    def scene(self) -> "BuiltScene":
        """What the argument `scene` created: accounts by their names in the file, keys, secrets, sellers.

        Raises:
            ValueError: the server was started without a scene.
        """
        if self._built is None:
            raise ValueError("the server was started without a scene: pass AgentPayServer(scene=…)")
        return self._built

    def build_scene(self, scene: "Path | str | Scene") -> "BuiltScene":
        """Build a scene now: its accounts are new, beside those that are there.

        Args:
            scene: file of the scene, or the scene.

        Raises:
            ValueError: the file is no scene, or a step has another outcome than it says.
        """
        from agentpay_server.plugins.scenes.building import build  # noqa: PLC0415 - a plug-in
        from agentpay_server.plugins.scenes.document import Scene, read_scene  # noqa: PLC0415 - a plug-in

        def opener(seller: "SceneSeller", pay_to: str | None) -> "Paywall":
            from agentpay_server.plugins.scenes.hosting import opened  # noqa: PLC0415 - it imports this module

            return opened(self, seller, pay_to)

        read = scene if isinstance(scene, Scene) else read_scene(scene)
        return build(self._operator, read, inbox=self._inbox_of, opener=opener)

    def _inbox_of(self, webhook: "SceneWebhook", account_ids: Sequence[str]) -> WebhookInbox:
        inbox = self.webhook_inbox(
            events=webhook.events,
            account_ids=account_ids,
            low_balance_threshold_usdc=webhook.low_balance_threshold_usdc,
        )
        if webhook.fails:
            inbox.fail_next(times=webhook.fails)
        return inbox

    def _pump(self, seconds: float) -> None:
        try:
            self.sandbox.clock.advance(0, timeout=max(seconds, _PUMP_SECONDS_LEAST))
        except ConflictError:
            return  # Another advance is waiting for a receiver. It continues, and the inbox checks again.
        except OutcomeUnknownError as error:
            if not isinstance(error.__cause__, APITimeoutError):
                raise  # Otherwise the same holds for this one.

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        # Starting takes milliseconds, so it may block the caller's thread.
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Shielded: a cancelled caller has to close the server, too.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    def __repr__(self) -> str:
        state = "not running" if self._world is None else self._world.base_url
        return f"<{type(self).__name__} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a server cannot be pickled: create a new one where it is needed")

    @property
    def _running(self) -> EmbeddedWorld:
        if self._world is None:
            raise RuntimeError("the server is not running: use it as a context manager, or call start()")
        return self._world


async def _now(read: Callable[[], T]) -> T:
    return read()


def _clock(choice: Literal["manual", "system"] | datetime) -> Clock:
    if isinstance(choice, datetime):
        return manual_clock(choice)
    if choice == "manual":
        return manual_clock()
    if choice == "system":
        return SystemClock()
    raise ValueError("clock is 'manual', 'system', or a datetime with a UTC offset")
