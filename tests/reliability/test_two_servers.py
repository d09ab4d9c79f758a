"""Two servers' services over one PostgreSQL and one chain: what the database decides, it decides for both.

The chain is one object that both see, as a cluster would be; everything else, pools of connections included,
each has for itself (P4, P5, P7, P9, P10).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import asyncpg
import chains
import pytest
import signed
import stores
from attrs import evolve
from chains import Act
from races import CALLS, RACES, settled_books
from sellers import ORIGIN, Seller
from session_sellers import SessionSeller
from solders.account import Account
from solders.pubkey import Pubkey
from two_servers import both
from worlds import Answer, World, drive

from agentpay_server import AgentPayServer
from agentpay_server.accounts import policies
from agentpay_server.accounts.policies import Policies
from agentpay_server.ledger.accounts import OPERATORS
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.postgres.connections import PreparedConnection

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

TRANSACTIONS_OF = "SELECT count(DISTINCT xmin::text) FROM"


@pytest.fixture
def anyio_backend() -> str:
    """A loop whose time is real: both wait for PostgreSQL."""
    return "asyncio"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """The database of both."""
    made = await stores.fresh_url()
    yield made
    stores.run.free.append(made)


@pytest.fixture
async def holder(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A third party's connection to the database, which holds up the servers."""
    made = await stores.connect(url)
    yield made
    await made.close()


