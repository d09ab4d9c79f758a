"""A check predicts the outcome of a transfer with the code that decides transfers (interface B4)."""

from typing import Any

import httpx
import pytest
from server_world import UNKNOWN_ACCOUNT, Funded

from agentpay import (
    AgentPay,
    ChainUnavailableError,
    InvalidRecipientError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    TransferCheck,
    TransferRejectedError,
)
from agentpay_server import AgentPayServer


@pytest.fixture
def payer(funded: Funded) -> str:
    return funded("100").account_id


@pytest.fixture
def payee(client: AgentPay) -> str:
    return client.accounts.create(name="Payee").account_id


POLICY = {
    "max_single_transfer": 40,
    "max_daily_spend": 50,
    "categories": ["data"],
    "require_memo": True,
    "escalation_threshold": 20,
}
GOOD: dict[str, Any] = {"amount": 10, "memo": "dataset 7", "category": "data"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "within everything": ({}, {}),
    "at the threshold": ({}, {"amount": 20}),
    "just below the threshold": ({}, {"amount": "19.999999"}),
    "no memo": ({}, {"memo": None}),
    "an empty memo": ({}, {"memo": ""}),
    "a blank memo": ({}, {"memo": "  "}),
    "no category": ({}, {"category": None}),
    "another category": ({}, {"category": "travel"}),
    "too much at once": ({}, {"amount": "40.000001"}),
    "all of the day": ({"max_single_transfer": None, "escalation_threshold": None}, {"amount": 45}),
    "more than the day": ({"max_single_transfer": None}, {"amount": "45.000001"}),
    "all of the balance": (
        {"max_single_transfer": None, "max_daily_spend": None, "escalation_threshold": None},
        {"amount": 95},
    ),
    "more than the balance": (
        {"max_single_transfer": None, "max_daily_spend": None},
        {"amount": "95.000001"},
    ),
    "paused": ({"paused": True}, {}),
    "no counterparty allowed": ({"allowed_counterparties": []}, {}),
}


def made(client: AgentPay, **order: Any) -> tuple[str, str | None, str | None]:
    """The outcome of a transfer, in the form of a check."""
    try:
        transfer = client.transfers.create(**order)
    except TransferRejectedError as error:
        return "reject", error.code, error.message
    return {"settled": "settle", "pending_approval": "escalate"}[str(transfer.status)], None, None


@pytest.mark.parametrize("case", CASES)
def test_the_check_predicts_the_transfer(client: AgentPay, payer: str, payee: str, case: str) -> None:
    policy, order = CASES[case]
    client.transfers.create(from_=payer, to=payee, amount=5)
    client.policies.replace(payer, **{**POLICY, **policy})
    order = {"from_": payer, "to": payee, **GOOD, **order}
    agreed = client.transfers.check(**order)
    decision, error, message = made(client, **order)
    after = client.accounts.budget(payer)
    assert (agreed.decision, agreed.error) == (decision, error)
    if decision == "reject":
        said = agreed.message or ""
        assert said == message
    else:
        assert (agreed.message is None) == (decision == "settle")
    assert agreed.remaining_usdc == after.remaining_usdc, "what remains once the transfer was asked for"


def test_the_message_of_an_escalation_names_the_threshold(client: AgentPay, payer: str, payee: str) -> None:
    client.policies.update(payer, escalation_threshold=20)
    assert client.transfers.check(from_=payer, to=payee, amount=25) == TransferCheck(
        decision="escalate",
        error=None,
        message="escalation_threshold is 20.000000 USDC and this transfer requests 25.000000 USDC: it would "
        "wait for an operator's approval.",
        remaining_usdc=None,
    )


def test_the_check_stores_reserves_and_emits_nothing(
    server: AgentPayServer, client: AgentPay, payer: str, payee: str
) -> None:
    client.policies.update(payer, max_daily_spend=50, escalation_threshold=20)

    def state() -> tuple[Any, ...]:
        return (
            client.accounts.budget(payer),
            list(client.transfers.list()),
            list(client.accounts.transactions(payer)),
            list(server.events.list()),
            list(server.console.audit_log.list()),
            len(server.transactions),
        )

    before = state()
    for amount in (1, 30, 60, 200):
        client.transfers.check(from_=payer, to=payee, amount=amount)
    assert state() == before


def test_a_recipient_that_cannot_be_paid_is_422(client: AgentPay, payer: str) -> None:
    for to in (UNKNOWN_ACCOUNT, "nonsense", payer):
        with pytest.raises(InvalidRecipientError):
            client.transfers.check(from_=payer, to=to, amount=1)


def test_a_paused_account_is_reported_without_the_chain(
    server: AgentPayServer, client: AgentPay, payer: str, payee: str
) -> None:
    once = client.with_options(max_retries=0)
    with server.sandbox.fault("chain_down"), pytest.raises(ChainUnavailableError):
        once.transfers.check(from_=payer, to=payee, amount=1)
    client.policies.pause(payer)
    with server.sandbox.fault("chain_down"):
        assert once.transfers.check(from_=payer, to=payee, amount=1).error == "account_paused"


def test_accounts_of_others_are_checked_like_unknown_ones(
    server: AgentPayServer, payer: str, payee: str
) -> None:
    agent = server.agent_client(payer)
    stranger = server.client(api_key=server.sandbox.create_operator("Other").key)
    assert agent.transfers.check(from_=payer, to=payee, amount=1).decision == "settle"
    messages = set()
    for own, unknown in ((payee, UNKNOWN_ACCOUNT), (UNKNOWN_ACCOUNT, payer)):
        with pytest.raises(PermissionDeniedError) as caught:
            agent.transfers.check(from_=own, to=payer, amount=1)
        messages.add(caught.value.message)
        with pytest.raises(NotFoundError):
            stranger.transfers.check(from_=unknown, to=payee, amount=1)
    assert len(messages) == 1


def test_a_check_accepts_the_body_of_a_transfer_without_an_idempotency_key(
    http: httpx.Client, client: AgentPay, payer: str, payee: str
) -> None:
    body = {"from": payer, "to": payee, "amount": "1.50", "memo": None}
    answer = http.post("/ext/v1/transfers/check", json=body)
    assert answer.status_code == 200
    assert answer.json() == {
        "decision": "settle",
        "error": None,
        "message": None,
        "remaining_usdc": None,
        "refusal": None,
    }
    refused = http.post("/ext/v1/transfers/check", json={**body, "idempotency_key": "key-1", "amount": 1})
    assert refused.status_code == 400
    assert {fault["field"] for fault in refused.json()["details"]} == {"idempotency_key", "amount"}
    with pytest.raises(InvalidRequestError):
        client.transfers.check(from_=payer, to=payee, amount=0)
