"""Bad input, endpoint by endpoint: its documented error, every fault named, nothing changed or moved."""

import json
from typing import Any

import httpx
import pytest
from server_world import UNKNOWN_ACCOUNT, faults, refused, state_of

from agentpay import AgentPay
from agentpay_server import AgentPayServer

NOT_STRINGS: list[Any] = [None, 1, 1.5, True, [], ["x"], {}, {"x": 1}]
NOT_NUMBERS: list[Any] = ["1", "", True, False, [], [1], {}]
NOT_BOOLEANS: list[Any] = [None, 0, 1, "true", "", [], {}]


@pytest.fixture(autouse=True)
def _nothing_changes(request):
    """Whatever is refused leaves the database and the chain of the shared server as they were."""
    if "shared_server" not in request.fixturenames:
        yield
        return
    server = request.getfixturevalue("shared_server")
    request.getfixturevalue("shared_account")
    request.getfixturevalue("shared_agent_http")
    before = state_of(server)
    yield
    assert state_of(server) == before


# --- POST /v1/transfers -----------------------------------------------------------------------------------


def transfer(http, account, changes=None, *, without=()):
    body = {
        "from": account.account_id,
        "to": UNKNOWN_ACCOUNT,
        "amount": "1",
        "idempotency_key": "k",
        **(changes or {}),
    }
    # In ASCII, because httpx would refuse to send a lone surrogate.
    content = json.dumps({name: body[name] for name in body if name not in without})
    return http.post("/v1/transfers", content=content)


@pytest.mark.parametrize(
    "amount",
    [
        *[
            "0",
            "0.0",
            "0.000000",
            "0.0000001",
            "1.0000001",
            "1.0000000",
            "-1",
            "-0.000001",
            "+1",
            "",
            " ",
            " 1",
            "1 ",
        ],
        *[
            "1e2",
            "1E2",
            "1e-2",
            "1e999999",
            "NaN",
            "nan",
            "Infinity",
            "inf",
            "0x10",
            "1_000",
            "1,5",
            "1,000.00",
            ".5",
        ],
        *[
            "5.",
            "1..2",
            "--1",
            "1/2",
            "1000000000",
            "1" * 60_000,
            "one",
            "\u0661",
            "\uff11",
            "1\n",
            "1\u00a0",
            "$1",
        ],
    ],
    ids=lambda amount: repr(amount)[:20],
)
def test_an_amount_of_another_form_is_400(shared_server, shared_http, shared_account, amount):
    found = faults(transfer(shared_http, shared_account, {"amount": amount}))

    assert set(found) == {"amount"}
    assert found["amount"].startswith("must be ")


@pytest.mark.parametrize("amount", [None, 1, 25.5, 1e2, -1, True, [], ["1"], {}, {"usdc": "1"}])
def test_an_amount_must_be_a_string(shared_server, shared_http, shared_account, amount):
    assert faults(transfer(shared_http, shared_account, {"amount": amount})) == {
        "amount": 'must be a string such as "25.50"'
    }


@pytest.mark.parametrize("amount", ["NaN", "Infinity", "1e999999999", "1.0e400"])
def test_a_number_that_is_ambiguous_json_is_400(shared_server, shared_http, shared_account, amount):
    body = f'{{"from":"{shared_account.account_id}","to":"x","amount":{amount},"idempotency_key":"k"}}'

    assert set(faults(shared_http.post("/v1/transfers", content=body))) in ({"body"}, {"amount"})


@pytest.mark.parametrize("name", ["from", "to", "idempotency_key"])
@pytest.mark.parametrize("value", NOT_STRINGS)
def test_a_text_of_another_type_is_400(shared_server, shared_http, shared_account, name, value):
    assert faults(transfer(shared_http, shared_account, {name: value})) == {name: "must be a string"}


