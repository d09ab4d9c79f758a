"""However many suffer from a database that is away, the log says so once a second, without a traceback."""

import asyncio
import logging

import pytest
from away import world_on

pytestmark = pytest.mark.anyio


async def test_a_database_outage_logs_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async with world_on() as (world, database):
        source, to = await world.account("100"), await world.account()
        world.chain.not_final(4)
        asked = [asyncio.ensure_future(world.transfer(f"{number}", source, to, "1")) for number in range(40)]
        await asyncio.sleep(0.001)
        start = asyncio.get_running_loop().time()
        database.is_away = True
        caplog.clear()
        while asyncio.get_running_loop().time() < start + 30:
            await asyncio.sleep(0.5)
            answer = await world.request("GET", f"/v1/accounts/{source.account_id}")
            assert (answer.status, answer.error) == (503, "service_unavailable")
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert 15 <= len(lines) <= 32
        assert all("database.unavailable" in record.getMessage() for record in lines)
        assert not any(record.exc_info for record in lines)
        # Suppressed lines are counted.
        left_out = [record.msg.fields["left_out"] for record in lines]
        assert sum(count or 0 for count in left_out) > 5 * len(lines)
        database.comes_back()
        await asyncio.gather(*asked)
        await world.rest()
        assert world.balance(to) == 40_000_000


async def test_a_new_outage_after_a_quiet_second_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world_on() as (world, database):
        source = await world.account("1")
        for _ in range(3):
            database.is_away = True
            caplog.clear()
            await world.request("GET", f"/v1/accounts/{source.account_id}")
            told = [record for record in caplog.records if "database.unavailable" in record.getMessage()]
            assert len(told) == 1
            database.comes_back()
            await asyncio.sleep(60)
