"""Models and JSON values: lenient with responses where the service may grow, strict with requests.

See interface R9.
"""

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from agentpay.contract import choices, codec, json_text
from agentpay.contract.accounts import Account, AccountStatus, Balance, CreateAccount, ListAccounts
from agentpay.contract.codec import InvalidValueError
from agentpay.contract.errors import ErrorBody, ErrorCode, FieldError
from agentpay.contract.ext.deliveries import ReplayableStatus
from agentpay.contract.pages import PageBody
from agentpay.contract.policies import POLICY_FIELDS, AccountPolicy, Policy, PolicyChange
from agentpay.contract.requests import UNSET, Request
from agentpay.contract.transactions import (
    Direction,
    ListTransactions,
    Transaction,
    TransactionStatus,
    TransactionStatusFilter,
    TransactionType,
)
from agentpay.contract.transfers import CreateTransfer, Transfer, TransferStatus
from agentpay.contract.usdc import UsdcNumber
from agentpay.contract.webhooks import CreateWebhook, NewWebhook

ROOT = Path(__file__).resolve().parents[2]

ACCOUNT_ID = "acct_01kdvdna00sc40r341kdad8hxb"
ADDRESS = "Cz46hhJ2qEE2QbbyaJwWVmrGmsYhRrzZSBAmFC8c5MfC"
MOMENT = "2026-01-31T12:00:00.123Z"

POLICY: dict[str, Any] = {
    "max_single_transfer": Decimal("25.5"),
    "max_daily_spend": Decimal(100),
    "allowed_counterparties": [ACCOUNT_ID, ADDRESS],
    "categories": ["inference"],
    "require_memo": True,
    "escalation_threshold": Decimal("0.000001"),
    "paused": False,
}
ACCOUNT: dict[str, Any] = {
    "account_id": ACCOUNT_ID,
    "name": "Agent",
    "handle": "@agent",
    "chain_address": ADDRESS,
    "usdc_token_account": ADDRESS,
    "balance_usdc": "12.500000",
    "custody_mode": "custodial",
    "status": "active",
    "policy": POLICY,
    "created_at": MOMENT,
}
TRANSFER: dict[str, Any] = {
    "transfer_id": "txn_a",
    "status": "settled",
    "from": ACCOUNT_ID,
    "to": ADDRESS,
    "amount_usdc": "1.500000",
    "memo": "for data",
    "idempotency_key": "key-1",
    "tx_signature": "5ig",
    "chain_explorer_url": "https://explorer.solana.com/tx/5ig",
    "settled_at": MOMENT,
}
TRANSACTION: dict[str, Any] = {
    "transaction_id": "entry_a",
    "type": "transfer",
    "status": "settled",
    "direction": "out",
    "account_id": ACCOUNT_ID,
    "amount_usdc": "1.500000",
    "counterparty": ADDRESS,
    "memo": None,
    "category": "data",
    "tx_signature": "5ig",
    "chain_explorer_url": "https://explorer.solana.com/tx/5ig",
    "transfer_id": "txn_a",
    "session_id": None,
    "rejection_reason": None,
    "created_at": MOMENT,
}

RESPONSES: dict[Any, dict[str, Any]] = {
    Account: ACCOUNT,
    Policy: POLICY,
    AccountPolicy: {**POLICY, "account_id": ACCOUNT_ID, "updated_at": MOMENT},
    Balance: {"account_id": ACCOUNT_ID, "balance_usdc": "0.000000", "last_updated": MOMENT},
    Transfer: TRANSFER,
    Transaction: TRANSACTION,
    PageBody[Account]: {"data": [ACCOUNT, ACCOUNT], "cursor": "abc", "has_more": True},
    PageBody[Transaction]: {"data": [], "cursor": "", "has_more": False},
    NewWebhook: {
        "webhook_id": "wh_a",
        "url": "https://example.com/hook",
        "events": ["transfer.settled"],
        "account_ids": [],
        "low_balance_threshold_usdc": Decimal("2.5"),
        "secret": "whsec_a",
        "created_at": MOMENT,
    },
    ErrorBody: {
        "error": "invalid_request",
        "message": "No.",
        "request_id": "req_a",
        "details": [{"field": "name", "message": "is required"}],
    },
}
REQUESTS: dict[Any, dict[str, Any]] = {
    CreateAccount: {"name": "Agent", "metadata": {"team": "a", "n": [1, Decimal("1.5"), None, {"x": True}]}},
    CreateTransfer: {
        "from": ACCOUNT_ID,
        "to": ADDRESS,
        "amount": "25.500000",
        "idempotency_key": "key-1",
        "memo": "for data",
        "category": "data",
    },
    PolicyChange: POLICY,
    CreateWebhook: {
        "url": "https://example.com/hook",
        "events": ["transfer.settled"],
        "account_ids": [ACCOUNT_ID],
        "low_balance_threshold_usdc": Decimal("2.5"),
    },
}
REQUIRED = {
    Account: set(ACCOUNT),
    Balance: {"account_id", "balance_usdc", "last_updated"},
    Transfer: {"transfer_id", "status", "from", "to", "amount_usdc", "idempotency_key"},
    CreateAccount: {"name"},
    CreateTransfer: {"from", "to", "amount", "idempotency_key"},
    CreateWebhook: {"url", "events"},
}


