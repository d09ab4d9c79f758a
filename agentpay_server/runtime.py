"""The one place where a server is put together: parts, services, workers, and their start and stop."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import httpx
from attrs import frozen

from agentpay_server.chain.base import Chain
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, Custody
from agentpay_server.chain.embedded import EmbeddedChain
from agentpay_server.clock import Clock, ManualClock, SystemClock
from agentpay_server.domain.principals import Principal
from agentpay_server.randomness import Identifiers, randomness
from agentpay_server.services.accounts import Accounts
from agentpay_server.services.context import Context
from agentpay_server.services.deliveries import Deliveries
from agentpay_server.services.history import History
from agentpay_server.services.keys import Keys, NewOperator
from agentpay_server.services.policies import Policies
from agentpay_server.services.policy_records import PolicyRecords
from agentpay_server.services.posting import HttpPoster
from agentpay_server.services.settlement import Settlement
from agentpay_server.services.tasks import Tasks
from agentpay_server.services.transfers.service import Transfers
from agentpay_server.services.vault import KEY_BYTES, Vault
from agentpay_server.services.wakeup import Wakeup
from agentpay_server.services.webhooks import Webhooks
from agentpay_server.settings import Settings
from agentpay_server.store.database import Database
from agentpay_server.store.memory import MemoryDatabase
from agentpay_server.workers.deliveries import DeliveryWorker
from agentpay_server.workers.schedule import Schedule

_STOP_SECONDS: Final = 5.0
_SEED_BYTES: Final = 64


def manual_clock(start: datetime | None = None) -> ManualClock:
    """Return a clock that stands still, at `start` or at the time of the call."""
    return ManualClock(datetime.now(UTC) if start is None else start)


@frozen(kw_only=True)
class Runtime:
    """A server that is put together, without a way in from outside.

    Attributes:
        context: the shared parts.
        keys: operators and API keys.
        accounts: accounts and balances.
        policies: policies.
        transfers: transfers.
        history: history entries.
        webhooks: registered endpoints.
        deliveries: events on their way to endpoints.
        poster: posts them.
        settlement: drivers of signed transactions.
        schedule: due work.
        operator: the operator that was made at the start, with its key.
    """

    context: Context
    keys: Keys
    accounts: Accounts
    policies: Policies
    transfers: Transfers
    history: History
    webhooks: Webhooks
    deliveries: Deliveries
    poster: HttpPoster
    settlement: Settlement
    schedule: Schedule
    operator: NewOperator

    @property
    def principal(self) -> Principal:
        """The first operator, for operations that are called in process."""
        return Principal(operator_id=self.operator.operator_id, key_id=self.operator.key_id)

    async def stop(self) -> None:
        """Finish or hand over what is under way, and let go of the database."""
        await self.context.tasks.stop(within_seconds=_STOP_SECONDS)
        await self.poster.close()
        await self.context.database.close()


async def start_runtime(
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    seed: int | None = None,
    operator_key: str | None = None,
    database: Database | None = None,
    wrap_chain: Callable[[EmbeddedChain], Chain] | None = None,
    mounts: Mapping[str, httpx.AsyncBaseTransport] | None = None,
) -> Runtime:
    """Put a server together in memory, on the running event loop, whose thread owns it from now on.

    Args:
        settings: how it behaves; the defaults if None.
        clock: what tells the time; the machine's clock if None.
        seed: makes identifiers, keys and signatures repeat; None takes them from the system.
        operator_key: the key of the first operator; None makes a new one.
        database: where everything is stored, laid out and empty; one of its own, in memory, if None.
        wrap_chain: returns the chain that the services see, given the one that executes; that one if None.
        mounts: transports for receivers of events within the process, by URL prefix.

    Raises:
        ValueError: `operator_key` is not an operator key.
    """
    clock = clock or SystemClock()
    settings = settings or Settings()
    tasks, wakeup = Tasks(), Wakeup()
    source = randomness(seed)
    custody = Custody(source.randbytes(_SEED_BYTES))
    chain = EmbeddedChain(
        treasury=custody.address(TREASURY),
        mint_authority=custody.address(TEST_MINT_AUTHORITY),
        now_us=clock.now_us,
    )
    context = Context(
        database=MemoryDatabase() if database is None else database,
        chain=chain if wrap_chain is None else wrap_chain(chain),
        signer=custody,
        clock=clock,
        randomness=source,
        identifiers=Identifiers(clock, source),
        settings=settings,
        tasks=tasks,
        wakeup=wakeup,
        vault=Vault(settings.encryption_key or source.randbytes(KEY_BYTES), source),
    )
    settlement = Settlement(context)
    records = PolicyRecords(context, settlement)
    keys = Keys(context)
    poster = HttpPoster(public_only=not chain.is_test_chain, mounts=mounts)
    deliveries = Deliveries(context, poster)
    await deliveries.free_all()
    delivery_worker = DeliveryWorker(deliveries, clock=clock, tasks=tasks, wakeup=wakeup)
    schedule = Schedule(clock, [records, delivery_worker], wakeup)
    runtime = Runtime(
        context=context,
        keys=keys,
        accounts=Accounts(context, settlement),
        policies=Policies(context, records),
        transfers=Transfers(context, settlement),
        history=History(context),
        webhooks=Webhooks(context),
        deliveries=deliveries,
        poster=poster,
        settlement=settlement,
        schedule=schedule,
        operator=await keys.create_operator("operator", key=operator_key),
    )
    if not clock.is_manual:
        context.tasks.start_loop(schedule.run())
    return runtime
