"""Assembles a server from its parts and features; starts and stops it."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from agentpay_server import features
from agentpay_server.accounts import feature as accounts
from agentpay_server.assembly import identity
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage, open_chain, open_custody, open_storage
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.virtual_machine import Executed
from agentpay_server.chain.protocol import Chain, Deposit, OpenedChain
from agentpay_server.database.clock_check import ClockCheck
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.feature import Core
from agentpay_server.ledger.context import Context
from agentpay_server.operators import feature as operators
from agentpay_server.operators.keys import FirstOperator
from agentpay_server.platform.clock import ManualClock
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.randomness import Identifiers
from agentpay_server.platform.scheduler import AddedWork
from agentpay_server.platform.tasks import Tasks, Wakeup
from agentpay_server.platform.vault import KEY_BYTES, Vault
from agentpay_server.sandbox.faults import Faults, FaultyChain
from agentpay_server.sandbox.snapshots import Part, Snapshots
from agentpay_server.webhooks import feature as webhooks


class Server:
    """An assembled server, without access from outside.

    Restoring a snapshot replaces its services, so read `services` at each call. `chain` is without faults;
    `faults` is None on a public cluster; `operator` is the first one.
    """

    operator: FirstOperator

    def __init__(
        self,
        config: ServerConfig,
        context: Context,
        storage: Storage,
        chain: OpenedChain,
        faults: Faults | None,
    ) -> None:
        self.config: ServerConfig = config
        self.context: Context = context
        self.storage: Storage = storage
        self.chain: OpenedChain = chain
        self.added_work: AddedWork = AddedWork()
        self.faults: Faults | None = faults
        self.snapshots: Snapshots = Snapshots(context, self._parts(), self._restarted)
        self._lasting: dict[type[Any], Any] = {
            AddedWork: self.added_work,
            Faults: faults,
            Snapshots: self.snapshots,
        }
        self.services: Core = self._core()
        for lasting in self._lasting.values():
            if isinstance(lasting, Part):
                self.snapshots.include(lasting)
        if isinstance(chain, EmbeddedChain):
            # Not bound to one core, because later ones must be notified too.
            chain.listen(self.arrived)
            chain.history.listen(self._executed)

    @property
    def principal(self) -> Principal:
        """For operations in process."""
        return Principal(operator_id=self.operator.operator_id, key_id=self.operator.key_id)

    async def open_port(self) -> None:
        """Other processes can reach the server: no first attempt waits for a manual clock."""
        self.services.of(webhooks.FEATURE).poster.has_port = True
        self.context.wakeup.set()

    def arrived(self, deposit: Deposit | None) -> None:
        """None means that some deposits may be unreported."""
        self.services.of(accounts.FEATURE).deposits.arrived(deposit)

    def end_streams(self) -> None:
        """Let every stream of events end."""
        self.services.of(webhooks.FEATURE).tail.close()

    def _executed(self, executed: Executed) -> None:
        self.services.executed(executed.transaction)

    async def begin(self) -> None:
        """Resume work of an earlier process, and start the scheduler."""
        services, config = self.services, self.config
        await services.recover()
        if self.context.clock.is_manual:
            # Until the clock is advanced, nothing else finds deposits from before the start.
            await services.of(accounts.FEATURE).deposits.run_due()
        # The last step that can fail, so that a created key is never lost in a failed start.
        self.operator = await services.of(operators.FEATURE).keys.first_operator(
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
        await self.services.of(webhooks.FEATURE).poster.close()
        try:
            await self.services.of(operators.FEATURE).keys.revoke_temporary_key(self.operator)
        finally:
            await self.chain.close()
            await self.storage.close()

    def _core(self) -> Core:
        return Core(
            self.config,
            self.context,
            self.chain,
            features.features(),
            self._lasting,
            is_alone=self.storage.is_alone,
            is_in_memory=self.snapshots.are_possible,
        )

    def _run_schedule(self) -> None:
        self.context.tasks.start_loop(self.services.schedule.run())

    def _restarted(self) -> None:
        """No work was in progress at the snapshot."""
        self.end_streams()
        self.context.tasks.end_loops()
        self.context.wakeup.forget_listeners()
        self.services = self._core()
        self._run_schedule()

    def _parts(self) -> list[Part] | None:
        """Return all parts of a snapshot; None if the database or the chain cannot be restored."""
        database, chain, context = self.storage.database, self.chain, self.context
        if not (isinstance(database, MemoryDatabase) and isinstance(chain, EmbeddedChain)):
            return None
        if self.storage.ledger is not None:
            return None
        # A running clock and the system's source of randomness have no state to restore.
        parts = (database, chain, context.clock, context.randomness)
        return [part for part in parts if isinstance(part, Part)]


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
    custody = await open_custody(config, database, vault, source if rpc is None else edge.entropy)
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


def _with_faults(chain: OpenedChain, config: ServerConfig) -> tuple[Chain, Faults | None]:
    """Return the chain that services use, and the sandbox's faults of it: None where money is real."""
    wrapped = config.wrap_chain(chain)
    if not chain.is_test_chain:
        return wrapped, None
    faulty = FaultyChain(wrapped, chain.expire_blockhash if isinstance(chain, EmbeddedChain) else None)
    return faulty.chain, Faults(faulty, may_crash=config.may_crash)
