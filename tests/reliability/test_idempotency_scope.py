"""The scope of idempotency keys: operators and agents in every order, and concurrently (interface I9).

The responses to concurrent requests must equal those of the same requests one after the other, in
some order. A model of the rule plays every order.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import worlds
from attrs import define, field, frozen
from two_servers import both
from worlds import Answer, Party, World

DAY_SECONDS = 24 * 3600
STORES = ["file", "postgres"]
"""The stores whose units of work run on threads and behind sockets: what runs inline is a part of that."""
OUTCOMES = {"1": "settled", "400": "insufficient_balance", "900": "policy_violation"}
"""The outcome of an amount from an account that holds 300 and may pay 500 at once."""

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


@frozen
class Ask:
    """A request under the one key: who sends it (None is the operator), from which account, how much."""

    agent: int | None
    source: int
    amount: str


@define
class Kept:
    """The model's record of a key of one account."""

    ask: Ask
    outcome: str
    label: int
    ended_at: float
    is_claimed: bool
    """Whether an operator key has claimed it."""


@define
class Model:
    """The rules of interface I1 to I9 for consecutive requests with one key."""

    now: float = 0.0
    kept: dict[int, Kept] = field(factory=dict)
    labels: int = 0
    paid: Counter[int] = field(factory=Counter)

    def ask(self, ask: Ask) -> tuple[str, int | None]:
        """Return what the answer says, and which attempt it names."""
        own = self.in_force().get(ask.source)
        claimed_elsewhere = any(
            kept.is_claimed for source, kept in self.in_force().items() if source != ask.source
        )
        if own is None:
            if ask.agent is None and claimed_elsewhere:
                return "idempotency_conflict", None
        elif own.ask.amount != ask.amount:
            return "idempotency_conflict", None
        elif own.outcome != "insufficient_balance":
            return own.outcome, own.label
        self.labels += 1
        outcome = OUTCOMES[ask.amount]
        is_claimed = ask.agent is None or (own is not None and own.is_claimed)
        if ask.agent is None:
            # Its newest claim is the operator's only one.
            for kept in self.kept.values():
                kept.is_claimed = False
        self.kept[ask.source] = Kept(ask, outcome, self.labels, self.now, is_claimed)
        self.paid[ask.source] += outcome == "settled"
        return outcome, self.labels

    def state(self, known: dict[int, str]) -> object:
        """Return what decides about later requests, given which attempt is which transfer."""
        return frozenset(
            (source, kept.ask.amount, known.get(kept.label), kept.ended_at, kept.is_claimed)
            for source, kept in self.kept.items()
        )

    def in_force(self) -> dict[int, Kept]:
        return {source: kept for source, kept in self.kept.items() if self.now < kept.ended_at + DAY_SECONDS}


def told(answer: Answer) -> str:
    return answer.error or str(answer.body["status"])


def agrees(
    expected: list[tuple[str, int | None]], answers: list[Answer], known: dict[int, str]
) -> dict[int, str] | None:
    """Return which attempt of the model is which transfer, if the responses can be those of the model."""
    known = dict(known)
    for (outcome, label), answer in zip(expected, answers, strict=True):
        if told(answer) != outcome:
            return None
        if label is not None and known.setdefault(label, str(answer.transfer_id)) != answer.transfer_id:
            return None
    return known if len(set(known.values())) == len(known) else None


@frozen
class Scene:
    """Three accounts of one operator with an agent each, whom they pay, and the servers that are asked."""

    worlds: tuple[World, ...]
    sources: list[Party]
    agents: list[dict[str, str]]
    payee: Party
    paid: Counter[int] = field(factory=Counter)

    @property
    def first(self) -> World:
        return self.worlds[0]

    async def transfer(self, number: int, ask: Ask, key: str) -> Answer:
        """Send a request to one of the servers."""
        body = {
            "from": self.sources[ask.source].account_id,
            "to": self.payee.account_id,
            "amount": ask.amount,
            "idempotency_key": key,
        }
        return await self._send(number, ask, "/v1/transfers", body)

    async def open_session(self, number: int, ask: Ask, key: str) -> Answer:
        """Ask one of the servers to open a session."""
        body = {
            "account_id": self.sources[ask.source].account_id,
            "to": self.payee.account_id,
            "cap_usdc": ask.amount,
            "idempotency_key": key,
        }
        return await self._send(number, ask, "/ext/v1/sessions", body)

    async def _send(self, number: int, ask: Ask, path: str, body: dict[str, str]) -> Answer:
        world = self.worlds[number % len(self.worlds)]
        headers = None if ask.agent is None else self.agents[ask.agent]
        return await world.request("POST", path, body, headers)

    def check_balances(self) -> None:
        """Assert that the chain shows what the model has paid."""
        assert self.first.balance(self.payee) == sum(self.paid.values()) * 1_000_000
        for number, source in enumerate(self.sources):
            assert self.first.balance(source) == 300_000_000 - self.paid[number] * 1_000_000


