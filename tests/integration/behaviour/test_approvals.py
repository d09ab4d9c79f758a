"""Pending transfers: approved, rejected, expired, and the responses and events.

See interface AP1 to AP5.
"""

from collections.abc import Callable
from typing import Any

import httpx
import money
import pytest
from server_world import START, Funded, refused, state_of

from agentpay import AgentPay, ConflictError
from agentpay.contract.accounts import Account
from agentpay.contract.transfers import Transfer
from agentpay.errors import PolicyViolationError
from agentpay_server import AgentPayServer, Settings

DAY_SECONDS = 24 * 3600

Escalated = Callable[..., Transfer]


@pytest.fixture
def payer(funded: Funded, client: AgentPay) -> Account:
    """An account with 100 USDC, from which 10 USDC or more wait for an operator."""
    account = funded("100")
    client.policies.update(account.account_id, escalation_threshold=10)
    return account


@pytest.fixture
def payee(funded: Funded) -> Account:
    return funded("1", name="Payee")


@pytest.fixture
def escalated(client: AgentPay, payer: Account, payee: Account) -> Escalated:
    """A factory of transfers that wait for an operator."""

    def ask(amount: str = "25", *, key: str = "key-1", **more: Any) -> Transfer:
        transfer = client.transfers.create(
            from_=payer.account_id, to=payee.account_id, amount=amount, idempotency_key=key, **more
        )
        assert transfer.status == "pending_approval"
        return transfer

    return ask


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


