"""The one place where a server is put together: parts, services, workers, and their start and stop."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import httpx
from attrs import field, frozen

from agentpay_server.chain.base import ChainUnavailableError
from agentpay_server.chain.clusters import ClusterRefusedError
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, Custody, KeyPath
from agentpay_server.chain.deposits import WatchedChain
from agentpay_server.chain.embedded import EmbeddedChain
from agentpay_server.chain.faulty import FaultyChain
from agentpay_server.chain.ledger import ForeignLedgerError
from agentpay_server.chain.rpc.chain import RpcChain
from agentpay_server.chain.rpc.client import EndpointRefusesError, RpcCaller
from agentpay_server.chain.rpc.connecting import connect, http_client
from agentpay_server.chain.rpc.settings import RpcSettings
from agentpay_server.clock import SECOND_US, Clock, ManualClock, SystemClock
from agentpay_server.domain.principals import Principal
from agentpay_server.randomness import (
    Identifiers,
    Randomness,
    SeededRandomness,
    SystemRandomness,
    randomness,
)
from agentpay_server.sandbox import Sandbox
from agentpay_server.services import identity
from agentpay_server.services.accounts import Accounts
from agentpay_server.services.audit import AuditTrail
from agentpay_server.services.confirmations import Confirmations
from agentpay_server.services.context import Context
from agentpay_server.services.decisions import Decisions
from agentpay_server.services.deliveries import Deliveries
from agentpay_server.services.deposits import Deposits
from agentpay_server.services.faults import Faults
from agentpay_server.services.history import History
from agentpay_server.services.http_faults import HttpFaults
from agentpay_server.services.keys import FirstOperator, Keys
from agentpay_server.services.late_landings import LateLandings
from agentpay_server.services.policies import Policies
from agentpay_server.services.policy_records import PolicyRecordHandler, PolicyRecords
from agentpay_server.services.posting import HttpPoster
from agentpay_server.services.sessions.closing import Closing, SessionSettleHandler
from agentpay_server.services.sessions.opening import SessionOpenHandler
from agentpay_server.services.sessions.service import Sessions
from agentpay_server.services.settlement import Settlement
from agentpay_server.services.snapshots import Part, Snapshots
from agentpay_server.services.tasks import Tasks
from agentpay_server.services.transfers.approvals import Approvals
from agentpay_server.services.transfers.execution import Execution
from agentpay_server.services.transfers.service import Transfers
from agentpay_server.services.transfers.settling import TransferHandler
from agentpay_server.services.treasury import Treasury
from agentpay_server.services.vault import KEY_BYTES, Vault
from agentpay_server.services.wakeup import Wakeup
from agentpay_server.services.webhooks import Webhooks
from agentpay_server.settings import Settings
from agentpay_server.storage import Storage, open_storage
from agentpay_server.store.database import Database, StartRefusedError
from agentpay_server.store.ledger import DatabaseLedger
from agentpay_server.store.memory import MemoryDatabase
from agentpay_server.workers.approvals import ApprovalWorker
from agentpay_server.workers.confirmations import ConfirmationWorker, LateLandingWorker
from agentpay_server.workers.deliveries import DeliveryWorker
from agentpay_server.workers.deposits import DepositWorker
from agentpay_server.workers.schedule import Schedule, Worker
from agentpay_server.workers.sessions import SessionWorker
from agentpay_server.workers.settlement import SettlementWorker
from agentpay_server.workers.treasury import TreasuryWorker


class ClusterError(StartRefusedError):
    """The server must not run on this cluster as it was told to, or the cluster does not answer."""


class ClusterAwayError(ClusterError):
    """The cluster does not answer now, and may do so later: a start waits for it."""


def manual_clock(start: datetime | None = None) -> ManualClock:
    """Return a clock that stands still, at `start` or at the time of the call."""
    return ManualClock(datetime.now(UTC) if start is None else start)


@frozen(kw_only=True)
class Edge:
    """Where a server meets what it cannot control. A simulation puts parts of its own here.

    Attributes:
        entropy: source of secrets that never follow from a seed, such as nonces.
        rpc_client: returns what calls the RPC endpoint of the settings.
    """

    entropy: Randomness = field(factory=SystemRandomness)
    rpc_client: Callable[[RpcSettings], RpcCaller] = http_client

    def randomness(self, seed: int | None, *, start: int = 0, stream: str = "") -> Randomness:
        """Return a source that repeats itself where there is a seed, as `randomness` does, else `entropy`."""
        return self.entropy if seed is None else randomness(seed, start=start, stream=stream)


@frozen(kw_only=True)
class Runtime:
    """A server that is put together, without a way in from outside.

    Attributes:
        context: the shared parts.
        keys: operators and API keys.
        accounts: accounts and balances.
        policies: policies.
        transfers: transfers.
        approvals: transfers that wait for an operator.
        sessions: sessions.
        history: history entries.
        webhooks: registered endpoints.
        deliveries: events on their way to endpoints.
        poster: posts them.
        deposits: money that came in.
        settlement: drivers of signed transactions.
        schedule: due work.
        faults: what the sandbox lets fail.
        http_faults: those of requests.
        audit: who changed what.
        sandbox: what only a test chain can do.
        treasury: what pays fees and rents.
        snapshots: all that the server has known, and the way back.
        operator: the operator that the server was first started with.
        storage: where everything is stored.
        close_chain: lets go of the connections to a cluster.
        embedded_chain: the chain within the process; None on a cluster.
    """

    context: Context
    keys: Keys
    accounts: Accounts
    policies: Policies
    transfers: Transfers
    approvals: Approvals
    sessions: Sessions
    history: History
    webhooks: Webhooks
    deliveries: Deliveries
    poster: HttpPoster
    deposits: Deposits
    settlement: Settlement
    schedule: Schedule
    faults: Faults
    http_faults: HttpFaults
    audit: AuditTrail
    sandbox: Sandbox
    treasury: Treasury
    snapshots: Snapshots
    operator: FirstOperator
    storage: Storage
    close_chain: Callable[[], Awaitable[None]]
    embedded_chain: EmbeddedChain | None

    @property
    def principal(self) -> Principal:
        """The first operator, for operations that are called in process."""
        return Principal(operator_id=self.operator.operator_id, key_id=self.operator.key_id)

    async def stop(self, *, within_seconds: float | None = None) -> None:
        """Finish or hand over what is under way, and let go of the database.

        Args:
            within_seconds: how long work under way may go on; as the settings say if None. What is not done
                by then is stored as it stands, and is taken up at the next start.
        """
        if within_seconds is None:
            within_seconds = self.context.settings.shutdown_seconds
        await self.context.tasks.stop(within_seconds=within_seconds)
        await self.poster.close()
        try:
            await self.keys.take_back(self.operator)
        finally:
            await self.close_chain()
            await self.storage.close()


HANDLERS: Final = (TransferHandler(), SessionOpenHandler(), SessionSettleHandler(), PolicyRecordHandler())
"""What becomes of every kind of transaction."""


async def start_runtime(
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    seed: int | None = None,
    seeds_all_keys: bool = True,
    operator_key: str | None = None,
    lend_key: bool = False,
    storage: Storage | None = None,
    rpc: RpcSettings | None = None,
    wrap_chain: Callable[[Any], WatchedChain] | None = None,
    mounts: Mapping[str, httpx.AsyncBaseTransport] | None = None,
    may_crash: bool = False,
    edge: Edge | None = None,
) -> Runtime:
    """Put a server together on the running event loop, whose thread owns it from now on.

    Args:
        settings: how it behaves; the defaults if None.
        clock: what tells the time; the machine's clock if None.
        seed: makes identifiers, keys and signatures repeat, but for the keys that hold money on a cluster;
            None takes them from the system. None alone is for a public cluster.
        seeds_all_keys: whether all API keys follow from the seed; False keeps that to the first operator's.
        operator_key: a key of the first operator; None makes a new one at the first start.
        lend_key: whether a key is made for this run where none is given and the first is long known.
        storage: where everything is stored, from `open_storage`; it is closed when the server stops. Its
            settings take the place of `settings`. In memory if None.
        rpc: the cluster to work on; None for a chain within the process.
        wrap_chain: returns the chain that the services see, given the one that executes; that one if None.
        mounts: transports for receivers of events within the process, by URL prefix.
        may_crash: whether the sandbox may kill the process, because it is the server's own.
        edge: where secrets come from and how RPC calls are made; the operating system and HTTP if None.

    Raises:
        ValueError: `operator_key` is not an operator key, is revoked, or is another operator's.
        StartRefusedError: the storage belongs to another chain, or was sealed under another key; or the
            cluster is not to be used so, or does not answer.
    """
    storage = storage or await open_storage(settings or Settings(), keeps_chain=rpc is None)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(storage.close)
        runtime = await _started(
            storage,
            opened,
            rpc=rpc,
            clock=clock or SystemClock(),
            seed=seed,
            seeds_all_keys=seeds_all_keys,
            operator_key=operator_key,
            lend_key=lend_key,
            wrap_chain=wrap_chain,
            mounts=mounts,
            may_crash=may_crash,
            edge=edge or Edge(),
        )
        opened.pop_all()
    return runtime


async def _started(
    storage: Storage,
    opened: AsyncExitStack,
    *,
    rpc: RpcSettings | None,
    clock: Clock,
    seed: int | None,
    seeds_all_keys: bool,
    operator_key: str | None,
    lend_key: bool,
    wrap_chain: Callable[[Any], WatchedChain] | None,
    mounts: Mapping[str, httpx.AsyncBaseTransport] | None,
    may_crash: bool,
    edge: Edge,
) -> Runtime:
    database, settings = storage.database, storage.settings
    tasks, wakeup = Tasks(), Wakeup()
    # What a start that fails has begun ends with it.
    opened.push_async_callback(partial(tasks.stop, within_seconds=0))
    source = edge.randomness(seed, start=await identity.count_start(database))
    vault = Vault(settings.encryption_key or source.randbytes(KEY_BYTES), edge.entropy)
    # Stored before it is known which cluster the keys are for: on none may they follow from a seed.
    custody = await _custody(database, vault, source if rpc is None else edge.entropy, rpc)
    if isinstance(clock, ManualClock):
        await identity.restore_clock(database, clock)
    inner = await _chain(storage, custody, clock, source, rpc, edge=edge)
    opened.push_async_callback(inner.close)
    chain = FaultyChain(
        inner if wrap_chain is None else wrap_chain(inner),
        expire=inner.expire_blockhash if isinstance(inner, EmbeddedChain) else None,
    )
    context = Context(
        database=database,
        chain=chain,
        signer=custody,
        clock=clock,
        randomness=source,
        identifiers=Identifiers(clock, source),
        settings=settings,
        tasks=tasks,
        wakeup=wakeup,
        vault=vault,
        is_cluster=rpc is not None,
    )
    settlement = Settlement(context, HANDLERS)
    deposits = Deposits(context, settlement)
    if isinstance(inner, EmbeddedChain):
        inner.listen(deposits)
    decisions = Decisions(context, settlement, deposits)
    execution = Execution(context, settlement, decisions)
    approvals = Approvals(context, execution)
    records = PolicyRecords(context, settlement)
    keys = Keys(context, are_all_seeded=seeds_all_keys)
    poster = HttpPoster(public_only=not chain.is_test_chain, mounts=mounts)
    deliveries = Deliveries(context, poster)
    closing = Closing(context, settlement)
    session_worker = SessionWorker(context, closing)
    if storage.is_alone:
        # Whoever holds a lease is gone. Beside others it may be alive: what it holds is left to run out.
        for free_all in (deliveries.free_all, settlement.free_all):
            await free_all()
    settlement_worker = SettlementWorker(settlement, clock=clock)
    look_every_us = None if rpc is None else int(rpc.deposit_interval_seconds * SECOND_US)
    deposit_worker = DepositWorker(deposits, clock=clock, look_every_us=look_every_us)
    # Past the sandbox's faults: a look that nobody asked for must not use one of them up.
    treasury = Treasury(inner, custody.address(TREASURY), low_sol=settings.treasury_low_sol)
    workers: list[Worker] = [
        settlement_worker,
        deposit_worker,
        session_worker,
        records,
        ApprovalWorker(approvals),
        DeliveryWorker(deliveries, clock=clock, tasks=tasks, wakeup=wakeup),
        TreasuryWorker(treasury, clock=clock),
    ]
    if rpc is not None:
        workers += _watches(context, settlement)
    note_time = partial(identity.note_clock, database)
    schedule = Schedule(clock, workers, wakeup, note_time, poster.is_posting)
    http_faults = HttpFaults()
    faults = Faults(chain, http_faults, may_crash=may_crash)
    # A clock that runs by itself and the system's source of chance cannot go back.
    parts: list[Part] = [part for part in (clock, source) if isinstance(part, ManualClock | SeededRandomness)]
    parts += [faults, settlement, deposits, records, settlement_worker, deposit_worker]
    names = Identifiers(clock, edge.randomness(seed, stream="snapshots"))
    snapshots = Snapshots(context, names, _with_world(parts, storage, inner))
    # What an earlier process left under way goes on at once, whatever the clock.
    await settlement_worker.resume()
    if clock.is_manual:
        # Nothing else looks for what came or was left while no server ran, before the clock is moved.
        await session_worker.resume()
        await deposit_worker.run_due()
    runtime = Runtime(
        context=context,
        keys=keys,
        accounts=Accounts(context, settlement),
        policies=Policies(context, records),
        transfers=Transfers(context, execution),
        approvals=approvals,
        sessions=Sessions(context, settlement, closing, decisions),
        history=History(context),
        webhooks=Webhooks(context),
        deliveries=deliveries,
        poster=poster,
        deposits=deposits,
        settlement=settlement,
        schedule=schedule,
        faults=faults,
        http_faults=http_faults,
        audit=AuditTrail(context),
        sandbox=Sandbox(
            context,
            keys=keys,
            deposits=deposits,
            settlement=settlement,
            schedule=schedule,
            faults=faults,
            snapshots=snapshots,
        ),
        treasury=treasury,
        snapshots=snapshots,
        # The last that can fail: a key that was made is told to somebody, and not lost in a start that fails.
        operator=await keys.first_operator(key=operator_key, lend_key=lend_key, is_alone=storage.is_alone),
        storage=storage,
        close_chain=inner.close,
        embedded_chain=inner if isinstance(inner, EmbeddedChain) else None,
    )
    if not clock.is_manual:
        context.tasks.start_loop(schedule.run())
    snapshots.mark_start()
    return runtime


def _watches(context: Context, settlement: Settlement) -> list[Worker]:
    """Return what looks again at what was booked by what a cluster had told."""
    late_landings = LateLandings(context, settlement)
    settlement.watch_earlier(late_landings.look_at)
    return [
        ConfirmationWorker(Confirmations(context, settlement), clock=context.clock),
        LateLandingWorker(late_landings, clock=context.clock),
    ]


def _with_world(parts: list[Part], storage: Storage, chain: EmbeddedChain | RpcChain) -> list[Part] | None:
    """Return all that goes back with a snapshot; None where the database or the chain cannot go back."""
    database = storage.database
    if not (isinstance(database, MemoryDatabase) and isinstance(chain, EmbeddedChain)) or storage.ledger:
        return None
    return [database, chain, *parts]


async def _chain(
    storage: Storage,
    custody: Custody,
    clock: Clock,
    source: Randomness,
    rpc: RpcSettings | None,
    *,
    edge: Edge,
) -> EmbeddedChain | RpcChain:
    if rpc is None:
        return await _embedded_chain(storage, custody, clock, source)
    return await _cluster(storage, custody, clock, source, rpc, edge=edge)


async def _embedded_chain(
    storage: Storage, custody: Custody, clock: Clock, source: Randomness
) -> EmbeddedChain:
    genesis = await identity.embedded_genesis(storage.ledger, source)
    await identity.check_genesis(storage.database, genesis)
    chain = EmbeddedChain(
        treasury=custody.address(TREASURY),
        mint_authority=custody.address(TEST_MINT_AUTHORITY),
        now_us=clock.now_us,
        ledger=None if storage.ledger is None else DatabaseLedger(storage.ledger),
    )
    try:
        await chain.restore()
    except ForeignLedgerError as error:
        raise identity.ForeignChainError(str(error)) from error
    return chain


async def _cluster(
    storage: Storage, custody: Custody, clock: Clock, source: Randomness, rpc: RpcSettings, *, edge: Edge
) -> RpcChain:
    try:
        chain = await connect(
            rpc,
            stored_genesis_hash=await identity.known_genesis(storage.database),
            treasury=custody.address(TREASURY),
            mint_authority=custody.address(TEST_MINT_AUTHORITY),
            make_client=edge.rpc_client,
        )
    except ClusterRefusedError as error:
        raise ClusterError(str(error)) from error
    except EndpointRefusesError as error:
        raise ClusterError(f"the RPC endpoint refuses to be used: {error}; check --rpc-url") from error
    except ChainUnavailableError as error:
        message = f"the RPC endpoint gave no answer: {error}; start again once it does"
        raise ClusterAwayError(message) from error
    try:
        _check_use(chain, storage, clock, source)
        # Before anything is signed for it.
        await identity.check_genesis(storage.database, chain.genesis_hash)
        await identity.check_mint(storage.database, chain.usdc_mint)
    except BaseException:
        await chain.close()
        raise
    return chain


def _check_use(chain: RpcChain, storage: Storage, clock: Clock, source: Randomness) -> None:
    """Refuse what could only do harm on a public cluster."""
    if chain.is_test_chain:
        return
    if clock.is_manual:
        raise ClusterError(
            "on a public cluster time goes on by itself, and limits must go with it: start without a manual "
            "clock"
        )
    if isinstance(source, SeededRandomness):
        raise ClusterError(
            "whoever knows the seed knows every key that is made from it, and on a public cluster they are "
            "worth money: start without a seed"
        )
    if isinstance(storage.database, MemoryDatabase):
        raise ClusterError(
            "a server in memory forgets the keys of its accounts when it ends, and on a public cluster what "
            "they hold would be lost: give a data directory or a database"
        )


async def _custody(database: Database, vault: Vault, source: Randomness, rpc: RpcSettings | None) -> Custody:
    return Custody(await identity.custody_seed(database, vault, source), given=_given_keys(rpc))


def _given_keys(rpc: RpcSettings | None) -> dict[KeyPath, bytes]:
    if rpc is None:
        return {}
    given = {TREASURY: rpc.fee_payer_key, TEST_MINT_AUTHORITY: rpc.mint_authority_key}
    return {path: secret for path, secret in given.items() if secret is not None}
