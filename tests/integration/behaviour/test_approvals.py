"""Pending transfers: approved, rejected, expired, and the responses and events.

See interface AP1 to AP5.
"""

from collections.abc import Callable
from typing import Any

import httpx
import money
import pytest
from attrs import frozen
from server_world import START, Funded, refused, state_of

from agentpay import AgentPay, ConflictError
from agentpay.contract.accounts import Account
from agentpay.contract.transfers import Transfer
from agentpay.errors import PolicyViolationError
from agentpay_server import AgentPayServer, Settings

DAY_SECONDS = 24 * 3600


@frozen
class Office:
    """A payer with 100 USDC, from whom 10 USDC or more wait for an operator, and a payee."""

    server: AgentPayServer
    http: httpx.Client
    client: AgentPay
    payer: Account
    payee: Account

    def escalated(self, amount: str = "25", *, key: str = "key-1", **more: Any) -> Transfer:
        """Ask for a transfer that waits."""
        transfer = self.pay(amount, key=key, **more)
        assert transfer.status == "pending_approval"
        return transfer

    def pay(self, amount: str, *, key: str | None = None, **more: Any) -> Transfer:
        parties = {"from_": self.payer.account_id, "to": self.payee.account_id}
        return self.client.transfers.create(**parties, amount=amount, idempotency_key=key, **more)


@pytest.fixture
def office(server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded) -> Office:
    payer, payee = funded("100"), funded("1", name="Payee")
    client.policies.update(payer.account_id, escalation_threshold=10)
    return Office(server, http, client, payer, payee)


def post(http: httpx.Client, transfer: Transfer, verb: str, body: object = None) -> httpx.Response:
    return http.post(f"/ext/v1/console/approvals/{transfer.transfer_id}/{verb}", json=body)


def event_types(server: AgentPayServer, transfer: Transfer) -> list[str]:
    return [
        event["type"]
        for event in money.events(server)
        if event["data"].get("transfer_id") == transfer.transfer_id
    ]


def audited(server: AgentPayServer) -> list[tuple[str, str, Any, Any]]:
    """The audit entries about approvals, newest first; of what is after, only what has changed."""
    changed = ("status", "error", "message")
    return [
        (
            entry.action,
            entry.subject,
            entry.before,
            {name: value for name, value in entry.after.items() if name in changed},
        )
        for entry in server.console.audit_log.list()
        if entry.action.startswith("approvals.")
    ]


# --- Waiting ----------------------------------------------------------------------------------------------


def test_a_pending_transfer_is_listed_until_it_is_decided_and_reserves_nothing(office: Office) -> None:
    office.client.policies.update(office.payer.account_id, max_daily_spend=30)
    waiting = office.escalated("25", key="first", memo="dataset 7", category="data")
    assert office.http.get("/ext/v1/console/approvals").json()["data"] == [
        {
            "transfer_id": waiting.transfer_id,
            "status": "pending_approval",
            "from": office.payer.account_id,
            "to": office.payee.account_id,
            "amount_usdc": "25.000000",
            "memo": "dataset 7",
            "idempotency_key": "first",
            "tx_signature": None,
            "chain_explorer_url": None,
            "settled_at": None,
            "category": "data",
            "created_at": "2026-01-01T00:00:00.000Z",
            "expires_at": "2026-01-02T00:00:00.000Z",
        }
    ]
    detail = office.server.console.details(office.payer.account_id)
    assert (detail.spent_usdc, detail.reserved_usdc, detail.remaining_usdc) == (0, 0, 30)
    assert event_types(office.server, waiting) == ["escalation.required"]
    approved, rejected = office.escalated(key="a"), office.escalated(key="b")
    # The whole limit is still there for others, and none of what waits has any of it.
    office.pay("5")
    office.server.approvals.approve(approved.transfer_id)
    office.server.approvals.reject(rejected.transfer_id)
    assert [item.transfer_id for item in office.server.approvals.list()] == [waiting.transfer_id]
    with pytest.raises(PolicyViolationError, match=r"max_daily_spend is 30\.000000"):
        office.server.approvals.approve(waiting.transfer_id)


def test_pending_transfers_are_listed_by_their_expiry(office: Office) -> None:
    first, second = (office.escalated(key=key).transfer_id for key in "ab")
    office.server.sandbox.clock.advance(60)
    third = office.escalated(key="c").transfer_id
    approvals = office.client.approvals
    for limit in (1, 2, 3):
        found = [each.transfer_id for each in approvals.list(sort="expires", limit=limit)]
        assert found == [first, second, third], "of equal ones the oldest comes first"
    cursor = approvals.list(sort="expires", limit=1).cursor
    for given in ({"cursor": cursor}, {"cursor": approvals.list(limit=1).cursor, "sort": "expires"}):
        refused(office.http.get("/ext/v1/console/approvals", params=given), "invalid_request")


