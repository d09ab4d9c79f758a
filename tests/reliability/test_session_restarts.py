"""A settlement that the chain refuses, and a server that dies in any step of it (P1, P10).

A refused settlement is postponed, checked and signed again. The death is a cancellation of everything that
the first server had in progress, so that it can come between any two units of work; `test_kill_matrix.py`
kills real processes at the points that a settlement passes without trouble.
"""

from pathlib import Path
from typing import Any

import pytest
import worlds
from chains import Act, FaultyChain, Proceed
from outsiders import Wallet
from worlds import Party, World

UNITS = range(2, 15)
"""Before the first of them nothing is claimed; after the last all has come as far as it can."""

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


async def begun(data_dir: Path) -> tuple[World, Party, Party, str, Party]:
    """Return a world in a directory, and in it a session of 10 USDC of which 4 are charged."""
    world = await worlds.started(data_dir=data_dir)
    source, to = await world.account("100"), await world.account()
    session_id = await world.opened_session("s", source, to, "10")
    assert (await world.charge("k", session_id, "4")).status == 200
    escrow = (await world.get_session(session_id))["escrow_token_account"]
    return world, source, to, session_id, Party("", escrow)


async def settled_once(
    world: World, session_id: str, source: Party, to: Party, *, deposited_micro: int
) -> None:
    """Close a session, and assert that it is settled once, in the books as on chain."""
    closed = await world.close_session(session_id)
    assert (closed.status, closed.body["settled_usdc"]) == (200, "4.000000")
    await world.look_back()
    assert world.attempts(session_id).count("landed") == 2
    assert world.balance(to) == 4_000_000
    assert world.balance(source) == 96_000_000 + deposited_micro
    for party in (source, to):
        (row,) = await world.rows("accounts", account_id=party.account_id)
        assert (row["in_flight"], row["cap_holds"]) == (0, 0)
        assert row["balance"] == world.balance(party)
    assert [event["type"] for event in await world.events()] == ["session.opened", "session.settled"]
    assert (await world.detail(source))["spent_usdc"] == "4.000000"


def after(action: Any) -> Act:
    async def act(chain: FaultyChain, proceed: Proceed) -> Any:
        await action()
        return await proceed()

    return act


@pytest.mark.parametrize("units", UNITS)
async def test_a_settlement_refused_for_a_frozen_payee_and_interrupted_pays_once(
    tmp_path: Path, units: int
) -> None:
    first, source, to, session_id, _ = await begun(tmp_path)
    first.chain.next_payment(after(lambda: first.set_frozen(to, is_frozen=True)))
    await first.cut_off(first.close_session(session_id), units)
    second = await worlds.started(data_dir=tmp_path, after=first)
    try:
        account = second.chain.inner._token_account(to.token_account)
        assert account is not None
        if account.is_frozen:
            refused = await second.close_session(session_id)
            assert (refused.error, refused.body["status"]) == ("transfer_failed", "closing")
            await second.set_frozen(to, is_frozen=False)
        await settled_once(second, session_id, source, to, deposited_micro=0)
    finally:
        await second.stop()


@pytest.mark.parametrize("units", UNITS)
async def test_a_settlement_refused_for_a_deposit_to_the_escrow_and_interrupted_pays_once(
    tmp_path: Path, units: int
) -> None:
    first, source, to, session_id, escrow = await begun(tmp_path)
    stranger = Wallet(first.chain.inner, first.runtime.context.signer)
    await stranger.open(1)
    first.chain.next_payment(after(lambda: stranger.pay((escrow.token_account, 1))))
    await first.cut_off(first.close_session(session_id), units)
    second = await worlds.started(data_dir=tmp_path, after=first)
    try:
        is_sent = second.chain.inner._token_account(
            stranger.token_account
        ) is not None and not second.balance(Party("", stranger.token_account))
        await settled_once(second, session_id, source, to, deposited_micro=int(is_sent))
        entries = [
            entry for entry in await second.entries(source) if entry["counterparty"] == escrow.token_account
        ]
        assert [entry["amount"] for entry in entries] == [1] * is_sent
    finally:
        await second.stop()
