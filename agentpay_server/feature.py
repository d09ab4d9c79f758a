"""The record of a feature of the server, and the core that features are built from.

A feature is one record. `features.py` lists them, and the start registers all that they say: nothing is set
later, and no part of the core names a plug-in.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from attrs import field, frozen

from agentpay_server.assembly import identity
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.chain.protocol import Chain
from agentpay_server.engine.authorization import Authorizer
from agentpay_server.engine.funding import Treasury, TreasuryFunding
from agentpay_server.engine.movement import Movement
from agentpay_server.engine.settlement import Guards, RecoverySchedule, Settlement
from agentpay_server.ledger import deliveries
from agentpay_server.ledger.context import Context
from agentpay_server.platform.scheduler import AddedWork, AtOnce, Scheduled, Scheduler
from agentpay_server.platform.tasks import Tasks

if TYPE_CHECKING:
    from solders.transaction import VersionedTransaction

S = TypeVar("S")
T = TypeVar("T")

JSON_TYPE: Final = b"application/json"
Header = tuple[bytes, bytes]


@frozen(kw_only=True)
class Reply:
    """A success: `model` or `stream` is the body."""

    status: int
    model: object = None
    headers: tuple[Header, ...] = field(default=())
    stream: AsyncGenerator[bytes] | None = None
    stream_type: bytes = b"text/event-stream; charset=utf-8"


@frozen
class Route(Generic[S]):
    """How to handle an endpoint.

    Attributes:
        reply: the status of a success, whose body is the handler's result; or a function from that result.
        handler: the method of a service that is called with the principal, and then with what the endpoint
            declares: the parameters of its path, its body or query, and its header fields.
        is_owned: runs in a task of the server, and so completes even if the caller disconnects. False for
            operations that start such tasks themselves, and for those on snapshots, which wait for running
            operations or cancel them.
    """

    reply: int | Callable[[Any], Reply]
    handler: Callable[[S], Callable[..., Coroutine[Any, Any, Any]]]
    is_owned: bool = False

    async def answer(self, tasks: Tasks, service: S, arguments: Sequence[Any]) -> Reply:
        work = self.handler(service)(*arguments)
        result = await (tasks.complete(work) if self.is_owned else work)
        return Reply(status=self.reply, model=result) if isinstance(self.reply, int) else self.reply(result)


@frozen
class Answer:
    """A response to a request without a key, outside the tables of endpoints."""

    status: int
    body: bytes
    content_type: bytes = JSON_TYPE
    headers: tuple[Header, ...] = ((b"cache-control", b"no-store"),)


class Pages(Protocol):
    """Paths outside the tables of endpoints, which need no key; `headers` are those of a refusal."""

    headers: tuple[Header, ...]

    def route(self, path: str) -> str | None:
        """Return under which path requests for a path of these are counted; None for all others."""
        ...

    async def answer(self, path: str, method: str, header: Callable[[bytes], bytes | None]) -> Answer:
        """Answer a request; `header` returns its header of a name."""
        ...


class Phase(IntEnum):
    """The order of scheduled work that is due at the same time."""

    PAYMENTS = 1
    """A payment's debit is recorded before its recipient's deposit."""

    DEPOSITS = 2
    LATER = 3


@frozen(kw_only=True)
class Feature(Generic[S]):
    """The parts of one feature. `S` is its service: one object, or an object that has several.

    Attributes:
        build: makes its service from the core; also when a snapshot is restored, without side effects.
        movements: its kinds of chain transactions.
        routes: by the names of endpoints.
        work: its scheduled work.
        at_once: its work that is due by real time on a manual clock too.
        recover: resumes work of an earlier process.
        on_executed: called with each transaction that the embedded chain executes.
        before_signature: its part of `Guards`, for a token account.
        before_loss: its part of `Guards`, for a subject.
        pages: its paths that need no key.
    """

    name: str
    build: Callable[["Core"], S]
    movements: tuple[Movement[Any], ...] = ()
    routes: Mapping[str, Route[S]] = field(factory=dict)
    work: Callable[[S], Iterable[tuple[Phase, Scheduled]]] = lambda _: ()
    at_once: Callable[[S], AtOnce] | None = None
    recover: Callable[[S], Awaitable[object]] | None = None
    on_executed: "Callable[[S], Callable[[VersionedTransaction], None]] | None" = None
    before_signature: Callable[[S], Callable[[str], Awaitable[None]]] | None = None
    before_loss: Callable[[S], Callable[[str], Awaitable[None]]] | None = None
    pages: Callable[[S], Pages] | None = None


class Core:
    """The engine, and the services of the features.

    Made at the start, and again when a snapshot is restored, without side effects: a restore discards all
    that services remember, like a restart. What outlives it is in `lasting`, one object of each class.

    Attributes:
        chain: without the sandbox's faults, which an automatic check must not use up.
        is_alone: no other process can be using the database.
        is_in_memory: nothing outlives the process, so that snapshots are possible.
        built: the services by the names of their features.
        routes: each endpoint's, with the service that it calls.
    """

    def __init__(
        self,
        config: ServerConfig,
        context: Context,
        chain: Chain,
        features: Sequence[Feature[Any]],
        lasting: dict[type[Any], Any],
        *,
        is_alone: bool,
        is_in_memory: bool,
    ) -> None:
        self.config: ServerConfig = config
        self.context: Context = context
        self.lasting: dict[type[Any], Any] = lasting
        self.is_alone: bool = is_alone
        self.is_in_memory: bool = is_in_memory
        movements = [movement for feature in features for movement in feature.movements]
        guards = Guards(before_signature=self._before_signature, before_loss=self._before_loss)
        self.settlement: Settlement = Settlement(context, movements, guards)
        self.treasury: Treasury = Treasury(context, chain)
        self.funding: TreasuryFunding = TreasuryFunding(context, self.treasury)
        self.authorizer: Authorizer = Authorizer(context, self.settlement, guards, self.funding)
        self.built: dict[str, Any] = {}
        self._features = [(feature, self.of(feature)) for feature in features]
        self.routes: Mapping[str, tuple[Route[Any], Any]] = {
            name: (route, service)
            for feature, service in self._features
            for name, route in feature.routes.items()
        }
        self.pages: list[Pages] = [each.pages(service) for each, service in self._features if each.pages]
        self._signing = [each.before_signature(its) for each, its in self._features if each.before_signature]
        self._losing = [each.before_loss(its) for each, its in self._features if each.before_loss]
        self._hearing = [each.on_executed(its) for each, its in self._features if each.on_executed]
        self._recovery = RecoverySchedule(self.settlement, clock=context.clock)
        self.schedule: Scheduler = self._scheduler()

    def of(self, feature: Feature[S]) -> S:
        """Return the service of a feature, which is built when it is first asked for."""
        if feature.name not in self.built:
            self.built[feature.name] = feature.build(self)
        service: S = self.built[feature.name]
        return service

    def keep(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the lasting object of a class; the first core makes it."""
        if kind not in self.lasting:
            self.lasting[kind] = make()
        kept: T = self.lasting[kind]
        return kept

    def executed(self, transaction: "VersionedTransaction") -> None:
        """Tell the features what the embedded chain has executed."""
        for hear in self._hearing:
            hear(transaction)

    async def recover(self) -> None:
        """Resume all work of an earlier process at once, whatever the clock's time.

        If no other process can be using the database, every existing lease is void. Otherwise leases may
        belong to running servers, and expire automatically.
        """
        if self.is_alone:
            await self.settlement.free_all()
            await self.context.database.run(deliveries.free_all)
        if not self.context.clock_check.agrees():
            # The schedule resumes the work once the clocks agree.
            return
        await self._recovery.resume()
        for feature, service in self._features:
            if feature.recover is not None:
                await feature.recover(service)

    async def _before_signature(self, token_account: str) -> None:
        for guard in self._signing:
            await guard(token_account)

    async def _before_loss(self, subject_id: str) -> None:
        for guard in self._losing:
            await guard(subject_id)

    def _scheduler(self) -> Scheduler:
        context = self.context
        work = [each for feature, service in self._features for each in feature.work(service)]
        at_once = [feature.at_once(service) for feature, service in self._features if feature.at_once]
        return Scheduler(
            context.clock,
            [
                context.clock_check,
                self._recovery,
                *(each for _, each in sorted(work, key=lambda timed: timed[0])),
                self.treasury,
                self.keep(AddedWork, AddedWork),
            ],
            context.wakeup,
            partial(identity.note_clock, context.database),
            at_once=at_once[0] if at_once else None,
            may_run=lambda work: work is context.clock_check or context.clock_check.agrees(),
        )