# --- Approving --------------------------------------------------------------------------------------------


def test_an_approved_transfer_is_executed_like_any_other(office: Office) -> None:
    waiting = office.escalated("25", memo="dataset 7")
    office.server.sandbox.clock.advance(3600)
    answer = post(office.http, waiting, "approve")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert set(body) == money.TEN_FIELDS
    assert (body["transfer_id"], body["status"]) == (waiting.transfer_id, "settled")
    assert (body["memo"], body["idempotency_key"]) == ("dataset 7", "key-1")
    assert body["settled_at"] == "2026-01-01T01:00:00.000Z"
    assert body["tx_signature"] in body["chain_explorer_url"]
    assert office.client.transfers.get(waiting.transfer_id).tx_signature == body["tx_signature"]
    assert money.held(office.server, office.payee.usdc_token_account) == 26_000_000
    assert event_types(office.server, waiting) == [
        "escalation.required",
        "transfer.initiated",
        "transfer.settled",
    ]
    entry = money.entries(office.server, office.payer.account_id)[0]
    assert (entry["type"], entry["transfer_id"]) == ("transfer", waiting.transfer_id)
    assert audited(office.server) == [
        (
            "approvals.approve",
            waiting.transfer_id,
            {"status": "pending_approval"},
            {"status": "submitted"},
        )
    ]


def test_an_approved_transfer_counts_toward_the_limit_from_its_approval(office: Office) -> None:
    office.client.policies.update(office.payer.account_id, max_daily_spend=30)
    waiting = office.escalated("25")
    # It is not office.escalated again, and in time until the last microsecond.
    office.client.policies.update(office.payer.account_id, escalation_threshold=0)
    office.server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    assert office.server.approvals.approve(waiting.transfer_id).status == "settled"
    office.server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    assert office.server.console.details(office.payer.account_id).spent_usdc == 25
    office.server.sandbox.clock.advance(0.000001)
    assert office.server.console.details(office.payer.account_id).spent_usdc == 0


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"paused": True}, "account_paused", "paused"),
    ({"require_memo": True}, "policy_violation", "require_memo"),
    ({"allowed_counterparties": []}, "policy_violation", "allowed_counterparties"),
    ({"categories": ["data"]}, "policy_violation", "categories"),
    ({"max_single_transfer": "24.999999"}, "policy_violation", "max_single_transfer"),
    ({"max_daily_spend": "24.999999", "escalation_threshold": 0}, "policy_violation", "max_daily_spend"),
]


@pytest.mark.parametrize(("change", "error", "named"), REFUSALS)
def test_an_approval_refused_by_the_current_policy_rejects_the_transfer(
    office: Office, change: dict[str, Any], error: str, named: str
) -> None:
    waiting = office.escalated("25")
    before = office.client.policies.get(office.payer.account_id)
    office.client.policies.update(office.payer.account_id, **change)
    answer = post(office.http, waiting, "approve")
    body = refused(answer, error)
    assert (body["transfer_id"], body["status"]) == (waiting.transfer_id, "rejected")
    assert body["message"].startswith(named)
    shown = office.client.transfers.get(waiting.transfer_id)
    assert (shown.status, shown.error, shown.message) == ("rejected", error, body["message"])
    assert shown.tx_signature is None
    assert event_types(office.server, waiting) == ["escalation.required", "transfer.rejected"]
    assert money.events(office.server)[-1]["data"]["rejection_reason"] == error
    entry = money.entries(office.server, office.payer.account_id)[0]
    assert (entry["type"], entry["rejection_reason"]) == ("rejection", error)
    assert audited(office.server)[0][3] == {"status": "rejected", "error": error, "message": body["message"]}
    assert money.held(office.server, office.payee.usdc_token_account) == 1_000_000
    # After a rejection, changing the policy does not revive the transfer.
    office.client.policies.replace(
        office.payer.account_id, **{name: getattr(before, name) for name in change}
    )
    refused(post(office.http, waiting, "approve"), "not_pending")
    again = money.post(office.http, money.order(office.payer, office.payee.account_id, "25"))
    assert refused(again, error) == body


def short_of(server: AgentPayServer, client: AgentPay, payer: Account, _: Account) -> None:
    outside = server.sandbox.create_token_account().usdc_token_account
    client.policies.update(payer.account_id, escalation_threshold=None)
    client.transfers.create(from_=payer.account_id, to=outside, amount="75.000001")


