"""SIGKILL at every step of what moves money on a real validator, then another start (P1, P2).

The caller knows nothing but that no answer came, and sends the same again. Then the validator is the judge.
Each test has separate accounts: a validator is not copied.
"""

from pathlib import Path
from typing import Any

import pytest
import rpc_world
import signed
from killing import Child, OnValidator, Prepared, Survey, child, expiring, prepared
from surfpool import Surfpool

from agentpay_server import AgentPayServer
from agentpay_server.platform.failpoints import Operation, points_of

pytestmark = [pytest.mark.validator, pytest.mark.unmeasured, pytest.mark.plugin("cluster")]

TRANSFER = points_of(Operation.TRANSFER)
PAIRS = [
    ("transfer.signed", "transfer.sent"),
    ("transfer.signed", "transfer.expired"),
    ("transfer.sent", "transfer.landed"),
    ("transfer.landed", "transfer.posted"),
]


@pytest.fixture(scope="module")
def node(surfpool: Surfpool) -> Surfpool:
    rpc_world.prepare(surfpool)
    return surfpool


@pytest.fixture
def it(node: Surfpool, tmp_path: Path) -> Prepared:
    return prepared(OnValidator(tmp_path / "data", node))


def account_rows(survey: Survey) -> dict[str, dict[str, Any]]:
    return {row["account_id"]: row for row in survey.rows("accounts")}


def held(node: Surfpool, token_account: str) -> int:
    told = node.call("getTokenAccountBalance", token_account, {"commitment": "confirmed"})
    return int(told["value"]["amount"])


def landed(node: Surfpool, token_account: str) -> list[str]:
    """Return the transactions that a token account was in and that did something, newest first."""
    lines = node.call("getSignaturesForAddress", token_account, {"commitment": "confirmed"})
    return [line["signature"] for line in lines if line["err"] is None]


def assert_settled_once(node: Surfpool, it: Prepared, survey: Survey, answer: Any) -> None:
    (transfer,) = survey.rows("transfers")
    assert (transfer["transfer_id"], transfer["status"]) == (answer.transfer_id, "settled")
    assert transfer["tx_signature"] == answer.tx_signature
    rows = account_rows(survey)
    payer, payee = rows[it.payer], rows[it.payee]
    # In addition to the transaction that created the account.
    assert landed(node, payee["usdc_token_account"])[:-1] == [answer.tx_signature]
    for row, amount_micro in ((payer, 93_000_000), (payee, 7_000_000)):
        assert held(node, row["usdc_token_account"]) == amount_micro
        assert row["in_flight"] == 0
    assert payee["balance"] == 7_000_000
    assert payer["spent_total"] == 7_000_000
    assert len(signed.spends(survey.rows("chain_transactions"))) == 1
    assert signed.releases(survey.rows("chain_transactions")) == []
    assert len(survey.rows("entries", account_id=it.payer, type="transfer")) == 1
    assert len(survey.rows("entries", account_id=it.payee)) == 1
    types = [row["type"] for row in survey.rows("events")]
    assert types == ["transfer.initiated", "transfer.settled"]


def killed_in_transfer(it: Prepared, point: str) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        assert dying.request("POST", "/v1/transfers", it.key, it.transfer()) is None
        dying.assert_killed()


def settled_after_restart(node: Surfpool, it: Prepared) -> None:
    with it.served() as server:
        client = server.client()
        arguments: Any = {"from_": it.payer, "to": it.payee, "amount": 7, "idempotency_key": "key"}
        answer = client.transfers.create(**arguments)
        assert client.transfers.create(**arguments) == answer
        assert_settled_once(node, it, Survey(server), answer)


@pytest.mark.parametrize("point", TRANSFER)
def test_a_transfer_killed_at_any_point_pays_once(node: Surfpool, it: Prepared, point: str) -> None:
    killed_in_transfer(it, point)
    settled_after_restart(node, it)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_transfer_whose_recovery_is_killed_too_pays_once(
    node: Surfpool, it: Prepared, first: str, second: str
) -> None:
    """Not every recovery passes every point; the child is killed all the same."""
    killed_in_transfer(it, first)
    with child(it, second) as dying:
        dying.request("POST", "/v1/transfers", it.key, it.transfer())
        dying.kill()
    settled_after_restart(node, it)