def named(value):
    return getattr(value, "__name__", None) or str(value)


def on_the_wire(value):
    return json_text.parse_json(json_text.print_json(value))


def faults(value, model):
    with pytest.raises(InvalidValueError) as raised:
        codec.structure(value, model)
    return {fault.field: fault.message for fault in raised.value.faults}


# --- Both ways --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "value"), [*RESPONSES.items(), *REQUESTS.items()], ids=named)
def test_every_model_round_trips(model, value):
    structured = codec.structure(on_the_wire(value), model)

    assert on_the_wire(codec.unstructure(structured)) == value
    assert codec.structure(codec.unstructure(structured), model) == structured


@pytest.mark.parametrize(("model", "value"), [*RESPONSES.items(), *REQUESTS.items()], ids=named)
def test_models_cannot_be_changed_and_have_no_dict(model, value):
    structured = codec.structure(value, model)

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(structured, attrs.fields(type(structured))[0].name, None)
    assert not hasattr(structured, "__dict__")


limits = st.none() | st.integers(0, 999_999_999_999_999).map(lambda micro: Decimal(micro).scaleb(-6))
policies = st.builds(
    Policy,
    max_single_transfer=limits,
    max_daily_spend=limits,
    allowed_counterparties=st.none()
    | st.lists(st.just(ACCOUNT_ID) | st.just(ADDRESS), max_size=3).map(tuple),
    categories=st.none() | st.lists(st.text(min_size=1, max_size=64), max_size=3).map(tuple),
    require_memo=st.booleans(),
    escalation_threshold=limits,
    paused=st.booleans(),
)


@given(policies)
def test_every_policy_round_trips(policy):
    assert codec.structure(on_the_wire(codec.unstructure(policy)), Policy) == policy
    assert (
        codec.structure(
            on_the_wire(codec.unstructure(PolicyChange(**attrs.asdict(policy, recurse=False)))), PolicyChange
        ).applied_to(Policy(paused=True, max_daily_spend=Decimal(1)))
        == policy
    )


@given(policies, st.sets(st.sampled_from(POLICY_FIELDS)), policies)
def test_a_policy_change_sets_only_the_given_fields(before, names, wanted):
    change = PolicyChange(**{name: getattr(wanted, name) for name in names})

    after = change.applied_to(before)

    assert set(codec.unstructure(change)) == names
    for name in POLICY_FIELDS:
        assert getattr(after, name) == getattr(wanted if name in names else before, name)


def test_a_limit_is_printed_as_an_exact_json_number():
    body = json_text.print_json(codec.unstructure(Policy(max_single_transfer=Decimal("25.500000"))))

    assert b'"max_single_transfer":25.5,' in body


def test_a_response_has_exact_decimals_and_utc_datetimes():
    account = codec.structure(ACCOUNT, Account)

    assert account.balance_usdc == Decimal("12.5")
    assert account.created_at == datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)
    assert account.policy.allowed_counterparties == (ACCOUNT_ID, ADDRESS)


def test_a_transfer_has_error_and_message_only_if_set():
    settled = codec.unstructure(codec.structure(TRANSFER, Transfer))
    refused = codec.unstructure(codec.structure({**TRANSFER, "error": "x", "message": "y"}, Transfer))

    assert set(settled) == set(TRANSFER)
    assert set(refused) == {*TRANSFER, "error", "message"}


def test_the_fields_of_every_resource_are_those_of_the_contract():
    assert set(codec.unstructure(codec.structure(ACCOUNT, Account))) == set(ACCOUNT)
    assert set(codec.unstructure(Policy())) == set(POLICY)
    assert set(TRANSFER) == {
        *("transfer_id", "status", "from", "to", "amount_usdc", "memo", "idempotency_key"),
        *("tx_signature", "chain_explorer_url", "settled_at"),
    }
    assert {attribute.name for attribute in attrs.fields(Transaction)} == set(TRANSACTION)


