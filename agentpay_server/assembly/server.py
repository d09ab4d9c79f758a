"""Assembles a server from its parts, services and scheduled work; starts and stops it."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from agentpay_server.accounts.deposits import Arrivals, Deposits, DepositSchedule
from agentpay_server.accounts.history import History
from agentpay_server.accounts.policies import POLICY_RECORD, Policies, PolicyRecords
from agentpay_server.accounts.service import Accounts
from agentpay_server.assembly import identity
from agentpay_server.assembly.chain_opening import open_chain, open_custody
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.storage import Storage, open_storage
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.virtual_machine import Executed
from agentpay_server.chain.protocol import Deposit, WatchedChain
from agentpay_server.database.clock_check import ClockCheck
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.engine.authorization import Authorizer
from agentpay_server.engine.funding import Treasury, TreasuryFunding
from agentpay_server.engine.settlement import Guards, RecoverySchedule, Settlement, no_check
from agentpay_server.engine.watches import (
    Confirmations,
    LateLandings,
    LateLandingSchedule,
    ReorgWatchSchedule,
)
from agentpay_server.ledger.audit import AuditTrail
from agentpay_server.ledger.context import Context
from agentpay_server.operators.keys import FirstOperator, Keys
from agentpay_server.operators.overview import Overview, RequestLog
from agentpay_server.operators.search import SearchDesk
from agentpay_server.operators.sign_in import SignIns
from agentpay_server.payments.channels.closing import CHANNEL_CLOSE, ChannelClosing, ChannelWatch
from agentpay_server.payments.channels.opening import CHANNEL_OPEN
from agentpay_server.payments.channels.session_payments import SessionPayments
from agentpay_server.payments.pins import Origins
from agentpay_server.payments.purchases import Purchases
from agentpay_server.payments.reconciliation import Reconciliation
from agentpay_server.payments.service import Payments
from agentpay_server.payments.settling import PAYMENT
from agentpay_server.payments.watch import PaymentWatch
from agentpay_server.platform.clock import ManualClock
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.randomness import Identifiers, SeededRandomness
from agentpay_server.platform.scheduler import AddedWork, Scheduled, Scheduler
from agentpay_server.platform.tasks import Tasks, Wakeup
from agentpay_server.platform.vault import KEY_BYTES, Vault
from agentpay_server.sandbox.faults import Faults
from agentpay_server.sandbox.faulty_chain import FaultyChain
from agentpay_server.sandbox.service import Sandbox
from agentpay_server.sandbox.snapshots import Part, Snapshots
from agentpay_server.sessions.closing import SESSION_SETTLE, Closing, SessionSchedule
from agentpay_server.sessions.opening import SESSION_OPEN
from agentpay_server.sessions.service import Sessions
from agentpay_server.transfers.approvals import Approvals
from agentpay_server.transfers.checking import Checks
from agentpay_server.transfers.outcomes import TRANSFER
from agentpay_server.transfers.service import Execution, Transfers
from agentpay_server.webhooks.deliveries import Deliveries
from agentpay_server.webhooks.http import HttpPoster
from agentpay_server.webhooks.sender import FirstAttempts, WebhookSender
from agentpay_server.webhooks.service import Webhooks
from agentpay_server.webhooks.tail import EventTail

MOVEMENTS: Final = (
    TRANSFER,
    PAYMENT,
    SESSION_OPEN,
    SESSION_SETTLE,
    CHANNEL_OPEN,
    CHANNEL_CLOSE,
    POLICY_RECORD,
)
"""Each kind of transaction that moves money or writes a policy's record."""

if TYPE_CHECKING:
    from agentpay_server.chain.rpc.chain import RpcChain


_CHANNELS_SECONDS: Final = 5.0
"""How long a start waits for what happened to channels while no server ran."""