@pytest.mark.parametrize("point", points_of(Operation.ACCOUNT))
def test_an_account_creation_killed_at_any_point_is_complete_or_absent(
    node: Surfpool, it: Prepared, point: str
) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        assert dying.request("POST", "/v1/accounts", it.key, {"name": "Third"}) is None
        dying.assert_killed()
    with it.served() as server:
        client = server.client()
        listed = list(client.accounts.list())
        assert len(listed) == (3 if point == "account.posted" else 2)
        again = client.accounts.create(name="Third")
        assert again.chain_address not in {account.chain_address for account in listed}
        assert held(node, again.usdc_token_account) == 0
        assert len(list(client.accounts.list())) == len(listed) + 1


def opened(it: Prepared, server: Child) -> str:
    answer = server.request("POST", "/ext/v1/sessions", it.key, terms(it))
    assert answer is not None
    assert answer.status_code == 201, answer.text
    return str(answer.json()["session_id"])


def terms(it: Prepared) -> dict[str, str]:
    return {"account_id": it.payer, "to": it.payee, "cap_usdc": "10", "idempotency_key": "key"}


def charge(it: Prepared, server: Child, session_id: str) -> Any:
    body = {"amount": "4", "idempotency_key": "charge"}
    return server.request("POST", f"/ext/v1/sessions/{session_id}/charges", it.key, body)


def finish(node: Surfpool, it: Prepared, server: AgentPayServer) -> None:
    """Send everything again, in order, and judge: one session of 10 USDC, of which 4 were charged."""
    survey, sessions = Survey(server), server.sessions
    arguments: Any = {"account_id": it.payer, "to": it.payee, "cap_usdc": 10, "idempotency_key": "key"}
    session_id = sessions.open(**arguments).session_id
    if sessions.get(session_id).status == "open":
        sessions.charge(session_id, amount=4, idempotency_key="charge")
    closed = sessions.close(session_id)
    assert sessions.close(session_id) == sessions.open(**arguments) == closed
    assert (closed.status, closed.settled_usdc, closed.returned_usdc) == ("settled", 4, 6)
    rows = account_rows(survey)
    payer, payee = rows[it.payer], rows[it.payee]
    assert landed(node, payee["usdc_token_account"])[:-1] == [closed.settlement_tx_signature]
    assert held(node, payer["usdc_token_account"]) == 96_000_000
    assert held(node, payee["usdc_token_account"]) == 4_000_000
    assert (payer["in_flight"], payer["cap_holds"], payer["spent_total"]) == (0, 0, 4_000_000)
    told = node.call("getAccountInfo", closed.escrow_token_account, {"commitment": "confirmed"})
    assert told["value"] is None
    assert [row["type"] for row in survey.rows("events")] == ["session.opened", "session.settled"]


@pytest.mark.parametrize("point", points_of(Operation.SESSION_OPEN))
def test_an_opening_killed_at_any_point_funds_one_escrow(node: Surfpool, it: Prepared, point: str) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        assert dying.request("POST", "/ext/v1/sessions", it.key, terms(it)) is None
        dying.assert_killed()
    with it.served() as server:
        finish(node, it, server)


@pytest.mark.parametrize("point", points_of(Operation.SESSION_CLOSE))
def test_a_settlement_killed_at_any_point_pays_once(node: Surfpool, it: Prepared, point: str) -> None:
    with child(it, point) as dying:
        session_id = opened(it, dying)
        assert charge(it, dying, session_id).status_code == 200
        expiring(it, dying, point)
        assert dying.request("POST", f"/ext/v1/sessions/{session_id}/close", it.key) is None
        dying.assert_killed()
    with it.served() as server:
        finish(node, it, server)
