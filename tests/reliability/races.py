"""Requests that race each other: what must hold wherever they meet.

Either at one server, where every call of the chain and the database lets others in, or at two servers over
one PostgreSQL and one chain, which nothing tells of each other but the database.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import chains
from worlds import Answer, Party, World, micro, settled_as_answered

CALLS = 200
PASSED = (200, 201)

Servers = Sequence[World]
RACES: dict[str, Callable[[Servers], Awaitable[None]]] = {}


def race(run: Callable[[Servers], Awaitable[None]]) -> Callable[[Servers], Awaitable[None]]:
    RACES[run.__name__] = run
    return run


def at(servers: Servers, number: int) -> World:
    """Return the server that a request is sent to."""
    return servers[number % len(servers)]


async def transfers(
    servers: Servers, source: Party, to: Party, key: str, *, count: int = CALLS, amount: str = "1"
) -> list[Answer]:
    """Send transfers at once, in turn to each server."""
    return await asyncio.gather(
        *(at(servers, number).transfer(key.format(number), source, to, amount) for number in range(count))
    )


async def openings_and_transfers(servers: Servers, source: Party, to: Party, count: int) -> list[Answer]:
    """Send as many openings of sessions of 1 USDC as transfers of 1 USDC, at once."""
    return await asyncio.gather(
        *(at(servers, number).open_session(f"s{number}", source, to, "1") for number in range(count)),
        *(at(servers, number).transfer(f"t{number}", source, to, "1") for number in range(count)),
    )


def counted(answers: list[Answer]) -> Counter[Any]:
    return Counter((answer.status, answer.error) for answer in answers)


async def settled_books(world: World, *parties: Party) -> None:
    """Assert that nothing is reserved any more, and that the books say what the chain says."""
    for party in parties:
        (row,) = await world.rows("accounts", account_id=party.account_id)
        assert (row["in_flight"], row["cap_holds"]) == (0, 0)
        assert row["balance"] == world.balance(party)


# --- Transfers


@race
async def one_key_makes_one_transfer(servers: Servers) -> None:
    first = servers[0]
    source, to = await first.account("100"), await first.account()
    answers = await transfers(servers, source, to, "one", amount="0.5")
    assert {answer.status for answer in answers} == {200}
    assert len({str(answer.body) for answer in answers}) == 1
    assert first.balance(to) == 500_000
    assert first.attempts(answers[0].transfer_id) == ["landed"]
    assert len(await first.rows("transfers")) == 1
    types = await first.event_types(answers[0].body["transfer_id"])
    assert types == ["transfer.initiated", "transfer.settled"]


@race
async def distinct_keys_make_a_transaction_each(servers: Servers) -> None:
    first = servers[0]
    source, to = await first.account("300"), await first.account()
    count = CALLS // 2 * len(servers)
    answers = await transfers(servers, source, to, "key-{}", count=count)
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body["tx_signature"] for answer in answers}) == count
    assert (first.balance(source), first.balance(to)) == ((300 - count) * 10**6, count * 10**6)
    assert (await first.detail(source))["reserved_usdc"] == "0.000000"


@race
async def one_key_used_for_two_accounts_pays_from_one(servers: Servers) -> None:
    first = servers[0]
    one, other, to = [await first.account("10") for _ in range(3)]
    answers = await asyncio.gather(
        *(
            at(servers, number // 2).transfer("raced", (one, other)[number % 2], to, "2")
            for number in range(40)
        )
    )
    assert counted(answers) == {(200, None): 20, (409, "idempotency_conflict"): 20}
    assert len({answer.transfer_id for answer in answers} - {None}) == 1
    assert first.balance(to) == 12_000_000


@race
async def transfers_reach_the_daily_limit_and_do_not_exceed_it(servers: Servers) -> None:
    first, last = servers[0], servers[-1]
    source, to = await first.account("300"), await first.account()
    await last.policy(source, max_daily_spend=20.999999)
    first.chain.next_payment(*[chains.reply_lost, chains.passed, chains.dropped] * 5)
    answers = await transfers(servers, source, to, "key-{}")
    assert counted(answers) == {(200, None): 20, (402, "policy_violation"): 180}
    assert first.balance(to) == 20_000_000
    assert (await last.detail(source))["spent_usdc"] == "20.000000"


@race
async def transfers_spend_the_balance_and_none_fails_on_chain(servers: Servers) -> None:
    first = servers[0]
    source, to = await first.account("20.999999"), await first.account()
    answers = await transfers(servers, source, to, "key-{}", count=80)
    told = Counter((answer.status, answer.error, answer.body["status"]) for answer in answers)
    assert told == {(200, None, "settled"): 20, (402, "insufficient_balance", "rejected"): 60}
    assert len({answer.body["tx_signature"] for answer in answers if answer.status == 200}) == 20
    assert first.balance(source) == 999_999


# --- Sessions


@race
async def one_key_opens_one_session(servers: Servers) -> None:
    first = servers[0]
    source, to = await first.account("100"), await first.account()
    answers = await asyncio.gather(
        *(at(servers, number).open_session("one", source, to, "10") for number in range(60))
    )
    assert {answer.status for answer in answers} == {201}
    assert len({str(answer.body) for answer in answers}) == 1
    assert first.attempts(answers[0].body["session_id"]) == ["landed"]
    assert (first.balance(source), len(await first.rows("sessions"))) == (90_000_000, 1)
    assert [event["type"] for event in await first.events()] == ["session.opened"]


@race
async def charges_stop_at_the_cap_and_each_key_charges_once(servers: Servers) -> None:
    first, last = servers[0], servers[-1]
    source, to = await first.account("100"), await first.account()
    session_id = await first.opened_session("s", source, to, "1")
    answers = await asyncio.gather(
        *(at(servers, number).charge(f"key-{number // 2}", session_id, "0.02") for number in range(120))
    )
    assert set(counted(answers)) == {(200, None), (402, "session_cap_exceeded")}
    made = await first.rows("session_charges")
    assert [row["amount"] for row in made] == [20_000] * 50
    # A key that has charged is answered in the same way wherever it is sent.
    told = Counter(f"key-{number // 2}" for number, answer in enumerate(answers) if answer.status == 200)
    assert told == {row["idempotency_key"]: 2 for row in made}
    events = [event["type"] for event in await last.events()]
    assert events == ["session.opened", "session.cap_warning", "session.cap_reached"]
    closed = await last.close_session(session_id)
    assert (closed.status, closed.body["settled_usdc"]) == (200, "1.000000")
    assert first.balance(to) == 1_000_000


@race
async def closing_during_charges_settles_exactly_the_accepted_charges(servers: Servers) -> None:
    first, last = servers[0], servers[-1]
    source, to = await first.account("100"), await first.account()
    session_id = await first.opened_session("s", source, to, "10")
    *charges, one, other = await asyncio.gather(
        *(at(servers, number).charge(f"a{number}", session_id, "0.07") for number in range(30)),
        *(at(servers, number).charge(f"b{number}", session_id, "0.07") for number in range(30)),
        first.close_session(session_id),
        last.close_session(session_id),
    )
    assert (one.status, one.body) == (200, other.body)
    assert set(counted(charges)) <= {(200, None), (409, "session_closed")}
    await settled_as_answered(first, session_id, charges, 70_000)
    assert first.balance(to) == 70_000 * sum(answer.status == 200 for answer in charges)
    assert first.attempts(session_id) == ["landed", "landed"]
    await settled_books(first, source, to)
    assert [event["type"] for event in await first.events()] == ["session.opened", "session.settled"]


# --- Both


@race
async def openings_and_transfers_reach_the_daily_limit_and_do_not_exceed_it(servers: Servers) -> None:
    first, last = servers[0], servers[-1]
    source, to = await first.account("100"), await first.account()
    await last.policy(source, max_daily_spend=10.999999)
    answers = await openings_and_transfers(servers, source, to, 15)
    assert Counter(answer.error for answer in answers) == {None: 10, "policy_violation": 20}
    detail = await last.detail(source)
    assert (detail["spent_usdc"], detail["remaining_usdc"]) == ("10.000000", "0.999999")


@race
async def openings_and_transfers_reach_the_total_of_a_key_and_do_not_exceed_it(servers: Servers) -> None:
    first = servers[0]
    source, to = await first.account("100"), await first.account()
    operator, agent = dict(first.http.headers), await first.agent_of(source, max_total_usdc="10")
    for each in servers:
        each.http.headers.update(agent)
    answers = await openings_and_transfers(servers, source, to, 15)
    passed = [answer for answer in answers if answer.status in PASSED]
    assert len(passed) == 10
    assert {answer.error for answer in answers} == {None, "policy_violation"}
    me = (await first.request("GET", "/ext/v1/whoami")).body
    assert (me["max_total_usdc"], me["spent_total_usdc"]) == ("10.000000", "10.000000")
    # What sessions give back, and no more, can be spent again.
    sessions = [answer.body["session_id"] for answer in passed if answer.status == 201]
    closes = await asyncio.gather(
        *(at(servers, number).close_session(session_id) for number, session_id in enumerate(sessions)),
        *(at(servers, number).transfer(f"u{number}", source, to, "1") for number in range(15)),
    )
    await transfers(servers, source, to, "v{}", count=15)
    assert {answer.error for answer in closes} <= {None, "policy_violation"}
    for each in servers:
        each.http.headers.update(operator)
    assert first.balance(to) == 10_000_000


@race
async def openings_and_transfers_spend_the_balance_and_none_fails_on_chain(servers: Servers) -> None:
    first = servers[0]
    source, to = await first.account("10.5"), await first.account()
    answers = await openings_and_transfers(servers, source, to, 12)
    assert sum(answer.status in PASSED for answer in answers) == 10
    assert {answer.error for answer in answers} == {None, "insufficient_balance"}
    assert first.balance(source) == 500_000
    (row,) = await first.rows("accounts", account_id=source.account_id)
    assert (row["balance"], row["in_flight"]) == (500_000, 0)


@race
async def settlements_that_race_new_spends_stay_within_the_daily_limit(servers: Servers) -> None:
    first, last = servers[0], servers[-1]
    source, to = await first.account("100"), await first.account()
    await first.policy(source, max_daily_spend=10)
    sessions = [await first.opened_session(f"s{number}", source, to, "2") for number in range(5)]
    for number, session_id in enumerate(sessions):
        await first.charge("k", session_id, f"0.{number}1")
    answers = await asyncio.gather(
        *(at(servers, number).close_session(session_id) for number, session_id in enumerate(sessions)),
        *(at(servers, number).transfer(f"t{number}", source, to, "1") for number in range(15)),
    )
    charged = sum(int(f"{number}1") for number in range(5)) * 10_000
    spent = charged + 1_000_000 * sum(answer.status == 200 for answer in answers[5:])
    assert spent <= 10_000_000
    assert first.balance(to) == spent
    assert micro((await last.detail(source))["spent_usdc"]) == spent
