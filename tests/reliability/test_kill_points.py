"""SIGKILL at every step of every money operation, then another start: nothing lost, nothing twice (P1, P2).

The caller knows nothing but that no answer came, and sends the same key again. Then the chain is the judge.
"""

from pathlib import Path
from typing import Any

import pytest
from killing import Child, Prepared, Survey, catch_up, child, expiring

from agentpay_server.platform.failpoints import POINTS, ChainPoint, Operation, points_of

pytestmark = pytest.mark.unmeasured

# The first page that a server writes is that of its start.
CHAIN = ["chain.executed@2", "chain.written@2"]


TRANSFER = [*points_of(Operation.TRANSFER), *CHAIN]
ACCOUNT = [*points_of(Operation.ACCOUNT), *CHAIN]
FUND = [*points_of(Operation.FUND), *CHAIN]
TOKEN_ACCOUNT = [*points_of(Operation.TOKEN_ACCOUNT), *CHAIN]
POLICY_RECORD = [*points_of(Operation.POLICY_RECORD), *CHAIN]
DEPOSIT = points_of(Operation.DEPOSIT)

# Where the first server dies, and then the one that takes over.
PAIRS = [
    ("transfer.signed", "transfer.expired"),
    ("transfer.signed", "transfer.sent"),
    ("transfer.expired", "transfer.signed"),
    ("transfer.sent", "transfer.landed"),
    ("transfer.landed", "transfer.posted"),
    ("chain.executed@2", "chain.written@2"),
    ("chain.written@2", "transfer.landed"),
]


def killed_in_transfer(it: Prepared, point: str) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        assert dying.request("POST", "/v1/transfers", it.key, it.transfer()) is None
        dying.assert_killed()


def settled_after_restart(it: Prepared, landed_before: set[str]) -> None:
    """Start again, send the key again, twice, and judge."""
    with it.served() as server:
        client, survey = server.client(), Survey(server)
        arguments: Any = {"from_": it.payer, "to": it.payee, "amount": 7, "idempotency_key": "key"}
        answer = client.transfers.create(**arguments)
        assert client.transfers.create(**arguments) == answer
        survey.assert_settled_once(it, answer, landed_before)


@pytest.mark.parametrize("point", TRANSFER)
def test_a_transfer_killed_at_any_point_pays_once(it: Prepared, before: set[str], point: str) -> None:
    killed_in_transfer(it, point)
    settled_after_restart(it, before)


def killed_twice(it: Prepared, before: set[str], first: str, second: str) -> None:
    """Not every recovery passes every point; the child is killed all the same."""
    killed_in_transfer(it, first)
    with child(it, second) as dying:
        dying.request("POST", "/v1/transfers", it.key, it.transfer())
        dying.kill()
    settled_after_restart(it, before)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_transfer_whose_recovery_is_killed_too_pays_once(
    it: Prepared, before: set[str], first: str, second: str
) -> None:
    killed_twice(it, before, first, second)


@pytest.mark.deep
@pytest.mark.parametrize("second", TRANSFER)
@pytest.mark.parametrize("first", TRANSFER)
def test_a_transfer_killed_at_any_pair_of_points_pays_once(
    it: Prepared, before: set[str], first: str, second: str
) -> None:
    killed_twice(it, before, first, second)


@pytest.mark.parametrize("point", ["transfer.signed", "transfer.expired", "chain.executed@2"])
def test_a_killed_transfer_completes_without_another_request(
    it: Prepared, before: set[str], point: str
) -> None:
    killed_in_transfer(it, point)
    with it.served() as server:
        catch_up(server)
        survey = Survey(server)
        (transfer,) = survey.rows("transfers")
        answer = server.client().transfers.get(transfer["transfer_id"])
        survey.assert_settled_once(it, answer, before)


@pytest.mark.parametrize("point", ACCOUNT)
def test_an_account_creation_killed_at_any_point_is_complete_or_absent(it: Prepared, point: str) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        assert dying.request("POST", "/v1/accounts", it.key, {"name": "Third"}) is None
        dying.assert_killed()
    with it.served() as server:
        client, survey = server.client(), Survey(server)
        listed = list(client.accounts.list())
        assert len(listed) == (3 if point == "account.posted" else 2)
        again = client.accounts.create(name="Third")
        assert again.chain_address not in {account.chain_address for account in listed}
        assert len(list(client.accounts.list())) == len(listed) + 1
        server.sandbox.fund(again.account_id, "1")
        assert client.accounts.balance(again.account_id).balance_usdc == 1
        survey.assert_conserved()