async def scene_of(*running: World) -> Scene:
    first = running[0]
    sources = [await first.account("300") for _ in range(3)]
    for source in sources:
        await first.policy(source, max_single_transfer=500)
    return Scene(
        running, sources, [await first.agent_of(source) for source in sources], await first.account()
    )


async def play(
    scene: Scene, chance: random.Random, key: str, rounds: int, *, most_at_once: int, can_wait: bool
) -> None:
    """Send rounds of requests at once under one key, and hold every answer against the model.

    Several orders may explain the same answers, and differ in who has claimed the key: all are kept.
    """
    possible = [(Model(), dict[int, str]())]
    for _ in range(rounds):
        if can_wait:
            seconds = chance.choice([0, 0, 0, 60, DAY_SECONDS - 60.001, DAY_SECONDS - 0.001, DAY_SECONDS])
            await scene.first.advance(seconds)
            for model, _known in possible:
                model.now = round(model.now + seconds, 3)
        asks = [new_ask(chance) for _ in range(chance.randint(1, most_at_once))]
        answers = await asyncio.gather(*(scene.transfer(n, ask, key) for n, ask in enumerate(asks)))
        explaining: dict[object, tuple[Model, dict[int, str]]] = {}
        for model, known in possible:
            for trial, expected in outcomes(model, asks):
                found = agrees(expected, answers, known)
                if found is not None:
                    explaining.setdefault(trial.state(found), (trial, found))
        assert explaining, f"{asks} at once fit no order {[told(answer) for answer in answers]}"
        possible = [*explaining.values()]
    scene.paid.update(possible[0][0].paid)
    scene.check_balances()


def outcomes(model: Model, asks: list[Ask]) -> Iterator[tuple[Model, list[tuple[str, int | None]]]]:
    """Play requests at once in every order; an equal one may also get the outcome of its twin.

    See interface I1 to I9.
    """
    twins = [place for place, ask in enumerate(asks) if asks.count(ask) > 1]
    for order in itertools.permutations(range(len(asks))):
        for count in range(len(twins) + 1):
            for joining in itertools.combinations(twins, count):
                trial, told_to = deepcopy(model), dict[int, tuple[str, int | None]]()
                newest: dict[Ask, tuple[str, int | None]] = {}
                for place in order:
                    ask = asks[place]
                    if place not in joining or ask not in newest:
                        newest[ask] = trial.ask(ask)
                    told_to[place] = newest[ask]
                yield trial, [told_to[place] for place in range(len(asks))]


def new_ask(chance: random.Random) -> Ask:
    source = chance.randrange(3)
    return Ask(chance.choice([None, None, source]), source, chance.choice(["1", "1", *OUTCOMES]))