@pytest.fixture
async def servers(request: pytest.FixtureRequest, url: str) -> AsyncIterator[tuple[World, World]]:
    """Two servers; a test may give both the same settings as the fixture's parameter."""
    async with both(url, **getattr(request, "param", {})) as servers:
        yield servers


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The deadlocks that PostgreSQL has resolved."""
    found: list[Exception] = []
    answered = PreparedConnection._answered

    async def watched(session: Any, answer: Any) -> Any:
        try:
            return await answered(session, answer)
        except asyncpg.DeadlockDetectedError as error:
            found.append(error)
            raise

    monkeypatch.setattr(PreparedConnection, "_answered", watched)
    return found


@pytest.mark.parametrize("raced", RACES)
async def test_what_races_at_two_servers_has_one_outcome(servers: tuple[World, World], raced: str) -> None:
    await RACES[raced](servers)


async def test_200_openings_at_both_servers_stop_at_exactly_the_session_limit(
    servers: tuple[World, World],
) -> None:
    first, second = servers
    source, to = await first.account("100"), await first.account()
    answers = await asyncio.gather(
        *(servers[number % 2].open_session(f"s{number}", source, to, "0.1") for number in range(CALLS))
    )
    assert Counter((answer.status, answer.error) for answer in answers) == {
        (201, None): 100,
        (409, "too_many_sessions"): 100,
    }
    assert len(await second.rows("sessions")) == 100
    assert first.balance(source) == 90_000_000


@pytest.mark.parametrize(
    "servers", [{"fee_budget_sol": "0.00025", "max_open_sessions": CALLS}], indirect=True
)
async def test_200_openings_at_both_servers_stop_at_exactly_the_fee_budget(
    servers: tuple[World, World],
) -> None:
    first, second = servers
    source, to = await first.account("100"), await first.account()
    before = await treasury(first)
    agent = await first.agent_of(source)

    def opening(number: int) -> Any:
        body = {"account_id": source.account_id, "to": to.account_id, "cap_usdc": "0.1"}
        headers = agent if number // 2 % 2 else None
        body["idempotency_key"] = f"s{number}"
        return servers[number % 2].request("POST", "/ext/v1/sessions", body, headers)

    answers = await asyncio.gather(*(opening(number) for number in range(CALLS)))
    # An opening and its close cost 25,000 lamports. An operator's and an agent's are counted apart.
    for asked in (0, 1):
        asked_by = [answer for number, answer in enumerate(answers) if number // 2 % 2 == asked]
        assert Counter((answer.status, answer.error) for answer in asked_by) == {
            (201, None): 10,
            (429, "fee_budget_exceeded"): 90,
        }
    opened = [answer.body["session_id"] for answer in answers if answer.status == 201]
    closed = await asyncio.gather(
        *(servers[number % 2].close_session(session_id) for number, session_id in enumerate(opened)),
        *(servers[number % 2].open_session(f"t{number}", source, to, "0.1") for number in range(20)),
    )
    assert [answer.status for answer in closed] == [200] * 20 + [429] * 20
    assert before - await treasury(second) == 500_000


async def test_openings_at_both_servers_leave_the_reserve_of_a_treasury_that_runs_empty(
    servers: tuple[World, World],
) -> None:
    first, second = servers
    # Its own chain is unused.
    second.runtime.services.treasury._chain = first.runtime.chain
    source, to = await first.account("100"), await first.account()
    rent = await first.chain.inner.rent_exemption(165)
    needed = rent + 25_000
    address = Pubkey.from_string(first.treasury)
    first.chain.inner._svm.set_account(address, Account(20_000_000 + 10 * needed, b"", Pubkey.default()))
    opened: list[str] = []
    # What is in flight may or may not have left the balance, so that some are asked to try again.
    while True:
        answers = await asyncio.gather(
            *(
                servers[number % 2].open_session(f"{len(opened)} {number}", source, to, "0.1")
                for number in range(40)
            )
        )
        assert {(answer.status, answer.error) for answer in answers} <= {
            (201, None),
            (503, "chain_unavailable"),
        }
        new = [answer.body["session_id"] for answer in answers if answer.status == 201]
        opened += new
        # The closes of all of them are paid for.
        assert await treasury(first) >= 20_000_000 + 10_000 * len(opened)
        if not new:
            break
    # The treasury has what ten closes cost, which no opening needs.
    assert len(opened) == 10
    closed = await asyncio.gather(*(first.close_session(session_id) for session_id in opened))
    assert {answer.status for answer in closed} == {200}
    rows = await first.rows("chain_transactions")
    assert {row["state"] for row in rows} <= {"finalized"}


async def treasury(world: World) -> int:
    found = await world.chain.inner.account_size(world.treasury)
    assert found is not None
    return found[0]


async def test_transfers_of_many_accounts_with_repeated_keys_are_exact(
    servers: tuple[World, World],
) -> None:
    first, second = servers
    to = await first.account()
    sources = [await first.account(amount) for amount in ("100", "100", "1.5", "1.5", "100", "100")]
    for source in sources[:2]:
        await second.policy(source, max_daily_spend=2.999999)
    # 12 keys for each account, three times each and at both servers, all at once.
    asked = [(number, key) for key in range(36) for number in range(len(sources))]
    answers = await asyncio.gather(
        *(
            servers[turn % 2].transfer(f"{number} {key % 12}", sources[number], to, "0.5")
            for turn, (number, key) in enumerate(asked)
        )
    )
    assert {(answer.status, answer.error) for answer in answers} == {
        (200, None),
        (402, "policy_violation"),
        (402, "insufficient_balance"),
    }
    # The two of the limit, the two of the balance, and the two without either.
    counts = [5, 5, 3, 3, 12, 12]
    settled = await first.rows("transfers", status="settled")
    entries = await first.rows("entries", type="transfer", status="settled")
    events = [event["data"] for event in await first.events() if event["type"] == "transfer.settled"]
    for number, (source, count) in enumerate(zip(sources, counts, strict=True)):
        own = {row["transfer_id"] for row in settled if row["account_id"] == source.account_id}
        told = {
            answer.transfer_id
            for (asked_of, _), answer in zip(asked, answers, strict=True)
            if asked_of == number and answer.status == 200
        }
        assert own == told
        assert len(own) == count
        history = [row["transfer_id"] for row in entries if row["account_id"] == source.account_id]
        assert sorted(history) == sorted(own)
        assert (await second.detail(source))["spent_usdc"] == f"{count / 2:.6f}"
    assert sorted(event["transfer_id"] for event in events) == sorted(row["transfer_id"] for row in settled)
    assert first.balance(to) == 500_000 * sum(counts)
    assert [entry["amount"] for entry in await first.entries(to)] == [500_000] * sum(counts)
    await settled_books(first, to, *sources)


async def test_payments_at_both_servers_reach_the_daily_limit_and_do_not_exceed_it(
    servers: tuple[World, World],
) -> None:
    first, second = servers
    source = await first.account("300")
    await second.policy(source, max_daily_spend=10.999999)
    seller = Seller(first.chain, first.runtime.context.signer, drive)
    await seller._open()

    def asked(key: str) -> dict[str, Any]:
        challenge = seller.ask("x402_v2", 1_000_000)
        return {"account_id": source.account_id, "idempotency_key": key, "origin": ORIGIN, **challenge}

    # Each key twice, at both: forty purchases, of which ten are within the limit.
    answers = await asyncio.gather(
        *(
            servers[number % 2].request("POST", "/ext/v1/payments", asked(f"key-{number // 2}"))
            for number in range(80)
        )
    )
    assert Counter((answer.status, answer.error) for answer in answers) == {
        (201, None): 20,
        (402, "policy_violation"): 60,
    }
    # One transaction for each key, from either server.
    handed_out = {seller.transaction_in(each.body["header"]) for each in answers if each.status == 201}
    assert len(handed_out) == 10
    assert (await second.detail(source))["reserved_usdc"] == "10.000000"


async def test_a_pause_at_one_server_applies_at_the_other(servers: tuple[World, World]) -> None:
    first, second = servers
    source, to = await first.account("300"), await first.account()
    await first.policy(source, paused=True)
    assert (await second.transfer("key", source, to, "1")).error == "account_paused"


async def test_reusing_a_key_with_other_parameters_at_the_other_server_conflicts(
    servers: tuple[World, World],
) -> None:
    first, second = servers
    source, to = await first.account("300"), await first.account()
    assert (await first.transfer("key", source, to, "1")).status == 200
    assert (await second.transfer("key", source, to, "2")).error == "idempotency_conflict"
    assert first.balance(to) == 1_000_000


# --- Sessions


async def test_charges_of_many_sessions_with_repeated_keys_are_exact(
    servers: tuple[World, World], deadlocks: list[Exception]
) -> None:
    """Both servers charge the sessions in opposite orders, each key at both of them."""
    first, second = servers
    source, to = await first.account("100"), await first.account()
    sessions = [await first.opened_session(f"s-{number}", source, to, "0.31") for number in range(8)]
    ways = [(first, sessions), (second, sessions[::-1])]
    told = set()
    for number in range(10):
        asked = [
            (world, session_id, f"key-{key}")
            for turn in range(2)
            for place, (world, way) in enumerate(ways)
            for key in [2 * number + (place + turn) % 2]
            for session_id in way
        ]
        answers = await asyncio.gather(
            *(world.charge(key, session_id, "0.02") for world, session_id, key in asked)
        )
        assert {(answer.status, answer.error) for answer in answers} <= {
            (200, None),
            (402, "session_cap_exceeded"),
        }
        for (_, session_id, key), answer in zip(asked, answers, strict=True):
            if answer.status == 200:
                told.add((session_id, key))
    assert not deadlocks
    charges = await first.rows("session_charges")
    assert {(row["session_id"], row["idempotency_key"]) for row in charges} == told
    assert Counter(row["session_id"] for row in charges) == dict.fromkeys(sessions, 15)
    assert [row["running_total"] for row in await first.rows("sessions")] == [300_000] * len(sessions)
    closed = await asyncio.gather(*(first.close_session(session_id) for session_id in sessions))
    assert {answer.body["settled_usdc"] for answer in closed} == {"0.300000"}
    await settled_books(first, source, to)


async def test_a_charge_that_waits_for_another_server_holds_up_no_charge_of_another_session(
    servers: tuple[World, World], holder: asyncpg.Connection, deadlocks: list[Exception]
) -> None:
    first, _ = servers
    source, to = await first.account("100"), await first.account()
    sessions = [await first.opened_session(f"s-{number}", source, to, "1") for number in range(8)]
    lock = "SELECT FROM sessions WHERE session_id = $1 FOR UPDATE"
    async with holder.transaction():
        await holder.execute(lock, sessions[0])
        waiting, *others = (asyncio.ensure_future(first.charge("key", each, "0.01")) for each in sessions)
        assert {answer.status for answer in await asyncio.gather(*others)} == {200}
        # The charges of one server share transactions.
        assert await holder.fetchval(f"{TRANSACTIONS_OF} session_charges") < len(others)
        assert not waiting.done()
        # The other server locks sessions in another order.
        for each in sessions[1:]:
            await holder.execute(lock, each)
    assert (await waiting).status == 200
    assert not deadlocks
    assert [row["running_total"] for row in await first.rows("sessions")] == [10_000] * len(sessions)


async def test_vouchers_of_many_sessions_at_both_servers_are_signed_once_for_each_key(
    servers: tuple[World, World], holder: asyncpg.Connection
) -> None:
    first, _ = servers
    loop, signer = asyncio.get_running_loop(), first.runtime.context.signer
    sellers = [
        SessionSeller(
            first.chain,
            signer,
            lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(),
            number,
        )
        for number in range(10, 16)
    ]
    payers = [await first.account("10") for _ in sellers]
    for seller in sellers:
        await seller._open()

    async def paid(key: str, *worlds: World) -> list[Answer]:
        bodies = [
            {
                "account_id": payer.account_id,
                "idempotency_key": f"{key} {payer.account_id}",
                "origin": ORIGIN,
                "session_cap": "1",
                **await asyncio.to_thread(seller.ask_session),
            }
            for payer, seller in zip(payers, sellers, strict=True)
        ]
        asked = (world.request("POST", "/ext/v1/payments", body) for world in worlds for body in bodies)
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {201}, answers
        return answers

    for seller, opening in zip(sellers, await paid("one", first), strict=True):
        status = await asyncio.to_thread(seller.accept_opening, opening.body["header"])
        assert status is not None
        assert status.failure is None
    answers = await paid("one", *servers)
    assert [answer.body["step"] for answer in answers] == ["voucher"] * 12
    assert [a.body["header"] for a in answers[:6]] == [a.body["header"] for a in answers[6:]]
    for answer in answers[:6]:
        outcome = f"/ext/v1/payments/{answer.body['charge_id']}/outcome"
        assert (await first.request("POST", outcome, {"status_code": 200})).status == 200
    answers = await paid("two", first)
    # Those of one server share transactions.
    assert await holder.fetchval(f"{TRANSACTIONS_OF} vouchers WHERE cumulative = 2000") < len(sellers)
    assert {answer.body["running_total_usdc"] for answer in answers} == {"0.002000"}
    vouchers = await first.rows("vouchers")
    assert sorted(row["cumulative"] for row in vouchers) == [1_000] * 6 + [2_000] * 6


async def test_a_transaction_that_two_servers_end_at_once_is_no_deadlock(
    servers: tuple[World, World], holder: asyncpg.Connection, deadlocks: list[Exception]
) -> None:
    """One of them writes several outcomes in one database transaction, the other one of them by itself."""
    first, _ = servers
    sources, to = [await first.account("100") for _ in range(8)], await first.account()
    arrived, landed = asyncio.Semaphore(0), asyncio.Event()

    async def held(_chain: Any, proceed: Any) -> Any:
        arrived.release()
        await landed.wait()
        return await proceed()

    first.chain.next("signature_status", *[held] * len(sources))
    running = [
        asyncio.ensure_future(first.transfer(source.account_id, source, to, "1")) for source in sources
    ]
    for _ in sources:
        await arrived.acquire()
    async with holder.transaction():
        # What a unit of work that writes one outcome locks: the transaction, then its accounts.
        ending = "SELECT FROM chain_transactions WHERE account_id = $1 AND state = 'pending' FOR UPDATE"
        await holder.execute(ending, sources[0].account_id)
        landed.set()
        assert {answer.status for answer in await asyncio.gather(*running[1:])} == {200}
        for each in sorted((sources[0].account_id, to.account_id)):
            await holder.execute("SELECT FROM accounts WHERE account_id = $1 FOR UPDATE", each)
    assert (await running[0]).status == 200
    assert not deadlocks
    await settled_books(first, to, *sources)


async def test_sessions_in_opposite_directions_at_both_servers_do_not_deadlock(
    servers: tuple[World, World],
) -> None:
    """Settling locks both accounts, opening and transferring one: in one order, or there is a deadlock."""
    first, _ = servers
    one, other = await first.account("100"), await first.account("100")
    ways = [(one, other), (other, one)] * 6
    opened = await asyncio.gather(
        *(
            servers[number // 2 % 2].opened_session(f"s-{number}", *way, "2")
            for number, way in enumerate(ways)
        )
    )
    answers = await asyncio.gather(
        *(world.charge("key", session_id, "0.5") for session_id in opened for world in servers)
    )
    assert {answer.status for answer in answers} == {200}
    answers = await asyncio.gather(
        *(world.close_session(session_id) for session_id in opened for world in servers),
        *(world.transfer(f"t-{number}", *way, "1") for number, way in enumerate(ways) for world in servers),
        *(world.open_session(f"u-{n}", *way, "1") for n, way in enumerate(ways) for world in servers),
    )
    assert Counter(answer.status for answer in answers) == {200: 48, 201: 24}
    left = {str(answer.body["session_id"]) for answer in answers[48:]}
    answers = await asyncio.gather(*(world.close_session(each) for each in left for world in servers))
    assert {answer.status for answer in answers} == {200}
    await settled_books(first, one, other)
    # Both ways the same was paid.
    assert (first.balance(one), first.balance(other)) == (100_000_000, 100_000_000)
    assert len(signed.spends(await first.rows("chain_transactions"))) == 24


@pytest.mark.parametrize("fault", [chains.reply_lost, chains.dropped, chains.repeated, chains.expiring])
async def test_a_session_with_a_chain_fault_is_funded_and_settled_once_by_two_servers(
    servers: tuple[World, World], fault: Act
) -> None:
    first, second = servers
    source, to = await first.account("100"), await first.account()
    first.chain.next("send", fault)
    answers = await asyncio.gather(*(world.open_session("s", source, to, "10") for world in servers * 3))
    assert {answer.status for answer in answers} == {201}
    (session_id,) = {str(answer.body["session_id"]) for answer in answers}
    assert (await second.charge("key", session_id, "4")).status == 200
    first.chain.next("send", fault)
    answers = await asyncio.gather(*(world.close_session(session_id) for world in servers * 3))
    assert {(answer.status, answer.body["settled_usdc"]) for answer in answers} == {(200, "4.000000")}
    assert first.attempts(session_id).count("landed") == 2
    assert (first.balance(source), first.balance(to)) == (96_000_000, 4_000_000)
    await settled_books(first, source, to)
    assert [event["type"] for event in await first.events()] == ["session.opened", "session.settled"]


async def test_a_stream_has_the_events_of_both_and_resumes_at_either(servers: tuple[World, World]) -> None:
    first, second = servers
    source, to = await first.account("100"), await first.account()
    await first.transfer("seen", source, to, "1")
    *_, seen = await event_ids(first)
    streams = [await stream_of(world, seen) for world in servers]
    await second.transfer("at the second", source, to, "1")
    await first.transfer("at the first", source, to, "1")
    expected = (await event_ids(first))[-4:]
    assert [await sent(stream, 4) for stream in streams] == [expected, expected]
    # A page whose server is gone continues at the other one, after the last event that it has received.
    await streams[0].aclose()
    await second.transfer("meanwhile", source, to, "1")
    resumed = await stream_of(second, expected[1])
    assert await sent(resumed, 4) == (await event_ids(first))[-4:]
    await resumed.aclose()
    await streams[1].aclose()


async def test_a_key_revoked_at_one_server_ends_its_streams_at_the_other(
    servers: tuple[World, World],
) -> None:
    first, second = servers
    source, to = await first.account("100"), await first.account()
    await first.transfer("seen", source, to, "1")
    *_, before, seen = await event_ids(first)
    made = (await first.request("POST", "/ext/v1/console/operator-keys", {"name": "stolen"})).body
    stolen = evolve(second.runtime.principal, key_id=made["key_id"])
    stream = await second.runtime.services.built["webhooks"].tail.stream(stolen, before)
    assert await sent(stream, 1) == [seen]
    assert (await first.request("DELETE", f"/ext/v1/console/operator-keys/{made['key_id']}")).status == 204
    await first.transfer("after", source, to, "1")
    async with asyncio.timeout(30):
        assert [piece async for piece in stream] == []


async def event_ids(world: World) -> list[str]:
    """Return the identifiers of all events, in their order."""
    return [row["event_id"] for row in await world.rows("events")]


async def stream_of(world: World, after: str) -> AsyncGenerator[bytes]:
    """Return what `GET /ext/v1/console/stream` of a server sends after an event."""
    return await world.runtime.services.built["webhooks"].tail.stream(world.runtime.principal, after)


async def sent(stream: AsyncGenerator[bytes], count: int) -> list[str]:
    """Return the identifiers of the next events of a stream."""
    found: list[str] = []
    async with asyncio.timeout(120):
        while len(found) < count:
            lines = (await anext(stream)).decode("ascii").splitlines()
            found += [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
    return found


# --- Pausing all accounts


def test_a_pause_of_all_ends_a_request_in_progress_that_resumes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policies, "_PAUSED_AT_ONCE", 1)
    some = Policies._set_some
    resumed: list[int | None] = []

    def paused_after_the_first(
        self: Policies, connection: Any, principal: Principal, *given: Any, **options: Any
    ) -> int | None:
        found = some(self, connection, principal, *given, **options)
        if options["pauses"] is not None and not resumed:
            resumed.append(found)
            OPERATORS.changed(connection, principal.operator_id, add={"pauses": 1})
        return found

    monkeypatch.setattr(Policies, "_set_some", paused_after_the_first)
    with AgentPayServer() as server:
        client = server.client()
        for name in ("one", "two", "three"):
            client.accounts.create(name=name)
        client.console.pause_all()
        ended = client.console.resume_all()
        assert (ended.changed, ended.paused) == (1, 2)
        again = client.console.pause_all()
        assert (again.changed, again.paused) == (1, 3)