class Services:
    """Created at the start, and again when the server restores a snapshot, without side effects.

    A restore discards all that services remember, like a restart; only `requests` outlives it.
    """

    def __init__(self, server: "Server") -> None:
        context, config = server.context, server.config
        clock, rpc = context.clock, config.rpc
        self._clock, self._clock_check = clock, context.clock_check
        self.tasks: Tasks = context.tasks
        # What they ask is built below, because it needs the engine itself.
        guards = Guards(
            before_signature=lambda account: reconciliation.before_spend(account),  # noqa: PLW0108
            before_loss=no_check if rpc is None else lambda subject_id: late_landings.poll_one(subject_id),  # noqa: PLW0108
        )
        self.settlement: Settlement = Settlement(context, MOVEMENTS, guards)
        late_landings = LateLandings(context, self.settlement)
        self.deposits: Deposits = Deposits(context, self.settlement, server.arrivals)
        self.keys: Keys = Keys(context, are_all_seeded=config.seeded_port_keys)
        self.sign_ins: SignIns = SignIns(context)
        # Without the sandbox's faults, which an automatic check must not use up.
        self.treasury: Treasury = Treasury(context, server.chain)
        self.funding: TreasuryFunding = TreasuryFunding(context, self.treasury)
        channels = ChannelClosing(context, self.settlement)
        reconciliation = Reconciliation(context, self.deposits, channels)
        authorizer = Authorizer(context, self.settlement, guards, self.funding)
        execution = Execution(context, self.settlement, authorizer)
        records = PolicyRecords(context, self.settlement, self.funding)
        closing = Closing(context, self.settlement)
        self.accounts: Accounts = Accounts(context, self.settlement, self.funding)
        self.policies: Policies = Policies(context, records)
        self.transfers: Transfers = Transfers(context, execution)
        self.checks: Checks = Checks(context, authorizer)
        self.approvals: Approvals = Approvals(context, execution)
        self.payment_watch: PaymentWatch = PaymentWatch(context, self.settlement)
        session_payments = SessionPayments(context, self.settlement, authorizer, self.payment_watch)
        purchases = Purchases(
            context,
            self.settlement,
            execution,
            closing=channels,
            watch=self.payment_watch,
            sessions=session_payments,
        )
        self.payments: Payments = Payments(context, purchases, session_payments)
        self.channel_watch: ChannelWatch = ChannelWatch(context, channels)
        self.origins: Origins = Origins(context)
        self.sessions: Sessions = Sessions(context, self.settlement, closing, authorizer, channels)
        self.history: History = History(context)
        self.webhooks: Webhooks = Webhooks(context)
        self.deliveries: Deliveries = Deliveries(context, server.poster.is_held)
        self.sender: WebhookSender = WebhookSender(context, server.poster)
        self.tail: EventTail = EventTail(context)
        self.audit: AuditTrail = AuditTrail(context)
        self.overview: Overview = Overview(
            context, self.treasury, server.requests, keeps_snapshots=server.snapshots.are_possible
        )
        self.search: SearchDesk = SearchDesk(
            context,
            accounts=self.accounts.some_details,
            transfer=self.transfers.get,
            session=self.sessions.get,
            entry=self.history.transaction,
        )
        self.requests: RequestLog = server.requests
        self._recovery_schedule = RecoverySchedule(self.settlement, clock=clock)
        self._session_schedule = SessionSchedule(context, closing, channels)
        poll_every_seconds = None if rpc is None else rpc.deposit_interval_seconds
        self._deposit_schedule = DepositSchedule(
            self.deposits, clock=clock, poll_every_seconds=poll_every_seconds
        )
        scheduled: list[Scheduled] = [
            context.clock_check,
            self._recovery_schedule,
            # Record the debit of a payment before its deposit.
            self.payment_watch,
            self._deposit_schedule,
            self.channel_watch,
            self._session_schedule,
            records,
            self.approvals,
            self.sender,
            self.treasury,
            server.added_work,
        ]
        if rpc is not None:
            scheduled += [
                ReorgWatchSchedule(Confirmations(context, self.settlement), clock=clock),
                LateLandingSchedule(late_landings, clock=clock),
            ]
        self.schedule: Scheduler = Scheduler(
            clock,
            scheduled,
            context.wakeup,
            partial(identity.note_clock, context.database),
            server.poster.is_posting,
            at_once=FirstAttempts(self.sender),
            may_run=lambda work: work is context.clock_check or context.clock_check.agrees(),
        )
        self.sandbox: Sandbox = Sandbox(
            context,
            create_tenant=self.keys.create_operator,
            deposits=self.deposits,
            settlement=self.settlement,
            schedule=self.schedule,
            faults=server.faults,
            snapshots=server.snapshots,
            console_keys=self.sign_ins,
        )

    async def recover(self, *, is_alone: bool) -> None:
        """Resume all work of an earlier process at once, whatever the clock's time.

        With `is_alone`, no other process can be using the database, so every existing lease is void.
        Otherwise leases may belong to running servers, and expire automatically.
        """
        if is_alone:
            await self.sender.free_all()
            await self.settlement.free_all()
        if not self._clock_check.agrees():
            # The schedule resumes the work once the clocks agree.
            return
        if is_alone or self._clock.is_manual:
            await self._session_schedule.resume()
        await self._recovery_schedule.resume()
        # Record payments that sellers broadcast while no server ran.
        await self.payment_watch.poll()
        # On a cluster, a transaction that closes a channel may take minutes: the rest is done meanwhile.
        poll = self.tasks.start(self.channel_watch.poll_once())
        await asyncio.wait({poll}, timeout=_CHANNELS_SECONDS)

    async def post_arrivals(self) -> None:
        """Post deposits that arrived while no server ran."""
        await self._deposit_schedule.run_due()