OBSTACLES: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "insufficient_balance": (
        short_of,
        lambda server, payer, _: server.sandbox.fund(payer.account_id, "0.000001"),
        "24.999999 USDC",
    ),
    "invalid_recipient": (
        lambda server, _client, _payer, payee: money.freeze(server, payee.usdc_token_account),
        lambda server, _, payee: money.thaw(server, payee.usdc_token_account),
        "frozen",
    ),
    "chain_unavailable": (
        lambda server, *_: server.sandbox.set_fault("chain_down"),
        lambda server, *_: server.sandbox.clear_faults(),
        "",
    ),
}


@pytest.mark.parametrize("error", OBSTACLES)
def test_an_approval_that_meets_an_obstacle_changes_nothing_and_can_be_repeated(
    office: Office, error: str
) -> None:
    put_up, take_down, words = OBSTACLES[error]
    waiting = office.escalated("25")
    put_up(office.server, office.client, office.payer, office.payee)
    before = state_of(office.server) if error != "chain_unavailable" else None
    body = refused(post(office.http, waiting, "approve"), error)
    assert words in body["message"]
    assert body.get("transfer_id") == (waiting.transfer_id if error == "insufficient_balance" else None)
    assert body.get("status") in (None, "pending_approval")
    assert office.client.transfers.get(waiting.transfer_id).status == "pending_approval"
    if before is not None:
        assert state_of(office.server) == before
    take_down(office.server, office.payer, office.payee)
    assert office.server.approvals.approve(waiting.transfer_id).status == "settled"


# --- Rejecting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "An operator rejected this transfer."),
        ({}, "An operator rejected this transfer."),
        (
            {"reason": "  Ask legal  "},
            "An operator rejected this transfer, because: “Ask legal”.",
        ),
    ],
)
def test_a_rejected_transfer_ends_with_the_operators_reason(
    office: Office, body: object, message: str
) -> None:
    waiting = office.escalated("25", memo="dataset 7")
    answer = (
        office.http.post(f"/ext/v1/console/approvals/{waiting.transfer_id}/reject")
        if body is None
        else post(office.http, waiting, "reject", body)
    )
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["status"], shown["error"]) == ("rejected", "escalation_rejected")
    assert shown["message"] == message
    assert office.client.transfers.get(waiting.transfer_id).message == message
    assert event_types(office.server, waiting) == ["escalation.required", "transfer.rejected"]
    assert money.events(office.server)[-1]["data"] == {
        "account_id": office.payer.account_id,
        "rejection_reason": "escalation_rejected",
        "transfer_id": waiting.transfer_id,
        "to": office.payee.account_id,
        "amount_usdc": "25.000000",
        "message": message,
    }
    entry = money.entries(office.server, office.payer.account_id)[0]
    assert (entry["type"], entry["status"]) == ("rejection", "rejected")
    assert (entry["rejection_reason"], entry["memo"]) == ("escalation_rejected", "dataset 7")
    assert audited(office.server) == [
        (
            "approvals.reject",
            waiting.transfer_id,
            {"status": "pending_approval"},
            {"status": "rejected", "error": "escalation_rejected", "message": message},
        )
    ]


def test_a_reason_must_be_one_line_of_at_most_200_characters(office: Office) -> None:
    waiting = office.escalated()
    for reason in ("", "   ", "x" * 201, "a\nb", 5, None):
        assert refused(post(office.http, waiting, "reject", {"reason": reason}), "invalid_request")["details"]
    assert post(office.http, waiting, "reject", {"reason": "x" * 200}).status_code == 200


def test_a_transfer_of_a_paused_account_can_be_rejected(office: Office) -> None:
    waiting = office.escalated()
    office.client.policies.pause(office.payer.account_id)
    with office.server.sandbox.fault("chain_down"):
        assert office.server.approvals.reject(waiting.transfer_id).error == "escalation_rejected"


# --- Expiring ---------------------------------------------------------------------------------------------


def test_a_pending_transfer_expires_after_a_day(office: Office) -> None:
    waiting = office.escalated("25")
    office.server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    assert office.client.transfers.get(waiting.transfer_id).status == "pending_approval"
    office.server.sandbox.clock.advance(0.000001)
    shown = office.client.transfers.get(waiting.transfer_id)
    assert (shown.status, shown.error) == ("rejected", "escalation_expired")
    assert shown.message is not None
    assert "2026-01-02T00:00:00.000Z" in shown.message
    assert event_types(office.server, waiting) == ["escalation.required", "transfer.rejected"]
    event = money.events(office.server)[-1]
    assert event["data"]["rejection_reason"] == "escalation_expired"
    assert event["created_at"] == "2026-01-02T00:00:00.000Z"
    assert (
        money.entries(office.server, office.payer.account_id)[0]["rejection_reason"] == "escalation_expired"
    )
    assert list(office.server.approvals.list()) == []
    refused(post(office.http, waiting, "approve"), "not_pending")
    refused(post(office.http, waiting, "reject"), "not_pending")
    assert audited(office.server) == [
        (
            "approvals.expire",
            waiting.transfer_id,
            {"status": "pending_approval"},
            {"status": "rejected", "error": "escalation_expired", "message": shown.message},
        )
    ]


