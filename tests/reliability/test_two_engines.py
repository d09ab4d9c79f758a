"""Two settlement engines drive one transaction at the same time: whatever the order, it ends once.

The invariant: a row of `chain_transactions` leaves `pending` once, and a subject never has two pending rows.
Triggers of the database record both, so that the record does not depend on what the engines believe.
"""

import asyncio
import sqlite3
from itertools import dropwhile
from typing import Any

import another
import chains
import pytest
import worlds
from attrs import evolve, frozen
from chains import FAULTS
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import Party, World

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

AMOUNT = 7_000_000
CHARGED = 3_000_000
ENDS = ["lands", "refused by the chain", "expired", "expired while paused"]

RECORDER = """
CREATE TEMP TABLE steps (number INTEGER PRIMARY KEY, subject_id TEXT, signature TEXT, step TEXT);
CREATE TEMP TRIGGER signs AFTER INSERT ON main.chain_transactions WHEN NEW.state = 'pending' BEGIN
    INSERT INTO steps (subject_id, signature, step) VALUES (NEW.subject_id, NEW.signature, 'signed');
END;
CREATE TEMP TRIGGER ends AFTER UPDATE OF state ON main.chain_transactions WHEN OLD.state = 'pending' BEGIN
    INSERT INTO steps (subject_id, signature, step) VALUES (NEW.subject_id, NEW.signature, 'ended');
END;
"""


@frozen
class Begun:
    """A transaction that was signed and has not reached the chain."""

    source: Party
    to: Party
    tx: Any


def recorder(world: World) -> sqlite3.Connection:
    """Return the connection on which the steps of all transactions are recorded."""
    driver: sqlite3.Connection = world.runtime.storage.database._inner._driver  # type: ignore[attr-defined]
    return driver


def steps_since(world: World, tx: Any) -> list[tuple[str, str]]:
    """Return the recorded steps of a transaction and its replacements, in order."""
    steps = recorder(world).execute(
        "SELECT signature, step FROM steps WHERE subject_id = ? ORDER BY number", (tx.subject_id,)
    )
    return list(dropwhile(lambda step: step[0] != tx.signature, steps))


async def begun(world: World, kind: str) -> Begun:
    source, to = await world.account("10"), await world.account()
    if kind == "session_close":
        session_id = await world.opened_session("key", source, to, "7")
        assert (await world.charge("charge", session_id, "3")).status == 200
    world.chain.next_payment(chains.goes_down)
    if kind == "transfer":
        unknown = await world.transfer("key", source, to, "7")
    elif kind == "session_open":
        unknown = await world.open_session("key", source, to, "7")
    else:
        unknown = await world.close_session(session_id)
    assert unknown.status == 503
    subject_id = unknown.body["transfer_id" if kind == "transfer" else "session_id"]
    tx = await another.pending(world, kind, subject_id)
    # The engine of the server itself would be a third one.
    world.runtime.services.settlement.stop_driving(kind, subject_id)
    world.chain.clear()
    return Begun(source, to, evolve(tx, leased_until_us=0))


async def comes_about(world: World, end: str, one: Begun) -> None:
    if end == "refused by the chain":
        world.freeze(one.source)
    elif end == "expired":
        world.chain.inner.expire_blockhash()
    elif end == "expired while paused":
        await world.policy(one.source, paused=True)
        await world.rest()
        world.chain.inner.expire_blockhash()


async def assert_posted_once(world: World, one: Begun, *, has_landed: bool) -> None:
    (account,) = await world.rows("accounts", account_id=one.source.account_id)
    assert account["in_flight"] == 0
    if one.tx.kind == "transfer":
        end = "settled" if has_landed else "rejected"
        assert await world.event_types(one.tx.subject_id) == ["transfer.initiated", f"transfer.{end}"]
        moved, reserved, received = AMOUNT * has_landed, 0, AMOUNT * has_landed
    elif one.tx.kind == "session_open":
        moved, reserved, received = AMOUNT * has_landed, AMOUNT * has_landed, 0
    else:
        # The cap left with the opening; the settlement pays the charges, and returns the rest.
        moved = CHARGED if has_landed else AMOUNT
        reserved, received = AMOUNT * (not has_landed), CHARGED * has_landed
    assert (account["balance"], account["cap_holds"]) == (10_000_000 - moved, reserved)
    assert (world.balance(one.source), world.balance(one.to)) == (10_000_000 - moved, received)


@settings(deadline=None)
@given(
    kind=st.sampled_from(["transfer", "session_open", "session_close"]),
    end=st.sampled_from(ENDS),
    faults=st.dictionaries(st.integers(1, 20), st.sampled_from(sorted(FAULTS)), max_size=4),
    order=st.integers(0, 2**32),
)
def test_two_engines_end_a_transaction_once_in_any_order(
    kind: str, end: str, faults: dict[int, str], order: int
) -> None:
    async def test() -> None:
        async with worlds.world(interrupted=order, store="memory") as world:
            recorder(world).executescript(RECORDER)
            one = await begun(world, kind)
            await comes_about(world, end, one)
            for site, fault in faults.items():
                world.chain.at(site, FAULTS[fault])
            drivers = [another.engine(world).drive(one.tx) for _ in range(2)]
            await world.rest()
            world.chain.clear()
            # Of virtual time: an engine that cannot book repeats for ever.
            async with asyncio.timeout(300):
                first, second = await asyncio.gather(*drivers)
            assert first.subject == second.subject

            steps = steps_since(world, one.tx)
            signatures = [signature for signature, _ in steps[::2]]
            assert steps == [(each, step) for each in signatures for step in ("signed", "ended")]
            assert len(set(signatures)) == len(signatures)
            landed = set(signatures) & set(world.chain.landed())
            assert landed <= {signatures[-1]}
            await assert_posted_once(world, one, has_landed=bool(landed))

    worlds.run(test)