def test_a_pending_transfer_is_listed_until_it_is_decided_and_reserves_nothing(
    server: AgentPayServer,
    http: httpx.Client,
    client: AgentPay,
    escalated: Escalated,
    payer: Account,
    payee: Account,
) -> None:
    client.policies.update(payer.account_id, max_daily_spend=30)
    waiting = escalated("25", key="first", memo="dataset 7", category="data")
    assert http.get("/ext/v1/console/approvals").json()["data"] == [
        {
            "transfer_id": waiting.transfer_id,
            "status": "pending_approval",
            "from": payer.account_id,
            "to": payee.account_id,
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
    detail = server.console.details(payer.account_id)
    assert (detail.spent_usdc, detail.reserved_usdc, detail.remaining_usdc) == (0, 0, 30)
    assert event_types(server, waiting) == ["escalation.required"]
    approved, rejected = escalated(key="a"), escalated(key="b")
    # The whole limit is still there for others, and none of what waits has any of it.
    client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="5")
    server.approvals.approve(approved.transfer_id)
    server.approvals.reject(rejected.transfer_id)
    assert [item.transfer_id for item in server.approvals.list()] == [waiting.transfer_id]
    with pytest.raises(PolicyViolationError, match=r"max_daily_spend is 30\.000000"):
        server.approvals.approve(waiting.transfer_id)


# --- Approving --------------------------------------------------------------------------------------------


def test_an_approved_transfer_is_executed_like_any_other(
    server: AgentPayServer,
    http: httpx.Client,
    client: AgentPay,
    escalated: Escalated,
    payer: Account,
    payee: Account,
) -> None:
    waiting = escalated("25", memo="dataset 7")
    server.sandbox.clock.advance(3600)
    answer = post(http, waiting, "approve")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert set(body) == money.TEN_FIELDS
    assert (body["transfer_id"], body["status"]) == (waiting.transfer_id, "settled")
    assert (body["memo"], body["idempotency_key"]) == ("dataset 7", "key-1")
    assert body["settled_at"] == "2026-01-01T01:00:00.000Z"
    assert body["tx_signature"] in body["chain_explorer_url"]
    assert client.transfers.get(waiting.transfer_id).tx_signature == body["tx_signature"]
    assert money.held(server, payee.usdc_token_account) == 26_000_000
    assert event_types(server, waiting) == ["escalation.required", "transfer.initiated", "transfer.settled"]
    entry = money.entries(server, payer.account_id)[0]
    assert (entry["type"], entry["transfer_id"]) == ("transfer", waiting.transfer_id)
    assert audited(server) == [
        (
            "approvals.approve",
            waiting.transfer_id,
            {"status": "pending_approval"},
            {"status": "submitted"},
        )
    ]


def test_an_approved_transfer_counts_toward_the_limit_from_its_approval(
    server: AgentPayServer, client: AgentPay, escalated: Escalated, payer: Account
) -> None:
    client.policies.update(payer.account_id, max_daily_spend=30)
    waiting = escalated("25")
    # It is not escalated again, and in time until the last microsecond.
    client.policies.update(payer.account_id, escalation_threshold=0)
    server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    assert server.approvals.approve(waiting.transfer_id).status == "settled"
    server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    assert server.console.details(payer.account_id).spent_usdc == 25
    server.sandbox.clock.advance(0.000001)
    assert server.console.details(payer.account_id).spent_usdc == 0


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
    server: AgentPayServer,
    http: httpx.Client,
    client: AgentPay,
    escalated: Escalated,
    payer: Account,
    payee: Account,
    change: dict[str, Any],
    error: str,
    named: str,
) -> None:
    waiting = escalated("25")
    before = client.policies.get(payer.account_id)
    client.policies.update(payer.account_id, **change)
    answer = post(http, waiting, "approve")
    body = refused(answer, error)
    assert (body["transfer_id"], body["status"]) == (waiting.transfer_id, "rejected")
    assert body["message"].startswith(named)
    shown = client.transfers.get(waiting.transfer_id)
    assert (shown.status, shown.error, shown.message) == ("rejected", error, body["message"])
    assert shown.tx_signature is None
    assert event_types(server, waiting) == ["escalation.required", "transfer.rejected"]
    assert money.events(server)[-1]["data"]["rejection_reason"] == error
    entry = money.entries(server, payer.account_id)[0]
    assert (entry["type"], entry["rejection_reason"]) == ("rejection", error)
    assert audited(server)[0][3] == {"status": "rejected", "error": error, "message": body["message"]}
    assert money.held(server, payee.usdc_token_account) == 1_000_000
    # After a rejection, changing the policy does not revive the transfer.
    client.policies.replace(payer.account_id, **{name: getattr(before, name) for name in change})
    refused(post(http, waiting, "approve"), "not_pending")
    again = money.post(http, money.order(payer, payee.account_id, "25"))
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
    server: AgentPayServer,
    http: httpx.Client,
    client: AgentPay,
    escalated: Escalated,
    payer: Account,
    payee: Account,
    error: str,
) -> None:
    put_up, take_down, words = OBSTACLES[error]
    waiting = escalated("25")
    put_up(server, client, payer, payee)
    before = state_of(server) if error != "chain_unavailable" else None
    body = refused(post(http, waiting, "approve"), error)
    assert words in body["message"]
    assert body.get("transfer_id") == (waiting.transfer_id if error == "insufficient_balance" else None)
    assert body.get("status") in (None, "pending_approval")
    assert client.transfers.get(waiting.transfer_id).status == "pending_approval"
    if before is not None:
        assert state_of(server) == before
    take_down(server, payer, payee)
    assert server.approvals.approve(waiting.transfer_id).status == "settled"


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
    server: AgentPayServer,
    http: httpx.Client,
    client: AgentPay,
    escalated: Escalated,
    payer: Account,
    payee: Account,
    body: object,
    message: str,
) -> None:
    waiting = escalated("25", memo="dataset 7")
    answer = (
        http.post(f"/ext/v1/console/approvals/{waiting.transfer_id}/reject")
        if body is None
        else post(http, waiting, "reject", body)
    )
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["status"], shown["error"]) == ("rejected", "escalation_rejected")
    assert shown["message"] == message
    assert client.transfers.get(waiting.transfer_id).message == message
    assert event_types(server, waiting) == ["escalation.required", "transfer.rejected"]
    assert money.events(server)[-1]["data"] == {
        "account_id": payer.account_id,
        "rejection_reason": "escalation_rejected",
        "transfer_id": waiting.transfer_id,
        "to": payee.account_id,
        "amount_usdc": "25.000000",
        "message": message,
    }
    entry = money.entries(server, payer.account_id)[0]
    assert (entry["type"], entry["status"]) == ("rejection", "rejected")
    assert (entry["rejection_reason"], entry["memo"]) == ("escalation_rejected", "dataset 7")
    assert audited(server) == [
        (
            "approvals.reject",
            waiting.transfer_id,
            {"status": "pending_approval"},
            {"status": "rejected", "error": "escalation_rejected", "message": message},
        )
    ]


def test_a_reason_must_be_one_line_of_at_most_200_characters(
    http: httpx.Client, escalated: Escalated
) -> None:
    waiting = escalated()
    for reason in ("", "   ", "x" * 201, "a\nb", 5, None):
        assert refused(post(http, waiting, "reject", {"reason": reason}), "invalid_request")["details"]
    assert post(http, waiting, "reject", {"reason": "x" * 200}).status_code == 200


def test_a_transfer_of_a_paused_account_can_be_rejected(
    server: AgentPayServer, client: AgentPay, escalated: Escalated, payer: Account
) -> None:
    waiting = escalated()
    client.policies.pause(payer.account_id)
    with server.sandbox.fault("chain_down"):
        assert server.approvals.reject(waiting.transfer_id).error == "escalation_rejected"


# --- Expiring ---------------------------------------------------------------------------------------------