def test_policy_defaults_are_those_of_the_contract():
    assert codec.unstructure(Policy()) == {
        "max_single_transfer": None,
        "max_daily_spend": None,
        "allowed_counterparties": None,
        "categories": None,
        "require_memo": False,
        "escalation_threshold": None,
        "paused": False,
    }


# --- Responses: what may grow -----------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "value"), RESPONSES.items(), ids=named)
def test_unknown_fields_of_a_response_are_ignored(model, value):
    grown = {**value, "new_field": {"any": ["thing", 1.5]}}

    assert codec.structure(grown, model) == codec.structure(value, model)


OPEN_ENUMS = [
    (Account, ACCOUNT, "status", AccountStatus),
    (Transfer, TRANSFER, "status", TransferStatus),
    (Transaction, TRANSACTION, "type", TransactionType),
    (Transaction, TRANSACTION, "status", TransactionStatus),
    (Transaction, TRANSACTION, "direction", Direction),
]


@pytest.mark.parametrize(("model", "value", "name", "enum"), OPEN_ENUMS)
def test_an_unknown_enum_value_of_a_response_stays_a_plain_string(model, value, name, enum):
    structured = codec.structure({**value, name: "something_new"}, model)

    assert getattr(structured, name) == "something_new"
    assert type(getattr(structured, name)) is str
    assert codec.unstructure(structured)[name] == "something_new"


@pytest.mark.parametrize(("model", "value", "name", "enum"), OPEN_ENUMS)
def test_a_closed_set_is_the_same_for_type_checkers_and_for_the_server(model, value, name, enum):
    literal = attrs.fields_dict(model)[name].type

    assert literal is getattr(choices, enum.__name__)
    assert get_args(literal) == tuple(member.value for member in enum)


def test_people_are_shown_every_field_of_a_policy_by_its_kind():
    kinds = {UsdcNumber | None: "amount", tuple[str, ...] | None: "list", bool: "flag"}
    fields = {field.name: kinds[field.type] for field in attrs.fields(Policy)}

    assert {rule.name: rule.kind for rule in choices.POLICY_RULES} == fields


def test_every_literal_type_equals_its_enum():
    for enum in (ErrorCode, ReplayableStatus, TransactionStatusFilter):
        assert get_args(getattr(choices, enum.__name__)) == tuple(member.value for member in enum)


@pytest.mark.parametrize(("model", "value", "name", "enum"), OPEN_ENUMS)
@pytest.mark.parametrize("wrong", [None, 1, True, ["active"], {"a": 1}])
def test_an_enum_value_must_be_a_string(model, value, name, enum, wrong):
    assert faults({**value, name: wrong}, model) == {name: "must be a string"}


@pytest.mark.parametrize("status", TransferStatus)
def test_a_transfer_is_final_when_settled_rejected_or_failed(status):
    transfer = codec.structure({**TRANSFER, "status": status.value}, Transfer)

    assert transfer.is_final == (status in {"settled", "rejected", "failed"})


def test_a_transfer_of_an_unknown_status_is_not_final():
    assert not codec.structure({**TRANSFER, "status": "something_new"}, Transfer).is_final


# --- cattrs' traps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [1, 1.5, True, None, Decimal(1), ["Agent"], {"a": 1}])
def test_no_value_is_coerced_to_a_string(wrong):
    assert faults({**ACCOUNT, "name": wrong}, Account) == {"name": "must be a string"}


@pytest.mark.parametrize("wrong", [0, 1, "true", "", "false", None, [], Decimal(1)])
def test_no_value_is_coerced_to_a_boolean(wrong):
    assert faults({"paused": wrong}, PolicyChange) == {"paused": "must be true or false"}
    assert faults({**POLICY, "require_memo": wrong}, Policy) == {"require_memo": "must be true or false"}


@frozen(kw_only=True)
class Counted(Request):
    """A request with an integer, of which the contract has none in a body."""

    count: int = 0


@pytest.mark.parametrize("wrong", ["1", 1.0, True, None, Decimal(1), [1]])
def test_no_value_is_coerced_to_an_integer(wrong):
    assert faults({"count": wrong}, Counted) == {"count": "must be an integer"}


@pytest.mark.parametrize("wrong", [0, False, [], {}, Decimal(0)])
def test_no_empty_value_is_coerced_to_null(wrong):
    assert set(faults({**TRANSFER, "memo": wrong, "settled_at": wrong}, Transfer)) == {"memo", "settled_at"}


