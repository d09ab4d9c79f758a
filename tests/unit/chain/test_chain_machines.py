"""Reused machines behave like new ones."""

from collections import deque

import pytest
from chain_world import World
from solders.pubkey import Pubkey

from agentpay_server.chain.embedded import virtual_machine


@pytest.fixture(autouse=True)
def _no_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_machine, "_spare", deque(maxlen=4))


def story() -> tuple[World, list[object]]:
    """Return a world of a fixed seed in which something happened, and all that it showed."""
    world = World()
    payer, payee = world.account(1, 10), world.account(2)
    transfers = [world.transfer(1, payee, 3), world.transfer(1, payee, 11)]
    shown: list[object] = [world.blockhash(), world.svm.get_clock(), payer, payee]
    for transfer in transfers:
        shown += [transfer.signature, world.send(transfer), world.balance(payee), world.height()]
    world.chain.expire_blockhash()
    return world, [*shown, world.blockhash()]


def test_a_reused_machine_behaves_like_a_new_one() -> None:
    first, shown = story()
    machine = first.svm
    first.chain.release()
    second, shown_again = story()
    assert second.svm is machine
    assert shown_again == shown


def test_releasing_a_chain_empties_its_machine() -> None:
    world = World()
    world.account(1, 10)
    address = Pubkey.from_string(world.token_address(1))
    transaction = world.transfer(1, world.account(2), 3)
    world.land(transaction)
    machine = world.svm
    world.chain.release()
    assert machine.get_account(address) is None
    assert virtual_machine.acquire() is machine
    assert not virtual_machine.accounts_of(machine)
    assert machine.get_account(Pubkey.from_string(world.usdc)) is None


def test_a_machine_that_cannot_be_emptied_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(virtual_machine, "restore_accounts", lambda machine, accounts: None)
    world.chain.release()
    assert not virtual_machine._spare