@pytest.mark.parametrize("seed", range(4))
async def test_sequential_requests_agree_with_the_model(seed: int) -> None:
    async with worlds.world(store="memory") as world:
        await play(await scene_of(world), random.Random(seed), "key", 60, most_at_once=1, can_wait=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("store", STORES)
async def test_concurrent_requests_are_linearizable(store: str, seed: int) -> None:
    async with worlds.world(store=store, interrupted=seed) as world:
        await play(await scene_of(world), random.Random(seed), "key", 40, most_at_once=4, can_wait=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("store", STORES)
async def test_concurrent_openings_with_one_key_fund_one_escrow_per_account(store: str, seed: int) -> None:
    async with worlds.world(store=store, interrupted=seed) as world:
        await open_at_once(await scene_of(world), "key", 12)


async def open_at_once(scene: Scene, key: str, count: int) -> None:
    """Have the operator ask for two accounts, and the agents of both and of a third, all at once."""
    asks = [Ask(None, 0, "10"), Ask(None, 1, "10"), *(Ask(number, number, "10") for number in range(3))]
    sent = [asks[number % len(asks)] for number in range(count * len(asks))]
    answers = await asyncio.gather(*(scene.open_session(n, ask, key) for n, ask in enumerate(sent)))
    outcomes: dict[Ask, set[tuple[int, str]]] = {ask: set() for ask in asks}
    for ask, answer in zip(sent, answers, strict=True):
        outcomes[ask].add((answer.status, answer.error or str(answer.body["session_id"])))
    opened = [outcomes[Ask(number, number, "10")] for number in range(3)]
    # Whatever the operator asks for, every agent has one session, and the operator finds it or a conflict.
    assert [[status for status, _ in each] for each in opened] == [[201]] * 3
    for number in range(2):
        assert outcomes[Ask(None, number, "10")] <= {*opened[number], (409, "idempotency_conflict")}
    for source in scene.sources:
        rows = await scene.first.rows("sessions", account_id=source.account_id, idempotency_key=key)
        assert len(rows) == 1
        assert scene.first.attempts(rows[0]["session_id"]) == ["landed"]


@pytest.mark.parametrize("store", STORES)
async def test_an_operator_opening_sessions_for_two_accounts_with_one_key_opens_one(store: str) -> None:
    async with worlds.world(store=store, interrupted=1) as world:
        scene = await scene_of(world)
        asks = [Ask(None, number % 2, "10") for number in range(20)]
        answers = await asyncio.gather(*(scene.open_session(n, ask, "key") for n, ask in enumerate(asks)))
        assert Counter(answer.status for answer in answers) == {201: 10, 409: 10}
        assert len(await world.rows("sessions")) == 1


@pytest.mark.parametrize("units", range(1, 9))
async def test_an_operator_finds_the_transfer_that_an_agent_started_before_a_kill(
    tmp_path: Path, units: int
) -> None:
    first = await worlds.started(data_dir=tmp_path)
    source, to = await first.account("100"), await first.account()
    body = {
        "from": source.account_id,
        "to": to.account_id,
        "amount": "1",
        "idempotency_key": "key",
    }
    paying = first.request("POST", "/v1/transfers", body, await first.agent_of(source))
    await first.cut_off(paying, units)
    second = await worlds.started(data_dir=tmp_path, after=first)
    answers = [await second.transfer("key", source, to, "1") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert (second.balance(source), second.balance(to)) == (99_000_000, 1_000_000)
    assert len(await second.rows("transfers")) == 1
    await second.stop()


class TestTwoServers:
    """Two servers on one PostgreSQL: what the database decides, it decides for both."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """A loop whose time is real: both wait for PostgreSQL."""
        return "asyncio"

    @pytest.fixture
    async def scene(self) -> AsyncIterator[Scene]:
        async with both() as servers:
            yield await scene_of(*servers)

    async def test_concurrent_requests_are_linearizable(self, scene: Scene) -> None:
        for seed in range(20):
            chance = random.Random(seed)
            await play(scene, chance, f"key-{seed}", 3, most_at_once=5, can_wait=False)

    async def test_an_operator_and_an_agent_with_one_key_pay_once(self, scene: Scene) -> None:
        asks = [Ask(None, 0, "1"), Ask(0, 0, "1")] * 30
        for key in ("a", "b", "c", "d"):
            answers = await asyncio.gather(*(scene.transfer(n // 3, ask, key) for n, ask in enumerate(asks)))
            assert {answer.status for answer in answers} == {200}
            assert len({answer.transfer_id for answer in answers}) == 1
            scene.paid[0] += 1
        scene.check_balances()

    async def test_an_operator_paying_from_two_accounts_with_one_key_pays_from_one(
        self, scene: Scene
    ) -> None:
        asks = [Ask(None, number % 2, "1") for number in range(40)]
        for key in ("a", "b", "c", "d"):
            answers = await asyncio.gather(*(scene.transfer(n // 2, ask, key) for n, ask in enumerate(asks)))
            assert Counter((answer.status, answer.error) for answer in answers) == {
                (200, None): 20,
                (409, "idempotency_conflict"): 20,
            }
            (source,) = {
                ask.source for ask, answer in zip(asks, answers, strict=True) if answer.status == 200
            }
            scene.paid[source] += 1
        scene.check_balances()

    async def test_concurrent_openings_with_one_key_fund_one_escrow_per_account(self, scene: Scene) -> None:
        for key in ("a", "b", "c"):
            await open_at_once(scene, key, 6)