def test_a_pending_transfer_expires_after_a_day(
    server: AgentPayServer, http: httpx.Client, client: AgentPay, escalated: Escalated, payer: Account
) -> None:
    waiting = escalated("25")
    server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    assert client.transfers.get(waiting.transfer_id).status == "pending_approval"
    server.sandbox.clock.advance(0.000001)
    shown = client.transfers.get(waiting.transfer_id)
    assert (shown.status, shown.error) == ("rejected", "escalation_expired")
    assert shown.message is not None
    assert "2026-01-02T00:00:00.000Z" in shown.message
    assert event_types(server, waiting) == ["escalation.required", "transfer.rejected"]
    event = money.events(server)[-1]
    assert event["data"]["rejection_reason"] == "escalation_expired"
    assert event["created_at"] == "2026-01-02T00:00:00.000Z"
    assert money.entries(server, payer.account_id)[0]["rejection_reason"] == "escalation_expired"
    assert list(server.approvals.list()) == []
    refused(post(http, waiting, "approve"), "not_pending")
    refused(post(http, waiting, "reject"), "not_pending")
    assert audited(server) == [
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


def test_more_transfers_than_one_batch_expire_together(server: AgentPayServer, escalated: Escalated) -> None:
    for number in range(120):
        escalated("10", key=f"key-{number}")
    server.sandbox.clock.advance(DAY_SECONDS)
    assert {row["error"] for row in money.rows(server, "transfers")} == {"escalation_expired"}
    assert [event["type"] for event in money.events(server)].count("transfer.rejected") == 120


# --- The key ----------------------------------------------------------------------------------------------


def test_the_key_returns_the_transfer_in_every_state(
    server: AgentPayServer, http: httpx.Client, escalated: Escalated, payer: Account, payee: Account
) -> None:
    waiting = escalated("25")
    body = money.order(payer, payee.account_id, "25")
    pending = money.post(http, body)
    assert (pending.status_code, pending.json()["status"]) == (202, "pending_approval")
    settled = post(http, waiting, "approve").json()
    again = money.post(http, body)
    assert (again.status_code, again.json()) == (200, settled)
    assert len(money.rows(server, "transfers")) == 1


@pytest.mark.parametrize("how", ["reject", "expire"])
def test_the_key_of_a_transfer_that_was_not_approved_returns_the_reason(
    server: AgentPayServer, http: httpx.Client, escalated: Escalated, payer: Account, payee: Account, how: str
) -> None:
    waiting = escalated("25")
    if how == "reject":
        server.approvals.reject(waiting.transfer_id, reason="too much")
    else:
        server.sandbox.clock.advance(DAY_SECONDS)
    before = state_of(server)
    body = refused(money.post(http, money.order(payer, payee.account_id, "25")), "policy_violation")
    assert (body["transfer_id"], body["status"]) == (waiting.transfer_id, "rejected")
    words = {
        "reject": "“too much”",
        "expire": "No operator has approved this transfer, and the time for it ended",
    }
    assert words[how] in body["message"]
    refused(money.post(http, money.order(payer, payee.account_id, "26")), "idempotency_conflict")
    assert state_of(server) == before


@pytest.mark.parametrize("how", ["approve", "reject", "expire"])
def test_the_key_can_be_reused_24_hours_after_the_decision(
    server: AgentPayServer, http: httpx.Client, escalated: Escalated, payer: Account, payee: Account, how: str
) -> None:
    waiting = escalated("25")
    server.sandbox.clock.advance(DAY_SECONDS if how == "expire" else DAY_SECONDS - 1)
    if how != "expire":
        assert post(http, waiting, how).status_code == 200
    body = money.order(payer, payee.account_id, "25")
    server.sandbox.clock.advance(DAY_SECONDS - 0.000001)
    again = money.post(http, body)
    assert again.status_code == (200 if how == "approve" else 402)
    assert again.json()["transfer_id"] == waiting.transfer_id
    server.sandbox.clock.advance(0.000001)
    new = money.post(http, body)
    assert (new.status_code, new.json()["status"]) == (202, "pending_approval")
    assert new.json()["transfer_id"] != waiting.transfer_id


# --- What cannot be decided -------------------------------------------------------------------------------


def test_a_transfer_that_does_not_wait_cannot_be_decided(
    server: AgentPayServer,
    http: httpx.Client,
    client: AgentPay,
    escalated: Escalated,
    payer: Account,
    payee: Account,
) -> None:
    never = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
    approved, rejected = escalated(key="a"), escalated(key="b")
    server.approvals.approve(approved.transfer_id)
    server.approvals.reject(rejected.transfer_id)
    before = state_of(server)
    for transfer, status in ((approved, "settled"), (rejected, "rejected"), (never, "settled")):
        for verb in ("approve", "reject"):
            body = refused(post(http, transfer, verb), "not_pending")
            assert status in body["message"]
            with pytest.raises(ConflictError):
                getattr(server.approvals, verb)(transfer.transfer_id)
    assert state_of(server) == before
