"""Sessions where every call of the chain and the database lets others in (P9, P10), and on threads."""

import asyncio
import threading
from collections import Counter

import pytest
import worlds
from worlds import settled_as_answered

from agentpay import errors
from agentpay_server import AgentPayServer

SEEDS = range(4)

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


@pytest.mark.parametrize("seed", SEEDS)
async def test_closing_during_charges_settles_exactly_the_accepted_charges(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        session_id = await world.opened_session("s", source, to, "10")
        answers = await asyncio.gather(
            *(world.charge(f"a{number}", session_id, "0.07") for number in range(20)),
            world.close_session(session_id),
            *(world.charge(f"b{number}", session_id, "0.07") for number in range(20)),
            world.close_session(session_id),
        )
        closes, charges = [answers[20], answers[41]], [*answers[:20], *answers[21:41]]
        assert [close.status for close in closes] == [200, 200]
        assert closes[0].body == closes[1].body
        assert {(answer.status, answer.error) for answer in charges} <= {(200, None), (409, "session_closed")}
        await settled_as_answered(world, session_id, charges, 70_000)
        assert world.balance(to) == 70_000 * sum(answer.status == 200 for answer in charges)
        events = [event["type"] for event in await world.events()]
        assert events == ["session.opened", "session.settled"]


@pytest.mark.parametrize("seed", SEEDS)
async def test_racing_charges_reach_exactly_the_cap_and_emit_each_event_once(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        session_id = await world.opened_session("s", source, to, "1")
        charges = await asyncio.gather(
            *(world.charge(f"k{number % 60}", session_id, "0.02") for number in range(120))
        )
        assert Counter(answer.status for answer in charges)[200] >= 50
        assert {answer.error for answer in charges} == {None, "session_cap_exceeded"}
        assert len(await world.rows("session_charges")) == 50
        assert (await world.get_session(session_id))["running_total_usdc"] == "1.000000"
        events = [event["type"] for event in await world.events()]
        assert events == ["session.opened", "session.cap_warning", "session.cap_reached"]


@pytest.mark.parametrize("seed", SEEDS)
async def test_concurrent_openings_with_one_key_fund_one_escrow(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        answers = await asyncio.gather(*(world.open_session("one", source, to, "5") for _ in range(40)))
        assert {answer.status for answer in answers} == {201}
        assert len({str(answer.body) for answer in answers}) == 1
        assert world.balance(source) == 95_000_000
        assert world.attempts(answers[0].body["session_id"]) == ["landed"]


async def test_200_racing_openings_stop_at_exactly_the_session_limit() -> None:
    async with worlds.world(
        store="file", interrupted=1, max_open_sessions=20, settlement_wait_seconds=100
    ) as world:
        source, to = await world.account("100"), await world.account()
        answers = await asyncio.gather(
            *(world.open_session(f"s{number}", source, to, "0.1") for number in range(200))
        )
        assert Counter((answer.status, answer.error) for answer in answers) == {
            (201, None): 20,
            (409, "too_many_sessions"): 180,
        }
        assert len(await world.rows("sessions")) == 20
        assert world.balance(source) == 98_000_000
        # A refused one holds no key, and a settled one makes room.
        opened = [answer.body["session_id"] for answer in answers if answer.status == 201]
        refused = [number for number, answer in enumerate(answers) if answer.status == 409]
        assert (await world.close_session(opened[0])).status == 200
        again = [await world.open_session(f"s{number}", source, to, "0.1") for number in refused[:3]]
        assert [answer.status for answer in again] == [201, 409, 409]


@pytest.mark.parametrize("seed", SEEDS)
async def test_racing_openings_and_transfers_reach_the_daily_limit_and_do_not_exceed_it(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        await world.policy(source, max_daily_spend=10)
        answers = await asyncio.gather(
            *(world.open_session(f"s{number}", source, to, "1") for number in range(15)),
            *(world.transfer(f"t{number}", source, to, "1") for number in range(15)),
        )
        passed = [answer for answer in answers if answer.status in (200, 201)]
        assert len(passed) == 10
        assert {answer.error for answer in answers} == {None, "policy_violation"}
        detail = await world.detail(source)
        assert (detail["spent_usdc"], detail["remaining_usdc"]) == ("10.000000", "0.000000")


@pytest.mark.parametrize("seed", SEEDS)
async def test_racing_openings_and_transfers_reach_the_total_of_a_key_and_do_not_exceed_it(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        operator = dict(world.http.headers)
        world.http.headers.update(await world.agent_of(source, max_total_usdc="10"))
        answers = await asyncio.gather(
            *(world.open_session(f"s{number}", source, to, "1") for number in range(15)),
            *(world.transfer(f"t{number}", source, to, "1") for number in range(15)),
        )
        passed = [answer for answer in answers if answer.status in (200, 201)]
        assert len(passed) == 10
        assert {answer.error for answer in answers} == {None, "policy_violation"}
        me = (await world.request("GET", "/ext/v1/whoami")).body
        assert (me["max_total_usdc"], me["spent_total_usdc"]) == ("10.000000", "10.000000")
        # What sessions give back, and no more, can be spent again.
        sessions = [answer.body["session_id"] for answer in passed if answer.status == 201]
        closes = await asyncio.gather(
            *(world.close_session(session_id) for session_id in sessions),
            *(world.transfer(f"u{number}", source, to, "1") for number in range(15)),
        )
        await asyncio.gather(*(world.transfer(f"v{number}", source, to, "1") for number in range(15)))
        assert {answer.error for answer in closes} <= {None, "policy_violation"}
        world.http.headers.update(operator)
        assert world.balance(to) == 10_000_000


@pytest.mark.parametrize("seed", SEEDS)
async def test_racing_openings_and_transfers_spend_the_balance_and_none_fails_on_chain(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("10.5"), await world.account()
        answers = await asyncio.gather(
            *(world.open_session(f"s{number}", source, to, "1") for number in range(12)),
            *(world.transfer(f"t{number}", source, to, "1") for number in range(12)),
        )
        assert sum(answer.status in (200, 201) for answer in answers) == 10
        assert {answer.error for answer in answers} == {None, "insufficient_balance"}
        assert world.balance(source) == 500_000
        (row,) = await world.rows("accounts", account_id=source.account_id)
        assert (row["balance"], row["in_flight"]) == (500_000, 0)


@pytest.mark.parametrize("seed", SEEDS)
async def test_settlements_racing_new_spends_stay_within_the_daily_limit(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        await world.policy(source, max_daily_spend=10)
        sessions = [await world.opened_session(f"s{number}", source, to, "2") for number in range(5)]
        for number, session_id in enumerate(sessions):
            await world.charge("k", session_id, f"0.{number}1")
        answers = await asyncio.gather(
            *(world.close_session(session_id) for session_id in sessions),
            *(world.transfer(f"t{number}", source, to, "1") for number in range(15)),
        )
        charged = sum(int(f"{number}1") for number in range(5)) * 10_000
        spent = charged + 1_000_000 * sum(answer.status == 200 for answer in answers[5:])
        assert spent <= 10_000_000
        assert world.balance(to) == spent
        assert worlds.micro((await world.detail(source))["spent_usdc"]) == spent


def test_32_threads_charging_one_session_stop_at_exactly_the_cap() -> None:
    with AgentPayServer() as server:
        client = server.client()
        payer = client.accounts.create(name="Payer").account_id
        payee = client.accounts.create(name="Payee")
        server.sandbox.fund(payer, 100)
        session = server.sessions.open(account_id=payer, to=payee.account_id, cap_usdc="3.21")
        made: list[int] = []

        def charge_until_refused() -> None:
            while True:
                try:
                    server.sessions.charge(session.session_id, amount="0.01")
                except errors.SessionCapExceededError:
                    return
                made.append(10_000)

        threads = [threading.Thread(target=charge_until_refused) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(made) == 3_210_000
        settled = server.sessions.close(session.session_id)
        assert (settled.settled_usdc, settled.returned_usdc) == (settled.cap_usdc, 0)
        assert client.accounts.balance(payee.account_id).balance_usdc == settled.cap_usdc