@pytest.mark.parametrize("point", [*FUND, *DEPOSIT])
def test_a_funding_killed_at_any_point_is_posted_once_or_absent(it: Prepared, point: str) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        path = f"/ext/v1/sandbox/accounts/{it.payee}/fund"
        assert dying.request("POST", path, it.key, {"amount": "5"}) is None
        dying.assert_killed()
    with it.served() as server:
        client, survey = server.client(), Survey(server)
        has_come = point not in ("fund.begun", "fund.signed", "fund.expired", "chain.executed@2")
        assert client.accounts.balance(it.payee).balance_usdc == (5 if has_come else 0)
        # A transaction that landed and was not posted is a deposit, found at the start.
        survey.assert_conserved()
        server.sandbox.fund(it.payee, "1")
        survey.assert_conserved()
        deposits = survey.rows("entries", account_id=it.payee, type="deposit")
        assert [entry["amount"] for entry in deposits] == [*([5_000_000] if has_come else []), 1_000_000]


@pytest.mark.parametrize("second", DEPOSIT)
@pytest.mark.parametrize("first", ["fund.landed", "chain.written@2"])
def test_a_deposit_whose_booking_after_a_restart_is_killed_too_is_posted_once(
    it: Prepared, first: str, second: str
) -> None:
    with child(it, first) as dying:
        dying.request("POST", f"/ext/v1/sandbox/accounts/{it.payee}/fund", it.key, {"amount": "5"})
        dying.assert_killed()
    with child(it, second) as dying:
        # Without a request: the server looks for deposits from before its start.
        dying.assert_killed()
    with it.served() as server:
        survey = Survey(server)
        survey.assert_conserved()
        (deposit,) = survey.rows("entries", account_id=it.payee)
        assert (deposit["type"], deposit["amount"]) == ("deposit", 5_000_000)


@pytest.mark.parametrize("point", TOKEN_ACCOUNT)
def test_a_token_account_creation_killed_at_any_point_does_not_block_the_next(
    it: Prepared, point: str
) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        assert dying.request("POST", "/ext/v1/sandbox/token-accounts", it.key) is None
        dying.assert_killed()
    with it.served() as server:
        client, survey = server.client(), Survey(server)
        outside = server.sandbox.create_token_account().usdc_token_account
        client.transfers.create(from_=it.payer, to=outside, amount=1)
        assert survey.balances()[outside] == 1_000_000
        assert sum(survey.balances().values()) == survey.minted() == 100_000_000


@pytest.mark.parametrize("point", POLICY_RECORD)
def test_a_policy_update_killed_at_any_point_is_in_force_and_on_chain(it: Prepared, point: str) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        dying.request("PUT", f"/v1/accounts/{it.payer}/policy", it.key, {"max_single_transfer": 3})
        dying.assert_killed()
    with it.served() as server:
        catch_up(server)
        survey = Survey(server)
        assert server.client().policies.get(it.payer).max_single_transfer == 3
        (record,) = survey.rows("policy_records")
        assert (record["written_version"], record["due_us"]) == (2, None)
        assert record["tx_signature"] in survey.landed()
        survey.assert_conserved()


@pytest.mark.parametrize("point", ["chain.executed", "chain.written"])
def test_killing_startup_while_the_chain_is_restored_changes_nothing(
    it: Prepared, before: set[str], point: str
) -> None:
    for _ in range(2):
        with child(it, point) as dying:
            assert dying.base_url is None
            dying.assert_killed()
    settled_after_restart(it, before)


def test_every_failpoint_is_tested() -> None:
    """Each operation has a test here, or in a neighbour of this file, that kills it at all of its points."""
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_kill_*.py"))
    untested = [each for each in Operation if f"points_of(Operation.{each.name})" not in tests]
    assert untested == []
    assert set(ChainPoint) == {point.partition("@")[0] for point in CHAIN}
    assert {*map(str, ChainPoint), *(p for each in Operation for p in points_of(each))} == POINTS


def test_a_child_without_an_armed_failpoint_survives(it: Prepared, before: set[str]) -> None:
    with child(it) as living:
        assert isinstance(living, Child)
        answer = living.request("POST", "/v1/transfers", it.key, it.transfer())
        assert answer is not None
        assert answer.status_code == 200
        living.kill()
    settled_after_restart(it, before)