def test_the_approval_ttl_is_a_setting_applied_per_transfer() -> None:
    with AgentPayServer(clock=START, settings=Settings(approval_ttl_seconds=1.5)) as server:
        client = server.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        server.sandbox.fund(payer.account_id, "100")
        client.policies.update(payer.account_id, escalation_threshold=0)
        made = []
        for _ in range(3):
            made.append(
                client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1").transfer_id
            )
            server.sandbox.clock.advance(0.5)
        statuses = [client.transfers.get(transfer_id).status for transfer_id in made]
        assert statuses == ["rejected", "pending_approval", "pending_approval"]


def test_more_transfers_than_one_batch_expire_together(office: Office) -> None:
    for number in range(120):
        office.escalated("10", key=f"key-{number}")
    office.server.sandbox.clock.advance(DAY_SECONDS)
    assert {row["error"] for row in money.rows(office.server, "transfers")} == {"escalation_expired"}
    assert [event["type"] for event in money.events(office.server)].count("transfer.rejected") == 120


# --- The key ----------------------------------------------------------------------------------------------


def test_the_key_returns_the_transfer_in_every_state(office: Office) -> None:
    waiting = office.escalated("25")
    body = money.order(office.payer, office.payee.account_id, "25")
    pending = money.post(office.http, body)
    assert (pending.status_code, pending.json()["status"]) == (202, "pending_approval")
    settled = post(office.http, waiting, "approve").json()
    again = money.post(office.http, body)
    assert (again.status_code, again.json()) == (200, settled)
    assert len(money.rows(office.server, "transfers")) == 1


@pytest.mark.parametrize("how", ["reject", "expire"])
def test_the_key_of_a_transfer_that_was_not_approved_returns_the_reason(office: Office, how: str) -> None:
    waiting = office.escalated("25")
    if how == "reject":
        office.server.approvals.reject(waiting.transfer_id, reason="too much")
    else:
        office.server.sandbox.clock.advance(DAY_SECONDS)
    before = state_of(office.server)
    body = refused(
        money.post(office.http, money.order(office.payer, office.payee.account_id, "25")), "policy_violation"
    )
    assert (body["transfer_id"], body["status"]) == (waiting.transfer_id, "rejected")
    words = {
        "reject": "“too much”",
        "expire": "No operator has approved this transfer, and the time for it ended",
    }
    assert words[how] in body["message"]
    refused(
        money.post(office.http, money.order(office.payer, office.payee.account_id, "26")),
        "idempotency_conflict",
    )
    assert state_of(office.server) == before


@pytest.mark.parametrize("how", ["approve", "reject", "expire"])
def test_the_key_can_be_reused_24_hours_after_the_decision(office: Office, how: str) -> None:
    waiting = office.escalated("25")
    office.server.sandbox.clock.advance(DAY_SECONDS if how == "expire" else DAY_SECONDS - 1)
    if how != "expire":
        assert post(office.http, waiting, how).status_code == 200
    body = money.order(office.payer, office.payee.account_id, "25")
    office.server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    again = money.post(office.http, body)
    assert again.status_code == (200 if how == "approve" else 402)
    assert again.json()["transfer_id"] == waiting.transfer_id
    office.server.sandbox.clock.advance(0.000001)
    new = money.post(office.http, body)
    assert (new.status_code, new.json()["status"]) == (202, "pending_approval")
    assert new.json()["transfer_id"] != waiting.transfer_id


# --- What cannot be decided -------------------------------------------------------------------------------


def test_a_transfer_that_does_not_wait_cannot_be_decided(office: Office) -> None:
    never = office.pay("1")
    approved, rejected = office.escalated(key="a"), office.escalated(key="b")
    office.server.approvals.approve(approved.transfer_id)
    office.server.approvals.reject(rejected.transfer_id)
    before = state_of(office.server)
    for transfer, status in ((approved, "settled"), (rejected, "rejected"), (never, "settled")):
        for verb in ("approve", "reject"):
            body = refused(post(office.http, transfer, verb), "not_pending")
            assert status in body["message"]
            with pytest.raises(ConflictError):
                getattr(office.server.approvals, verb)(transfer.transfer_id)
    assert state_of(office.server) == before