def test_a_str_enum_is_not_caught_by_the_strict_hook_of_str():
    query = codec.structure({"status": "settled"}, ListTransactions)

    assert query.status is TransactionStatusFilter.SETTLED
    assert faults({"status": "pending"}, ListTransactions) == {
        "status": "must be one of settled, rejected, all"
    }


def test_an_optional_str_enum_is_not_caught_by_the_strict_hook_of_str():
    query = codec.structure({"status": "paused"}, ListAccounts)

    assert query.status is AccountStatus.PAUSED
    assert faults({"status": "closed"}, ListAccounts) == {"status": "must be one of active, paused"}
    assert faults({"status": ["active"]}, ListAccounts) == {"status": "must be one of active, paused"}


def test_an_exact_decimal_is_structured_without_a_cattrs_hook():
    change = codec.structure({"max_daily_spend": Decimal("0.1")}, PolicyChange)

    assert change.max_daily_spend == Decimal("0.1")
    assert isinstance(change.max_daily_spend, Decimal)


@pytest.mark.parametrize("wrong", ["25", True, [1], {"usdc": 1}, 25.5])
def test_a_limit_is_a_json_number_and_nothing_else(wrong):
    assert faults({"max_daily_spend": wrong}, PolicyChange) == {"max_daily_spend": "must be a number"}


@pytest.mark.parametrize("model", REQUIRED, ids=named)
def test_a_missing_field_is_required_never_a_bare_key_error(model):
    assert faults({}, model) == dict.fromkeys(REQUIRED[model], "is required")


def test_a_missing_field_of_a_nested_object_is_named_with_its_path():
    policy = {**ACCOUNT, "policy": {**POLICY, "paused": None}}

    assert faults(policy, Account) == {"policy.paused": "must be true or false"}
    assert faults({"data": [{}], "cursor": "", "has_more": False}, PageBody[Balance]) == {
        "data[0].account_id": "is required",
        "data[0].balance_usdc": "is required",
        "data[0].last_updated": "is required",
    }


@pytest.mark.parametrize("model", [*RESPONSES, *REQUESTS], ids=named)
@pytest.mark.parametrize("wrong", [None, True, 1, Decimal("1.5"), "text", [], [{}]], ids=repr)
def test_a_model_must_be_an_object(model, wrong):
    assert faults(wrong, model) == {"body": "must be an object"}


def test_a_list_must_be_an_array():
    for wrong in ("text", {"0": "a"}, 1, True):
        assert faults({"categories": wrong}, PolicyChange) == {"categories": "must be an array"}
    assert faults({"categories": ["ok", 1, "", None, "x" * 65]}, PolicyChange) == {
        "categories[1]": "must be a string",
        "categories[2]": "must not be empty",
        "categories[3]": "must be a string",
        "categories[4]": "must have at most 64 characters",
    }


# --- Requests: strict, and every fault at once ------------------------------------------------------------


@pytest.mark.parametrize(("model", "value"), REQUESTS.items(), ids=named)
def test_unknown_fields_of_a_request_are_refused(model, value):
    assert faults({**value, "surprise": 1, "from_": 2}, model) == {
        "surprise": "is not a known field",
        "from_": "is not a known field",
    }


def test_the_name_of_an_unknown_field_is_shown_short_and_printable():
    (name,) = faults({"name": "a", "\x1b[31m" + "x" * 500: 1}, CreateAccount)

    assert len(name) <= 65
    assert name.isprintable()


def test_every_fault_of_a_request_is_named_at_once():
    body = {
        "from": 1,
        "amount": 25,
        "idempotency_key": "",
        "memo": "m" * 201,
        "category": "",
        "extra": None,
    }

    assert faults(body, CreateTransfer) == {
        "from": "must be a string",
        "to": "is required",
        "amount": 'must be a string such as "25.50"',
        "idempotency_key": "must not be empty",
        "memo": "must have at most 200 characters",
        "category": "must not be empty",
        "extra": "is not a known field",
    }


def test_every_fault_of_a_policy_is_named_at_once():
    body = {
        "max_single_transfer": "25",
        "max_daily_spend": Decimal("0.0000001"),
        "allowed_counterparties": [ACCOUNT_ID, "nobody", 5],
        "categories": [""],
        "require_memo": 1,
        "escalation_threshold": -1,
        "paused": None,
        "limit": 5,
    }

    assert faults(body, PolicyChange) == {
        "max_single_transfer": "must be a number",
        "max_daily_spend": "must have at most 6 decimals",
        "allowed_counterparties[1]": "must be an account_id or a base58 on-chain address",
        "allowed_counterparties[2]": "must be a string",
        "categories[0]": "must not be empty",
        "require_memo": "must be true or false",
        "escalation_threshold": "must be from 0 to 999999999.999999",
        "paused": "must be true or false",
        "limit": "is not a known field",
    }