class Server:
    """An assembled server, without access from outside.

    Restoring a snapshot replaces its services, so read `services` at each call. `chain` is without faults;
    `faults` is None on a public cluster; `arrivals` are the token accounts that may have unposted deposits;
    `operator` is the first one.
    """

    operator: FirstOperator

    def __init__(
        self,
        config: ServerConfig,
        context: Context,
        storage: Storage,
        chain: "EmbeddedChain | RpcChain",
        faults: Faults | None,
    ) -> None:
        self.config: ServerConfig = config
        self.context: Context = context
        self.storage: Storage = storage
        self.chain: EmbeddedChain | RpcChain = chain
        self.poster: HttpPoster = HttpPoster(
            public_only=not chain.is_test_chain, mounts=config.mounts, authority=config.webhook_ca
        )
        self.arrivals: Arrivals = Arrivals()
        self.added_work: AddedWork = AddedWork()
        self.faults: Faults | None = faults
        self.snapshots: Snapshots = Snapshots(context, self._parts(), self._restarted)
        self.requests: RequestLog = RequestLog()
        self.services: Services = Services(self)
        if isinstance(chain, EmbeddedChain):
            # Not bound to one `Services`, because later ones must be notified too.
            chain.listen(self)
            chain.history.listen(self._executed)

    @property
    def principal(self) -> Principal:
        """For operations in process."""
        return Principal(operator_id=self.operator.operator_id, key_id=self.operator.key_id)

    async def open_port(self) -> None:
        """Other processes can reach the server: no first attempt waits for a manual clock."""
        self.poster.has_port = True
        self.context.wakeup.set()

    def arrived(self, deposit: Deposit | None) -> None:
        """None means that some deposits may be unreported."""
        self.services.deposits.arrived(deposit)

    def _executed(self, executed: Executed) -> None:
        signatures = [str(signature) for signature in executed.transaction.signatures]
        self.services.payment_watch.executed(signatures)
        self.services.channel_watch.executed(executed.transaction)

    async def begin(self) -> None:
        """Resume work of an earlier process, and start the scheduler."""
        services, config = self.services, self.config
        await services.recover(is_alone=self.storage.is_alone)
        if self.context.clock.is_manual:
            # Until the clock is advanced, nothing else finds deposits from before the start.
            await services.post_arrivals()
        # The last step that can fail, so that a created key is never lost in a failed start.
        self.operator = await services.keys.first_operator(
            key=config.operator_key,
            temporary_key=config.temporary_key,
            is_alone=self.storage.is_alone,
        )
        self._run_schedule()
        self.snapshots.mark_start()

    async def stop(self, *, within_seconds: float | None = None) -> None:
        """Let running work continue, by default for the setting's time, and close the database.

        The next start resumes unfinished work.
        """
        if within_seconds is None:
            within_seconds = self.context.settings.shutdown_seconds
        await self.context.tasks.stop(within_seconds=within_seconds)
        await self.poster.close()
        try:
            await self.services.keys.revoke_temporary_key(self.operator)
        finally:
            await self.chain.close()
            await self.storage.close()

    def _run_schedule(self) -> None:
        self.context.tasks.start_loop(self.services.schedule.run())

    def _restarted(self) -> None:
        """No work was in progress at the snapshot."""
        self.services.tail.close()
        self.context.tasks.end_loops()
        self.context.wakeup.forget_listeners()
        self.services = Services(self)
        self._run_schedule()

    def _parts(self) -> list[Part] | None:
        """Return all parts of a snapshot; None if the database or the chain cannot be restored."""
        database, chain, context = self.storage.database, self.chain, self.context
        if not (isinstance(database, MemoryDatabase) and isinstance(chain, EmbeddedChain)):
            return None
        if self.storage.ledger is not None:
            return None
        parts: list[Part] = [database, chain, self.arrivals]
        if self.faults is not None:
            parts.append(self.faults)
        # A running clock and the system's source of randomness have no state to restore.
        if isinstance(context.clock, ManualClock):
            parts.append(context.clock)
        if isinstance(context.randomness, SeededRandomness):
            parts.append(context.randomness)
        return parts


