"""Rows of the kill matrix: accounts, money that comes, transfers, approvals and policies."""

from itertools import product
from typing import Any

import pytest
from attrs import define, frozen
from kill_rows import ANSWERED, CHAIN, Row
from killing import Child, Prepared, Survey, catch_up, expiring

from agentpay import AccountPausedError, ConflictError
from agentpay_server import AgentPayServer
from agentpay_server.platform.failpoints import Operation, points_of

# What is approved is driven as any transfer.
DRIVEN = tuple(point for point in points_of(Operation.TRANSFER) if point != "transfer.begun")


def single(points: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((point,) for point in points)


def terms(it: Prepared) -> dict[str, Any]:
    return {"from_": it.payer, "to": it.payee, "amount": 7, "idempotency_key": "key"}


@define
class Transfer(Row):
    """A transfer pays once: the caller sends its key again, twice."""

    name = "transfer"
    at = (*points_of(Operation.TRANSFER), *CHAIN, ANSWERED)
    pairs = tuple(product(at[:-1], repeat=2))
    on_validator = (
        *single(points_of(Operation.TRANSFER)),
        ("transfer.signed", "transfer.sent"),
        ("transfer.signed", "transfer.expired"),
        ("transfer.sent", "transfer.landed"),
        ("transfer.landed", "transfer.posted"),
    )

    @classmethod
    def in_gate(cls, points: tuple[str, ...], variant: Any) -> bool:
        return True

    def request(self) -> tuple[str, str, object]:
        return "POST", "/v1/transfers", self.it.transfer()

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        client = server.client()
        answer = client.transfers.create(**terms(self.it))
        assert client.transfers.create(**terms(self.it)) == answer
        survey.assert_settled_once(self.it, answer, self.known)


@define
class UnaskedTransfer(Transfer):
    """What is signed completes without another request."""

    name = "unasked-transfer"
    at = ("transfer.signed", "transfer.expired", "chain.executed@2")
    pairs = ()
    on_validator = ()

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        catch_up(server)
        (transfer,) = survey.rows("transfers")
        answer = server.client().transfers.get(transfer["transfer_id"])
        survey.assert_settled_once(self.it, answer, self.known)


@define
class Start(Transfer):
    """A start changes nothing: it is killed twice while the chain is restored."""

    name = "start"
    at = ("chain.executed", "chain.written")
    pairs = tuple((point, point) for point in at)
    on_validator = ()

    def begin(self, dying: Child) -> None:
        assert dying.base_url is None

    def recover(self, dying: Child) -> None:
        self.begin(dying)
        self.end(dying)


@define
class Account(Row):
    """An account is complete or absent."""

    name = "account"
    at = (*points_of(Operation.ACCOUNT), *CHAIN)
    on_validator = single(points_of(Operation.ACCOUNT))

    def request(self) -> tuple[str, str, object]:
        return "POST", "/v1/accounts", {"name": "Third"}

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        client = server.client()
        listed = list(client.accounts.list())
        assert len(listed) == (3 if self.point == "account.posted" else 2)
        again = client.accounts.create(name="Third")
        assert again.chain_address not in {account.chain_address for account in listed}
        assert len(list(client.accounts.list())) == len(listed) + 1
        server.sandbox.fund(again.account_id, "1")
        assert client.accounts.balance(again.account_id).balance_usdc == 1
        survey.assert_conserved()


@define
class Fund(Row):
    """Money that came is posted once: what landed and was not posted is a deposit, found at the start."""

    name = "fund"
    at = (*points_of(Operation.FUND), *CHAIN, *points_of(Operation.DEPOSIT))
    pairs = tuple(product(("fund.landed", "chain.written@2"), points_of(Operation.DEPOSIT)))

    def request(self) -> tuple[str, str, object]:
        return "POST", f"/ext/v1/sandbox/accounts/{self.it.payee}/fund", {"amount": "5"}

    def recover(self, dying: Child) -> None:
        """Request nothing: the server looks for deposits from before its start."""
        dying.assert_killed()

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        has_come = self.point not in ("fund.begun", "fund.signed", "fund.expired", "chain.executed@2")
        assert server.client().accounts.balance(self.it.payee).balance_usdc == (5 if has_come else 0)
        survey.assert_conserved()
        server.sandbox.fund(self.it.payee, "1")
        survey.assert_conserved()
        entries = survey.rows("entries", account_id=self.it.payee)
        posted = [(entry["type"], entry["amount"]) for entry in entries]
        assert posted == [*([("deposit", 5_000_000)] if has_come else []), ("deposit", 1_000_000)]


@define
class TokenAccount(Row):
    """The creation of a token account does not block the next one."""

    name = "token_account"
    at = (*points_of(Operation.TOKEN_ACCOUNT), *CHAIN)

    def request(self) -> tuple[str, str, object]:
        return "POST", "/ext/v1/sandbox/token-accounts", None

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        outside = server.sandbox.create_token_account().usdc_token_account
        server.client().transfers.create(from_=self.it.payer, to=outside, amount=1)
        assert survey.balances()[outside] == 1_000_000
        assert sum(survey.balances().values()) == survey.minted() == 100_000_000


@define
class PolicyRecord(Row):
    """A policy is in force and on chain, whether its update was answered or not."""

    name = "policy_record"
    at = (*points_of(Operation.POLICY_RECORD), *CHAIN)

    def begin(self, dying: Child) -> None:
        expiring(self.it, dying, self.point)
        path = f"/v1/accounts/{self.it.payer}/policy"
        dying.request("PUT", path, self.it.key, {"max_single_transfer": 3})

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        catch_up(server)
        assert server.client().policies.get(self.it.payer).max_single_transfer == 3
        (record,) = survey.rows("policy_records")
        assert (record["written_version"], record["due_us"]) == (2, None)
        assert record["tx_signature"] in survey.landed()
        survey.assert_conserved()


# --- Approvals


@frozen
class Escalated:
    """A transfer of 7 USDC that waits, and what its chain had executed before."""

    transfer_id: str
    before: set[str]


def escalated(it: Prepared) -> Escalated:
    with it.served() as server:
        client = server.client()
        client.policies.update(it.payer, escalation_threshold=1)
        # Its record is written now, so that the next page of the chain is that of the approval.
        server.sandbox.clock.advance(0)
        transfer = client.transfers.create(**terms(it))
        assert transfer.status == "pending_approval"
        return Escalated(transfer.transfer_id, it.place.survey(server).landed())


def paused(it: Prepared) -> Escalated:
    waiting = escalated(it)
    with it.served() as server:
        server.client().policies.pause(it.payer)
        server.sandbox.clock.advance(0)
    return waiting


@define
class Approval(Row):
    """An approved transfer pays once, or still waits: the operator approves again, the agent asks again."""

    name = "approve"
    at = (*points_of(Operation.APPROVE), *DRIVEN, *CHAIN)
    pairs = tuple(product(("transfer.signed", CHAIN[1]), (*DRIVEN, CHAIN[1])))
    prepare = staticmethod(escalated)

    def request(self) -> tuple[str, str, object]:
        return "POST", f"/ext/v1/console/approvals/{self.known.transfer_id}/approve", None

    def recover(self, dying: Child) -> None:
        dying.request("POST", "/v1/transfers", self.it.key, self.it.transfer())
        dying.kill()

    def _approves(self, server: AgentPayServer) -> bool:
        """Approve, and tell whether the transfer still waited."""
        try:
            server.approvals.approve(self.known.transfer_id)
        except ConflictError:
            return False
        return True

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        client = server.client()
        assert self._approves(server) is (self.point in ("approve.begun", ANSWERED))
        answer = client.transfers.create(**terms(self.it))
        assert not self._approves(server)
        assert client.transfers.create(**terms(self.it)) == answer
        assert answer.transfer_id == self.known.transfer_id
        survey.assert_settled_once(self.it, answer, self.known.before, was_escalated=True)
        decisions = survey.rows("audit", action="approvals.approve")
        assert [row["subject"] for row in decisions] == [answer.transfer_id]


@define
class Waiting(Approval):
    """A transfer that waits survives a kill, and a child on the machine's clock, ahead of the paused one."""

    name = "waiting"
    at = (ANSWERED,)
    pairs = ()

    def begin(self, dying: Child) -> None:
        answer = dying.request("GET", "/ext/v1/console/approvals", self.it.key)
        assert answer is not None
        assert [each["transfer_id"] for each in answer.json()["data"]] == [self.known.transfer_id]


@define
class UnaskedApproval(Approval):
    """What is approved completes without another request."""

    name = "unasked-approve"
    at = ("transfer.signed", "transfer.sent", "transfer.landed", *CHAIN)
    pairs = ()

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        catch_up(server)
        answer = server.client().transfers.get(self.known.transfer_id)
        survey.assert_settled_once(self.it, answer, self.known.before, was_escalated=True)


@define
class RefusedApproval(Approval):
    """What policy refuses when it is approved is refused once."""

    name = "refused-approve"
    at = points_of(Operation.APPROVE)
    pairs = ()
    prepare = staticmethod(paused)

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        with pytest.raises(AccountPausedError if self.point == "approve.begun" else ConflictError):
            server.approvals.approve(self.known.transfer_id)
        with pytest.raises(AccountPausedError) as raised:
            server.client().transfers.create(**terms(self.it))
        assert raised.value.transfer_id == self.known.transfer_id
        types = [row["type"] for row in survey.rows("events")]
        assert types == ["escalation.required", "transfer.rejected"]
        assert len(survey.rows("entries", type="rejection")) == 1
        survey.assert_conserved()


ROWS: list[type[Row]] = [
    *(Transfer, UnaskedTransfer, Start, Account, Fund, TokenAccount, PolicyRecord),
    *(Approval, Waiting, UnaskedApproval, RefusedApproval),
]
