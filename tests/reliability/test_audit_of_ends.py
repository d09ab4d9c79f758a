"""The audit trail when a transaction certainly moved nothing: an entry of the server itself."""

import json
from typing import Any

import chains
import pytest
from worlds import World

pytestmark = pytest.mark.anyio


async def told(world: World, subject: str) -> list[dict[str, Any]]:
    """Return what the trail says of one subject, oldest first."""
    found = await world.rows("audit", subject=subject)
    return [
        {**row, "before": json.loads(row["before"] or "null"), "after": json.loads(row["after"] or "null")}
        for row in found
    ]


async def test_a_transfer_that_fails_on_chain_is_audited(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.before(lambda: world.freeze(to)))
    answer = await world.transfer("key", source, to, "7")
    assert answer.body["status"] == "failed"
    asked, failed = await told(world, str(answer.transfer_id))
    assert (asked["action"], asked["after"]["status"]) == ("transfers.create", "submitted")
    assert (failed["action"], failed["key_id"], failed["request_id"]) == ("transfers.fail", None, None)
    assert failed["before"] == {"status": "submitted"}
    assert failed["after"] == {
        **asked["after"],
        "status": "failed",
        "error": "transfer_failed",
        "message": answer.body["message"],
    }


async def test_a_transfer_that_expires_while_its_account_is_paused_is_audited(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.goes_down)
    unknown = await world.transfer("key", source, to, "7")
    await world.policy(source, paused=True)
    world.chain.clear()
    world.chain.next("send", chains.expiring)
    await world.rest()
    shown = await world.get_transfer(str(unknown.transfer_id))
    *_, failed = await told(world, str(unknown.transfer_id))
    assert (shown["status"], shown["error"]) == ("failed", "account_paused")
    assert (failed["action"], failed["after"]["error"]) == ("transfers.fail", "account_paused")


async def test_a_session_whose_funding_fails_on_chain_is_audited(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    outside = await world.outside()
    world.chain.next("send", chains.before(lambda: world.drain(source, outside, "95")))
    answer = await world.open_session("key", source, to, "10")
    assert answer.body["status"] == "failed"
    opened, failed = await told(world, str(answer.body["session_id"]))
    assert (opened["action"], opened["after"]["status"]) == ("sessions.open", "opening")
    assert (failed["action"], failed["key_id"]) == ("sessions.fail", None)
    assert failed["before"] == {"status": "opening"}
    assert failed["after"] == {
        **opened["after"],
        "status": "failed",
        "error": "insufficient_balance",
        "message": answer.body["message"],
    }