async def start_server(config: ServerConfig, storage: Storage | None = None) -> Server:
    """Assemble a server on the running event loop. It is bound to that loop's thread.

    The server closes `storage`, whose settings override those of `config`.

    Raises:
        ValueError: the operator's key is not an operator key, is revoked, or belongs to another operator.
        StartRefusedError: the storage belongs to another chain, or was sealed with another key; or the
            cluster must not be used with this configuration, or does not respond.
    """
    async with AsyncExitStack() as opened:
        storage = storage or await open_storage(config)
        opened.push_async_callback(storage.close)
        tasks = Tasks()
        # If the start fails, stop everything that was started.
        opened.push_async_callback(partial(tasks.stop, within_seconds=0))
        server = await _put_together(config, storage, tasks, opened)
        await server.begin()
        opened.pop_all()
    return server


async def _put_together(
    config: ServerConfig, storage: Storage, tasks: Tasks, opened: AsyncExitStack
) -> Server:
    database, settings = storage.database, storage.settings
    clock, rpc, edge = config.clock, config.rpc, config.edge
    clock_check = ClockCheck(clock, storage.now_us)
    # Before anything relies on the clock.
    await clock_check.check()
    start = await identity.count_start(database)
    source = edge.randomness(config.seed, start=start)
    lasting = edge.randomness(config.seed, start=start, stream="lasting")
    vault = Vault(settings.encryption_key or source.randbytes(KEY_BYTES), edge.entropy)
    # Stored before the cluster is known, because keys for a cluster must never depend on a seed.
    custody = await open_custody(database, vault, source if rpc is None else edge.entropy, rpc)
    if isinstance(clock, ManualClock):
        await identity.restore_clock(database, clock)
    chain = await open_chain(config, storage, custody, source)
    opened.push_async_callback(chain.close)
    served, faults = _with_faults(chain, config)
    context = Context(
        database=database,
        chain=served,
        signer=custody,
        clock=clock,
        clock_check=clock_check,
        randomness=source,
        identifiers=Identifiers(clock, source),
        lasting_randomness=lasting,
        lasting_identifiers=Identifiers(clock, lasting),
        settings=settings,
        tasks=tasks,
        wakeup=Wakeup(),
        vault=vault,
        is_cluster=rpc is not None,
    )
    return Server(config, context, storage, chain, faults)


def _with_faults(
    chain: "EmbeddedChain | RpcChain", config: ServerConfig
) -> tuple[WatchedChain, Faults | None]:
    """Return the chain that services use, and the sandbox's faults of it: None where money is real."""
    wrapped = config.wrap_chain(chain)
    if not chain.is_test_chain:
        return wrapped, None
    faulty = FaultyChain(wrapped, chain.expire_blockhash if isinstance(chain, EmbeddedChain) else None)
    return faulty, Faults(faulty, may_crash=config.may_crash)