@pytest.mark.parametrize("name", ["memo", "category"])
@pytest.mark.parametrize("value", [value for value in NOT_STRINGS if value is not None])
def test_an_optional_text_of_another_type_is_400(shared_server, shared_http, shared_account, name, value):
    assert set(faults(transfer(shared_http, shared_account, {name: value}))) == {name}


@pytest.mark.parametrize("name", ["from", "to", "amount", "idempotency_key"])
def test_a_missing_field_is_400(shared_server, shared_http, shared_account, name):
    assert faults(transfer(shared_http, shared_account, without=[name])) == {name: "is required"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"memo": "m" * 201}, {"memo": "must have at most 200 characters"}),
        ({"memo": "\U0001f600" * 201}, {"memo": "must have at most 200 characters"}),
        ({"idempotency_key": "k" * 129}, {"idempotency_key": "must have at most 128 characters"}),
        ({"idempotency_key": ""}, {"idempotency_key": "must not be empty"}),
        ({"category": "c" * 65}, {"category": "must have at most 64 characters"}),
        ({"category": ""}, {"category": "must not be empty"}),
        ({"surprise": 1}, {"surprise": "is not a known field"}),
        ({"from_": "x"}, {"from_": "is not a known field"}),
        ({"amount_usdc": "1"}, {"amount_usdc": "is not a known field"}),
        ({"Amount": "1"}, {"Amount": "is not a known field"}),
        ({"transfer_id": "txn_x"}, {"transfer_id": "is not a known field"}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_value_out_of_bounds_or_unknown_is_400(shared_server, shared_http, shared_account, changes, found):
    assert faults(transfer(shared_http, shared_account, changes)) == found


@pytest.mark.parametrize("name", ["to", "memo", "idempotency_key", "category"])
@pytest.mark.parametrize("value", ["\0", "a\0b", "\ud800", "x\udfff"])
def test_nul_and_lone_surrogates_are_400(shared_server, shared_http, shared_account, name, value):
    assert set(faults(transfer(shared_http, shared_account, {name: value}))) == {name}


def test_a_nul_does_not_hide_other_faults(shared_server, shared_http, shared_account):
    changes = {"memo": "\0", "amount": 1}
    found = faults(transfer(shared_http, shared_account, changes, without=["to"]))
    assert set(found) == {"memo", "amount", "to"}


def test_all_faults_are_named_at_once(shared_server, shared_http, shared_account):
    changes = {"to": 1, "amount": "1e2", "memo": "m" * 201, "idempotency_key": "k" * 129, "x": 1, "y": 2}

    response = transfer(shared_http, shared_account, changes, without=["from"])

    assert set(faults(response)) == {"from", "to", "amount", "memo", "idempotency_key", "x", "y"}


@pytest.mark.parametrize(
    "source", ["", "x", UNKNOWN_ACCOUNT, "acct_" + "0" * 27, "acct_" + "x" * 60_000, "'; --"]
)
def test_an_unknown_source_is_404(shared_server, shared_http, shared_account, source):
    body = refused(transfer(shared_http, shared_account, {"from": source}), "not_found")

    assert len(body["message"]) < 300


def test_the_source_may_not_be_an_address(shared_server, shared_http, shared_account):
    refused(transfer(shared_http, shared_account, {"from": shared_account.usdc_token_account}), "not_found")


@pytest.mark.parametrize(
    "to",
    [
        *["", " ", "x", UNKNOWN_ACCOUNT, "acct_", "1" * 32, "1" * 31, "0x" + "a" * 40, "@payer", "z" * 44],
        *["x" * 60_000, "So11111111111111111111111111111111111111112", "acct_01KDVDNA00SC40R341KDAD8HXB"],
        "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
    ],
    ids=lambda to: repr(to)[:24],
)
def test_a_recipient_that_can_hold_no_usdc_is_422(shared_server, shared_http, shared_account, to):
    body = refused(transfer(shared_http, shared_account, {"to": to}), "invalid_recipient")

    assert len(body["message"]) < 300


def test_a_wallet_address_is_an_invalid_recipient(shared_server, shared_http, shared_account):
    body = refused(
        transfer(shared_http, shared_account, {"to": shared_account.chain_address}), "invalid_recipient"
    )

    assert shared_account.chain_address in body["message"]


def test_the_source_is_an_invalid_recipient(shared_server, shared_http, shared_account):
    refused(transfer(shared_http, shared_account, {"to": shared_account.account_id}), "invalid_recipient")
    refused(
        transfer(shared_http, shared_account, {"to": shared_account.usdc_token_account}), "invalid_recipient"
    )


@pytest.mark.parametrize("path", ["/v1/transfers/txn_x", "/v1/transfers/acct_01kdvdna0049bdrk9b68rp8kma"])
def test_an_unknown_transfer_is_404(shared_server, shared_http, path):
    refused(shared_http.get(path), "not_found")


# --- POST /v1/accounts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOT_STRINGS)
def test_a_name_must_be_a_string(shared_server, shared_http, name):
    assert faults(shared_http.post("/v1/accounts", json={"name": name})) == {"name": "must be a string"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must not be empty"),
        (" \u00a0\u2003", "must not be empty"),
        ("x" * 101, "must have at most 100 characters"),
        ("a\nb", "must not contain control characters"),
        ("\nab", "must not contain control characters"),
        ("ab\t", "must not contain control characters"),
        (" \t", "must not contain control characters"),
        ("a\x1bb", "must not contain control characters"),
        ("a\x7fb", "must not contain control characters"),
        ("a\x85b", "must not contain control characters"),
    ],
)
def test_a_name_out_of_bounds_is_400(shared_server, shared_http, name, message):
    assert faults(shared_http.post("/v1/accounts", json={"name": name})) == {"name": message}


