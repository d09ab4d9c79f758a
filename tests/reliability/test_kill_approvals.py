"""SIGKILL at every step of an approval, then another start: it is paid once, or still waits.

See interface AP1 to AP5; P1, P2.

The operator knows nothing but that no answer came, and approves again; the agent sends its key again. Then
the chain is the judge.
"""

from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from killing import Prepared, Survey, catch_up, child, expiring

from agentpay import AccountPausedError, ConflictError
from agentpay_server import AgentPayServer
from agentpay_server.platform.failpoints import Operation, points_of

pytestmark = pytest.mark.unmeasured

# The first page that a server writes is that of its start.
CHAIN = ["chain.executed@2", "chain.written@2"]
# What is approved is driven as any transfer.
DRIVEN = [point for point in points_of(Operation.TRANSFER) if point != "transfer.begun"]
APPROVE = [*points_of(Operation.APPROVE), *DRIVEN, *CHAIN]
RECOVERY = [*DRIVEN, CHAIN[1]]


@frozen
class Escalated:
    """A place where a transfer of 7 USDC waits, and what its chain had executed before."""

    it: Prepared
    transfer_id: str
    before: set[str]

    def copied(self, scratch: Path) -> "Escalated":
        return Escalated(self.it.copied(scratch, "data"), self.transfer_id, self.before)


@pytest.fixture(scope="module")
def template(template: Prepared) -> Escalated:
    it = template
    with it.served() as server:
        client = server.client()
        client.policies.update(it.payer, escalation_threshold=1)
        # Its record is written now, so that the next page of the chain is that of the approval.
        server.sandbox.clock.advance(0)
        transfer = client.transfers.create(**terms(it))
        assert transfer.status == "pending_approval"
        return Escalated(it, transfer.transfer_id, Survey(server).landed())


@pytest.fixture
def escalated(template: Escalated, tmp_path: Path) -> Escalated:
    return template.copied(tmp_path)


def terms(it: Prepared) -> dict[str, Any]:
    return {"from_": it.payer, "to": it.payee, "amount": 7, "idempotency_key": "key"}


def killed_in_approval(escalated: Escalated, point: str) -> None:
    with child(escalated.it, point) as dying:
        expiring(escalated.it, dying, point)
        path = f"/ext/v1/console/approvals/{escalated.transfer_id}/approve"
        assert dying.request("POST", path, escalated.it.key) is None
        dying.assert_killed()


def approved_again(server: AgentPayServer, transfer_id: str) -> bool:
    """Approve, and tell whether the transfer still waited."""
    try:
        server.approvals.approve(transfer_id)
    except ConflictError:
        return False
    return True


def settled_after_restart(escalated: Escalated, *, still_waits: bool | None = None) -> None:
    with escalated.it.served() as server:
        client, survey = server.client(), Survey(server)
        did_wait = approved_again(server, escalated.transfer_id)
        assert still_waits in (None, did_wait)
        answer = client.transfers.create(**terms(escalated.it))
        assert not approved_again(server, escalated.transfer_id)
        assert client.transfers.create(**terms(escalated.it)) == answer
        assert answer.transfer_id == escalated.transfer_id
        survey.assert_settled_once(escalated.it, answer, escalated.before, was_escalated=True)
        decisions = survey.rows("audit", action="approvals.approve")
        assert [row["subject"] for row in decisions] == [escalated.transfer_id]


@pytest.mark.parametrize("point", APPROVE)
def test_an_approval_killed_at_any_point_pays_once(escalated: Escalated, point: str) -> None:
    killed_in_approval(escalated, point)
    settled_after_restart(escalated, still_waits=point == "approve.begun")


@pytest.mark.parametrize("second", RECOVERY)
@pytest.mark.parametrize("first", ["transfer.signed", CHAIN[1]])
def test_an_approval_whose_recovery_is_killed_too_pays_once(
    escalated: Escalated, first: str, second: str
) -> None:
    """Pairs of points. Not every recovery passes every point; the child is killed all the same."""
    killed_in_approval(escalated, first)
    with child(escalated.it, second) as dying:
        dying.request("POST", "/v1/transfers", escalated.it.key, escalated.it.transfer())
        dying.kill()
    settled_after_restart(escalated, still_waits=False)


@pytest.mark.parametrize("point", ["transfer.signed", "transfer.sent", "transfer.landed", *CHAIN])
def test_a_killed_approval_completes_without_another_request(escalated: Escalated, point: str) -> None:
    killed_in_approval(escalated, point)
    with escalated.it.served() as server:
        catch_up(server)
        answer = server.client().transfers.get(escalated.transfer_id)
        Survey(server).assert_settled_once(escalated.it, answer, escalated.before, was_escalated=True)


@pytest.mark.parametrize("point", ["approve.begun", "approve.posted"])
def test_an_approval_refused_by_policy_and_killed_is_refused_once(escalated: Escalated, point: str) -> None:
    with escalated.it.served() as server:
        server.client().policies.pause(escalated.it.payer)
        server.sandbox.clock.advance(0)
    killed_in_approval(escalated, point)
    with escalated.it.served() as server:
        client, survey = server.client(), Survey(server)
        with pytest.raises(AccountPausedError if point == "approve.begun" else ConflictError):
            server.approvals.approve(escalated.transfer_id)
        with pytest.raises(AccountPausedError) as raised:
            client.transfers.create(**terms(escalated.it))
        assert raised.value.transfer_id == escalated.transfer_id
        types = [row["type"] for row in survey.rows("events")]
        assert types == ["escalation.required", "transfer.rejected"]
        assert len(survey.rows("entries", type="rejection")) == 1
        survey.assert_conserved()


def test_a_pending_transfer_survives_a_kill_and_a_clock_change(escalated: Escalated) -> None:
    """A child on the machine's clock, which is ahead of the paused one; nothing was requested yet."""
    with child(escalated.it) as living:
        answer = living.request("GET", "/ext/v1/console/approvals", escalated.it.key)
        assert answer is not None
        (listed,) = answer.json()["data"]
        assert listed["transfer_id"] == escalated.transfer_id
        living.kill()
    settled_after_restart(escalated, still_waits=True)
