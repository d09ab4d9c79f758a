"""Races at one server, where every call of the chain and the database lets others in, and on threads.

See P4, P5, P9 and P10.
"""

import asyncio
import threading
from collections import Counter

import pytest
import worlds
from races import RACES

from agentpay import errors
from agentpay_server import AgentPayServer

SEEDS = range(4)

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("raced", RACES)
async def test_what_races_where_every_call_lets_others_in_has_one_outcome(raced: str, seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        await RACES[raced]([world])


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
