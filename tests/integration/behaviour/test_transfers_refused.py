"""Transfers that a policy, the balance or the recipient stops: the answer, and what is written of them."""

from decimal import Decimal
from typing import Any

import httpx
import money
import pytest
from attrs import Factory, frozen
from server_world import START, Funded

from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

OUTSIDER = "So11111111111111111111111111111111111111112"


@frozen(kw_only=True)
class Rule:
    """A policy, and a transfer that it stops; where exactly it begins to, tests/unit/money has."""

    policy: dict[str, Any]
    refused: dict[str, Any]
    says: tuple[str, ...]
    error: str = "policy_violation"
    refusal: dict[str, Any] = Factory(dict)


RULES = {
    "max_single_transfer": Rule(
        policy={"max_single_transfer": 25},
        refused={"amount": "25.000001"},
        says=("max_single_transfer", "25.000000", "25.000001"),
        refusal={"limit_usdc": "25.000000"},
    ),
    "max_daily_spend": Rule(
        policy={"max_daily_spend": 30.5},
        refused={"amount": "30.500001"},
        says=("max_daily_spend", "30.500000", "30.500001"),
        refusal={"limit_usdc": "30.500000", "spent_usdc": "0.000000", "remaining_usdc": "30.500000"},
    ),
    "allowed_counterparties": Rule(
        policy={"allowed_counterparties": [OUTSIDER]},
        refused={},
        says=("allowed_counterparties", OUTSIDER),
    ),
    "categories": Rule(
        policy={"categories": ["data", "search"]},
        refused={"category": "inference"},
        says=("categories", "data", "search", "inference"),
    ),
    "no category": Rule(
        policy={"categories": ["data"]},
        refused={},
        says=("categories", "data", "no category"),
    ),
    "require_memo": Rule(
        policy={"require_memo": True},
        refused={},
        says=("require_memo", "true"),
    ),
    "memo of blanks": Rule(
        policy={"require_memo": True},
        refused={"memo": " \t "},
        says=("require_memo", "true"),
    ),
    "paused": Rule(policy={"paused": True}, refused={}, says=("paused", "true"), error="account_paused"),
    "balance": Rule(
        policy={},
        refused={"amount": "100.000001"},
        says=("balance_usdc", "100.000000", "100.000001"),
        error="insufficient_balance",
        refusal={"remaining_usdc": "100.000000"},
    ),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_refused_transfer_is_stored_once_and_moves_nothing(
    server: AgentPayServer, http: httpx.Client, funded: Funded, rule: Rule
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    money.put_policy(http, payer, **rule.policy)
    body = money.order(payer, payee.account_id, **rule.refused)
    response = money.post(http, body)

    assert response.status_code == 402
    answer = response.json()
    assert set(answer) == {"error", "message", "transfer_id", "status", "refusal"}
    assert (answer["error"], answer["status"]) == (rule.error, "rejected")
    assert all(word in answer["message"] for word in rule.says), answer["message"]
    assert answer["refusal"] == {
        "rule": rule.says[0],
        "requested_usdc": f"{Decimal(body['amount']):.6f}",
        "available_at": None,
        **dict.fromkeys(("limit_usdc", "spent_usdc", "remaining_usdc")),
        **rule.refusal,
    }
    if rule.error != "insufficient_balance":
        # It is stored, and a replay repeats it; only a low balance is judged again.
        assert money.post(http, body).json() == answer

    shown = http.get(f"/v1/transfers/{answer['transfer_id']}").json()
    assert set(shown) == money.TEN_FIELDS | {"error", "message", "refusal"}
    assert (shown["status"], shown["error"], shown["message"], shown["refusal"]) == (
        "rejected",
        rule.error,
        answer["message"],
        answer["refusal"],
    )
    assert shown["tx_signature"] is shown["chain_explorer_url"] is shown["settled_at"] is None

    (event,) = money.events(server)
    assert event["type"] == "transfer.rejected"
    assert event["data"] == {
        "account_id": payer.account_id,
        "rejection_reason": rule.error,
        "transfer_id": answer["transfer_id"],
        "to": payee.account_id,
        "amount_usdc": f"{Decimal(body['amount']):.6f}",
        "message": answer["message"],
    }
    entry, funding = money.entries(server, payer.account_id)
    assert funding["type"] == "deposit"
    assert entry == {
        "transaction_id": entry["transaction_id"],
        "account_id": payer.account_id,
        "type": "rejection",
        "status": "rejected",
        "direction": "out",
        "amount_usdc": Decimal(body["amount"]),
        "counterparty": payee.account_id,
        "memo": body.get("memo"),
        "category": body.get("category"),
        "tx_signature": None,
        "chain_explorer_url": None,
        "transfer_id": answer["transfer_id"],
        "session_id": None,
        "rejection_reason": rule.error,
        "created_at": START,
    }
    assert len(money.entries(server, payee.account_id)) == 1

    (row,) = money.rows(server, "transfers")
    assert row["tx_signature"] is None
    assert money.held(server, payer.usdc_token_account) == 100_000_000
    assert server.console.details(payer.account_id).spent_usdc == 0


@pytest.mark.parametrize("listed", ["owner", "usdc_token_account"])
def test_an_outside_counterparty_matches_by_token_account_and_owner(
    server: AgentPayServer, http: httpx.Client, funded: Funded, listed: str
) -> None:
    payer, outside = funded("100"), server.sandbox.create_token_account()
    other = server.sandbox.create_token_account()
    money.put_policy(http, payer, allowed_counterparties=[getattr(outside, listed)])
    assert money.post(http, money.order(payer, outside.usdc_token_account)).status_code == 200
    refused = money.post(http, money.order(payer, other.usdc_token_account, key="key-2"))
    assert refused.json()["error"] == "policy_violation"


def bad_recipients(server: AgentPayServer, payer: Account, payee: Account) -> dict[str, str]:
    frozen = server.sandbox.create_token_account().usdc_token_account
    money.freeze(server, frozen)
    return {
        "unknown account": "acct_00000000000000000000000000",
        "malformed account": "acct_1",
        "account of another case": payee.account_id.upper(),
        "malformed address": "not-an-address",
        "empty": "",
        "address with blanks": f" {payee.usdc_token_account} ",
        "transfer": "txn_00000000000000000000000000",
        "zeros that are no base58": "0" * 44,
        "wallet": payee.chain_address,
        "mint": money.on_owner(server, _usdc_mint),
        "token account of another mint": _other_mints_account(server, payee),
        "a missing account": "9" * 44,
        "program": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
        "frozen": frozen,
        "itself": payer.account_id,
        "its own token account": payer.usdc_token_account,
    }


async def _usdc_mint(context: money.Context) -> str:
    return context.chain.usdc_mint


def _other_mints_account(server: AgentPayServer, payee: Account) -> str:
    """Put a copy of a token account, but of another mint, on chain."""
    address = money.Pubkey.from_bytes(bytes(range(32)))

    def put(svm: money.LiteSVM) -> str:
        original = svm.get_account(money.Pubkey.from_string(payee.usdc_token_account))
        assert original is not None
        data = bytes(money.Pubkey.from_string(OUTSIDER)) + original.data[32:]
        svm.set_account(address, type(original)(original.lamports, data, original.owner))
        return str(address)

    return money.with_svm(server, put)


def test_a_recipient_that_can_hold_no_usdc_is_422_and_stores_nothing(
    server: AgentPayServer, http: httpx.Client, funded: Funded
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    for name, to in bad_recipients(server, payer, payee).items():
        response = money.post(http, money.order(payer, to))
        answer = response.json()
        assert (response.status_code, answer["error"]) == (422, "invalid_recipient"), name
        assert set(answer) == {"error", "message", "request_id"}, name
    assert money.rows(server, "transfers") == []
    assert money.events(server) == []
    assert len(money.entries(server, payer.account_id)) == 1
    # The key was not used up.
    assert money.post(http, money.order(payer, payee.account_id)).status_code == 200


def test_the_first_failing_rule_decides_the_error(
    server: AgentPayServer, http: httpx.Client, funded: Funded
) -> None:
    """In the order of interface R17 and PO6: each step mends what was refused, and the next rule speaks."""
    payer, payee = funded("100"), funded("1", name="Payee")
    settled = money.post(http, money.order(payer, payee.account_id, "1", key="used"))
    assert settled.status_code == 200
    policy: dict[str, Any] = {
        "paused": True,
        "require_memo": True,
        "allowed_counterparties": [OUTSIDER],
        "categories": ["data"],
        "max_single_transfer": 10,
        "max_daily_spend": 20,
        "escalation_threshold": 0,
    }
    money.put_policy(http, payer, **policy)
    body = money.order(payer, payer.account_id, "200", key="used")

    def refused(body: dict[str, Any]) -> tuple[str, str]:
        answer = money.post(http, body).json()
        return answer["error"], answer["message"]

    assert refused({**body, "from": "acct_00000000000000000000000000", "amount": "x"})[0] == "invalid_request"
    assert refused({**body, "from": "acct_00000000000000000000000000"})[0] == "not_found"
    assert refused(body)[0] == "idempotency_conflict"
    body["idempotency_key"] = "key-1"
    assert refused(body)[0] == "account_paused"
    money.put_policy(http, payer, paused=False)
    body["idempotency_key"] = "key-2"
    assert refused(body)[0] == "invalid_recipient"
    body["to"] = payee.account_id
    mend: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("require_memo", {}, {"memo": "x"}),
        ("allowed_counterparties", {"allowed_counterparties": None}, {}),
        ("categories", {}, {"category": "data"}),
        ("max_single_transfer", {"max_single_transfer": 200}, {}),
        ("max_daily_spend", {"max_daily_spend": 201}, {}),
        ("balance_usdc", {}, {"amount": "99"}),
    ]
    for number, (field, new_policy, new_terms) in enumerate(mend):
        body["idempotency_key"] = f"mend-{number}"
        error, message = refused(body)
        assert error == ("insufficient_balance" if field == "balance_usdc" else "policy_violation")
        assert message.startswith(field)
        money.put_policy(http, payer, **new_policy)
        body.update(new_terms)
    body["idempotency_key"] = "last"
    escalated = money.post(http, body)
    assert (escalated.status_code, escalated.json()["status"]) == (202, "pending_approval")


@pytest.mark.parametrize("memo", [None, "big"])
def test_amounts_from_the_threshold_on_are_pending(
    server: AgentPayServer, http: httpx.Client, funded: Funded, memo: str | None
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    money.put_policy(http, payer, escalation_threshold=12.5)
    below = money.post(http, money.order(payer, payee.account_id, "12.499999", key="below"))
    assert below.status_code == 200
    response = money.post(http, money.order(payer, payee.account_id, "12.5", key="at", memo=memo))
    assert response.status_code == 202
    body = response.json()
    assert set(body) == money.TEN_FIELDS
    assert body["status"] == "pending_approval"
    assert body["tx_signature"] is body["chain_explorer_url"] is body["settled_at"] is None
    event = money.events(server)[-1]
    assert event["type"] == "escalation.required"
    assert event["data"] == {
        "transfer_id": body["transfer_id"],
        "account_id": payer.account_id,
        "to": payee.account_id,
        "amount_usdc": "12.500000",
        "memo": memo,
        "escalation_threshold": 12.5,
    }
    (row,) = money.rows(server, "transfers", transfer_id=body["transfer_id"])
    assert row["tx_signature"] is None
    assert money.held(server, payee.usdc_token_account) == 13_499_999
    amounts = [entry["amount_usdc"] for entry in money.entries(server, payer.account_id)]
    assert amounts == [Decimal("12.499999"), Decimal(100)]
