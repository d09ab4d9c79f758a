"""Pausing all accounts of an operator, and resuming those that this has paused (CO30)."""

import threading

import pytest

from agentpay import AccountPausedError, AgentPay, PermissionDeniedError
from agentpay.types import PausedAccounts
from agentpay_server import AgentPayServer

MORE_THAN_A_BATCH = 60


@pytest.fixture
def fleet(server: AgentPayServer, client: AgentPay) -> list[str]:
    ids = [client.accounts.create(name=f"Bot {number}").account_id for number in range(3)]
    for account_id in ids:
        server.sandbox.fund(account_id, "10")
    return ids


def changed(found: PausedAccounts) -> tuple[int, int]:
    return found.changed, found.paused


def test_nothing_is_paid_until_all_are_resumed_but_those_paused_before(
    client: AgentPay, fleet: list[str]
) -> None:
    before, first, second = fleet
    client.policies.update(first, max_single_transfer=5)
    client.policies.pause(before)
    assert changed(client.console.pause_all()) == (2, 3)
    for payer, payee in ((first, second), (second, first)):
        with pytest.raises(AccountPausedError):
            client.transfers.create(from_=payer, to=payee, amount=1)
    assert changed(client.console.pause_all()) == (0, 3)
    assert changed(client.console.resume_all()) == (2, 1)
    assert client.transfers.create(from_=first, to=second, amount=1).status == "settled"
    assert client.policies.get(first).max_single_transfer == 5
    assert client.accounts.get(before).status == "paused"
    assert changed(client.console.resume_all()) == (0, 1)


@pytest.mark.parametrize("written", [{"paused": True}, {"paused": True, "max_daily_spend": 1}])
def test_an_account_whose_policy_was_written_since_stays_paused(
    client: AgentPay, fleet: list[str], written: dict[str, object]
) -> None:
    client.console.pause_all()
    before = client.policies.get(fleet[0])
    client.request("PUT", f"/v1/accounts/{fleet[0]}/policy", json=written)
    assert changed(client.console.resume_all()) == (2, 1)
    assert [client.policies.get(each).paused for each in fleet] == [True, False, False]
    entry = client.console.audit_log.list(account_id=fleet[0], limit=1).data[0]
    assert (entry.action, entry.after["paused"]) == ("policies.put", True)
    # What is in force already is not written on chain again.
    is_new = client.policies.get(fleet[0]).max_daily_spend != before.max_daily_spend
    assert client.console.details(fleet[0]).policy_version == (3 if is_new else 2)


def test_an_account_created_afterwards_is_not_paused(client: AgentPay, fleet: list[str]) -> None:
    client.console.pause_all()
    assert client.accounts.create(name="Newcomer").status == "active"


def test_other_operators_pay_on_and_agents_may_not_pause(
    server: AgentPayServer, client: AgentPay, fleet: list[str]
) -> None:
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    theirs = other.accounts.create(name="Theirs").account_id
    client.console.pause_all()
    assert not other.policies.get(theirs).paused
    for call in (
        server.agent_client(fleet[0]).console.pause_all,
        server.agent_client(fleet[0]).console.resume_all,
    ):
        with pytest.raises(PermissionDeniedError):
            call()


def test_each_change_is_in_the_audit_trail_and_on_chain(
    server: AgentPayServer, client: AgentPay, fleet: list[str]
) -> None:
    client.console.pause_all()
    newest = client.console.audit_log.list(limit=3).data
    assert {each.subject for each in newest} == set(fleet)
    for each in newest:
        assert (each.action, each.before["paused"], each.after["paused"]) == (
            "console.pause_all",
            False,
            True,
        )
    server.sandbox.clock.advance(1)
    records = [client.console.details(each).policy_record for each in fleet]
    assert [record and record.version for record in records] == [2, 2, 2]


def test_all_of_many_accounts_are_paused_while_they_pay(
    server: AgentPayServer, client: AgentPay, fleet: list[str]
) -> None:
    for number in range(MORE_THAN_A_BATCH):
        client.accounts.create(name=f"More {number}")
    is_begun = threading.Event()
    refused: list[AccountPausedError] = []

    def pay() -> None:
        while not refused:
            try:
                client.transfers.create(from_=fleet[0], to=fleet[1], amount="0.01")
            except AccountPausedError as error:
                refused.append(error)
            is_begun.set()

    payer = threading.Thread(target=pay)
    payer.start()
    is_begun.wait()
    assert client.console.pause_all().paused == MORE_THAN_A_BATCH + len(fleet)
    payer.join()
    assert client.policies.get(fleet[0]).paused