@pytest.mark.parametrize("metadata", [1, 1.5, "x", "{}", True, [], [{}]])
def test_metadata_must_be_an_object(shared_server, shared_http, metadata):
    response = shared_http.post("/v1/accounts", json={"name": "x", "metadata": metadata})

    assert faults(response) == {"metadata": "must be an object"}


@pytest.mark.parametrize("body", [{}, {"metadata": {}}])
def test_an_account_without_a_name_is_400(shared_server, shared_http, body):
    assert faults(shared_http.post("/v1/accounts", json=body)) == {"name": "is required"}


@pytest.mark.parametrize(
    "field", ["policy", "account_id", "handle", "balance_usdc", "status", "Name", "", "a.b"]
)
def test_an_account_with_an_unknown_field_is_400(shared_server, shared_http, field):
    response = shared_http.post("/v1/accounts", json={"name": "x", field: "y"})

    assert faults(response) == {field: "is not a known field"}


@pytest.mark.parametrize(
    "spelling", ["plain", "two bytes each", "escaped", "white space", "number", "last", "escaped name"]
)
def test_metadata_of_16_kib_as_sent_is_stored_and_one_byte_more_is_400(http, spelling):
    limit = 16 * 1024

    def body(extra):
        size = limit + extra
        name, metadata = b'"metadata"', b'{"a":"' + b"x" * (size - 8) + b'"}'
        if spelling == "two bytes each":
            metadata = b'{"a":"' + "é".encode() * ((size - 8) // 2) + b"x" * (size % 2) + b'"}'
        elif spelling == "escaped":
            metadata = b'{"a":"' + b"\\u0041" * ((size - 8) // 6) + b"x" * ((size - 8) % 6) + b'"}'
        elif spelling == "white space":
            metadata = b"{" + b" \n\t\r" * ((size - 2) // 4) + b" " * ((size - 2) % 4) + b"}"
        elif spelling == "number":
            metadata = b'{"a":1.' + b"1" * (size - 8) + b"}"
        elif spelling == "escaped name":
            name = b'"m\\u0065tadata"'
        assert len(metadata) == size
        if spelling == "last":
            return b' { "name" : "x" , ' + name + b" : " + metadata + b" } "
        return b"{" + name + b":" + metadata + b',"name":"x"}'

    assert http.post("/v1/accounts", content=body(0)).status_code == 201
    assert faults(http.post("/v1/accounts", content=body(1))) == {
        "metadata": "must be at most 16384 bytes of JSON"
    }


def test_oversized_metadata_is_listed_with_other_faults(shared_server, shared_http):
    response = shared_http.post("/v1/accounts", json={"metadata": {"a": "x" * 17_000}, "surprise": 1})

    assert set(faults(response)) == {"name", "metadata", "surprise"}


def test_a_large_body_without_metadata_has_no_metadata_fault(shared_server, shared_http):
    assert set(faults(shared_http.post("/v1/accounts", json={"name": "x" * 20_000}))) == {"name"}


# --- PUT /v1/accounts/{id}/policy -------------------------------------------------------------------------


def put_policy(http, account, **fields):
    return http.put(f"/v1/accounts/{account.account_id}/policy", json=fields)


@pytest.mark.parametrize("name", ["max_single_transfer", "max_daily_spend", "escalation_threshold"])
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_limit_must_be_a_number(shared_server, shared_http, shared_account, name, value):
    assert faults(put_policy(shared_http, shared_account, **{name: value})) == {name: "must be a number"}


@pytest.mark.parametrize("name", ["max_single_transfer", "max_daily_spend", "escalation_threshold"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-1", "must be from 0 to 999999999.999999"),
        ("-0.000001", "must be from 0 to 999999999.999999"),
        ("1000000000", "must be from 0 to 999999999.999999"),
        ("1e9", "must be from 0 to 999999999.999999"),
        ("1e999999", "must be from 0 to 999999999.999999"),
        ("1" * 4_000, "must be from 0 to 999999999.999999"),
        ("0.0000001", "must have at most 6 decimals"),
        ("25.1234567", "must have at most 6 decimals"),
        ("999999999.9999999", "must have at most 6 decimals"),
        ("1e-7", "must have at most 6 decimals"),
        ("1e-999999", "must have at most 6 decimals"),
    ],
    ids=lambda value: value[:20],
)
def test_a_limit_out_of_range_is_400(shared_server, shared_http, shared_account, name, value, message):
    path = f"/v1/accounts/{shared_account.account_id}/policy"

    assert faults(shared_http.put(path, content=f'{{"{name}":{value}}}')) == {name: message}


@pytest.mark.parametrize("name", ["require_memo", "paused"])
@pytest.mark.parametrize("value", NOT_BOOLEANS)
def test_a_flag_must_be_a_boolean(shared_server, shared_http, shared_account, name, value):
    assert faults(put_policy(shared_http, shared_account, **{name: value})) == {name: "must be true or false"}


@pytest.mark.parametrize("name", ["allowed_counterparties", "categories"])
@pytest.mark.parametrize("value", ["x", 1, True, {}, {"0": "x"}])
def test_a_list_must_be_an_array(shared_server, shared_http, shared_account, name, value):
    assert faults(put_policy(shared_http, shared_account, **{name: value})) == {name: "must be an array"}


def test_every_fault_of_a_policy_has_its_path(shared_server, shared_http, shared_account):
    response = put_policy(
        shared_http,
        shared_account,
        allowed_counterparties=[shared_account.account_id, "nobody", None, "acct_1", "1" * 31],
        categories=["ok", "", "c" * 65, 1],
        max_daily_spend=-1,
        paused="no",
        account_id="x",
        updated_at=None,
    )

    assert set(faults(response)) == {
        *(f"allowed_counterparties[{index}]" for index in (1, 2, 3, 4)),
        *(f"categories[{index}]" for index in (1, 2, 3)),
        *("max_daily_spend", "paused", "account_id", "updated_at"),
    }


def test_an_invalid_change_leaves_the_policy_unchanged(shared_server, shared_http, shared_account):
    path = f"/v1/accounts/{shared_account.account_id}/policy"
    before = shared_http.get(path)

    faults(put_policy(shared_http, shared_account, max_single_transfer=5, paused=True, require_memo=None))

    after = shared_http.get(path)
    assert (after.content, after.headers["etag"]) == (before.content, before.headers["etag"])


# --- Console and sandbox ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, {"account_id": "is required"}),
        ({"account_id": 1}, {"account_id": "must be a string"}),
        ({"account_id": None}, {"account_id": "must be a string"}),
        ({"account_id": "x" * 129}, {"account_id": "must have at most 128 characters"}),
        ({"account_id": UNKNOWN_ACCOUNT, "key": "x"}, {"key": "is not a known field"}),
    ],
)
def test_a_malformed_agent_key_request_is_400(shared_server, shared_http, body, found):
    assert faults(shared_http.post("/ext/v1/console/agent-keys", json=body)) == found


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\nb", 1, True, []])
def test_the_name_of_an_agent_key_has_the_bounds_of_a_name(shared_server, shared_http, shared_account, name):
    body = {"account_id": shared_account.account_id, "name": name}

    assert set(faults(shared_http.post("/ext/v1/console/agent-keys", json=body))) == {"name"}


def test_an_agent_key_of_an_unknown_account_is_404(shared_server, shared_http):
    for account_id in (UNKNOWN_ACCOUNT, "", "x"):
        refused(shared_http.post("/ext/v1/console/agent-keys", json={"account_id": account_id}), "not_found")


@pytest.mark.parametrize("amount", ["0", "-1", "1e2", "1.0000001", "1000000000", "", None, 1, 1.5, True])
def test_funding_validates_its_amount_like_a_transfer(shared_server, shared_http, shared_account, amount):
    path = f"/ext/v1/sandbox/accounts/{shared_account.account_id}/fund"

    assert set(faults(shared_http.post(path, json={"amount": amount}))) == {"amount"}


@pytest.mark.parametrize("name", [None, "", " ", "x" * 101, 1, "a\0"])
def test_a_tenants_name_has_the_bounds_of_a_name(shared_server, shared_http, name):
    assert set(faults(shared_http.post("/ext/v1/sandbox/operators", json={"name": name}))) in (
        {"name"},
        {"body"},
    )


@pytest.mark.parametrize("seconds", ["-1", "-0.001", "1e9", "1e999999", '"60"', "true", "null", "[]", "{}"])
def test_an_invalid_advance_is_refused(shared_server, shared_http, seconds):
    now = shared_http.get("/ext/v1/sandbox/clock").json()

    assert set(
        faults(shared_http.post("/ext/v1/sandbox/clock/advance", content=f'{{"seconds":{seconds}}}'))
    ) == {"seconds"}

    assert shared_http.get("/ext/v1/sandbox/clock").json() == now


# --- What is allowed, at its bounds -----------------------------------------------------------------------


def test_a_transfer_at_every_bound_is_settled(server: AgentPayServer, client: AgentPay, http: httpx.Client):
    payer, payee = client.accounts.create(name="x" * 100), client.accounts.create(name="y")
    server.sandbox.fund(payer.account_id, "999999999.999999")
    longest = {"memo": "é" * 200, "idempotency_key": "\U0001f600" * 128, "category": "c" * 64}

    for number, amount in enumerate(["0.000001", "000000001.5", "999999998.499998"]):
        body = {
            "from": payer.account_id,
            "to": payee.account_id,
            "amount": amount,
            **longest,
            "idempotency_key": f"{number}" + longest["idempotency_key"][1:],
        }
        response = http.post("/v1/transfers", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["memo"] == longest["memo"]
        assert response.json()["idempotency_key"] == body["idempotency_key"]

    assert client.accounts.balance(payer.account_id).balance_usdc == 0