@pytest.mark.parametrize("name", [name for name in POLICY_FIELDS if name not in ("require_memo", "paused")])
def test_null_clears_every_nullable_field(name):
    change = codec.structure({name: None}, PolicyChange)

    assert getattr(change, name) is None
    assert codec.unstructure(change) == {name: None}


def test_an_omitted_field_stays_unset():
    assert codec.structure({}, PolicyChange) == PolicyChange()
    assert codec.unstructure(PolicyChange()) == {}
    assert PolicyChange().paused is UNSET
    assert repr(UNSET) == "UNSET"
    assert not UNSET


def test_memo_idempotency_key_and_category_accept_their_maximum_length():
    longest = {
        **REQUESTS[CreateTransfer],
        "memo": "é" * 200,
        "idempotency_key": "k" * 128,
        "category": "c" * 64,
    }

    request = codec.structure(longest, CreateTransfer)

    assert len(request.memo or "") == 200
    assert faults(
        {**longest, "memo": "é" * 201, "idempotency_key": "k" * 129, "category": "c" * 65}, CreateTransfer
    ) == {
        "memo": "must have at most 200 characters",
        "idempotency_key": "must have at most 128 characters",
        "category": "must have at most 64 characters",
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def faults_or_none(value, model):
    """The faults of a value; none at all when it fits."""
    try:
        codec.structure(value, model)
    except InvalidValueError as error:
        return error.faults
    return None


@given(st.sampled_from([*RESPONSES, *REQUESTS]), json_values)
def test_any_value_gives_a_model_or_one_declared_error(model, value):
    found = faults_or_none(value, model)

    assert found is None or found
    assert all(isinstance(fault, FieldError) and fault.message for fault in found or ())


@given(st.data(), st.sampled_from([*RESPONSES.items(), *REQUESTS.items()]))
def test_any_values_in_known_fields_give_a_model_or_faults_of_those_fields(data, example):
    model, value = example
    changed = data.draw(st.dictionaries(st.sampled_from(sorted(value)), json_values, min_size=1))

    found = faults_or_none({**value, **changed}, model)

    assert {re.split(r"[.\[]", fault.field)[0] for fault in found or ()} <= set(changed)


# --- Secrets and errors -----------------------------------------------------------------------------------


def test_the_secret_of_a_webhook_is_not_in_its_repr():
    webhook = codec.structure({"secret": "whsec_PLANTED"}, NewWebhook)

    assert webhook.secret == "whsec_PLANTED"
    assert "PLANTED" not in repr(webhook)


def test_every_error_code_has_one_http_status():
    assert {code.value: code.status for code in ErrorCode} | {
        "policy_violation": 402,
        "account_paused": 402,
        "insufficient_balance": 402,
        "idempotency_conflict": 409,
        "invalid_recipient": 422,
        "chain_unavailable": 503,
        "unauthorized": 401,
        "forbidden": 403,
        "not_found": 404,
        "invalid_request": 400,
        "method_not_allowed": 405,
        "payload_too_large": 413,
        "unsupported_media_type": 415,
        "rate_limited": 429,
        "fee_budget_exceeded": 429,
        "precondition_failed": 412,
        "clock_not_manual": 409,
    } == {code.value: code.status for code in ErrorCode}


def test_an_error_body_omits_fields_that_do_not_apply():
    body = codec.unstructure(ErrorBody(error="not_found", message="No."))

    assert json.loads(json_text.print_json(body)) == {"error": "not_found", "message": "No."}


def test_no_other_file_lists_the_rules_of_a_policy():
    """A rule is declared in `contract/policies.py`, and decided in `engine/policy.py`."""
    names = [re.compile(rf"\b{name.replace('require_', 'requires?_')}\b") for name in POLICY_FIELDS]
    listing = {
        str(path.relative_to(ROOT))
        for package in ("agentpay", "agentpay_server")
        for path in (ROOT / package).rglob("*.py")
        if "_sync" not in path.parts and all(name.search(path.read_text("utf-8")) for name in names)
    }
    assert listing == {
        "agentpay/contract/policies.py",
        # What commands and the console show.
        "agentpay/contract/choices.py",
        "agentpay_server/engine/policy.py",
        # The methods that people read; the budget, in its own order.
        "agentpay/_async/policies.py",
        "agentpay/contract/ext/spending.py",
    }
