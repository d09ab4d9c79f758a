"""Bad bodies at the edge: every fault is named, and nothing is changed or moved.

What a value may be, the contract decides: tests/contract has each form of an amount, a text, a limit. Here is
one of each kind for each endpoint, as it arrives by HTTP.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_world import UNKNOWN_ACCOUNT, faults, refused, state_of

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer

RANGE = "must be from 0 to 999999999.999999"
DECIMALS = "must have at most 6 decimals"
CONTROL = "must not contain control characters"


@pytest.fixture(autouse=True)
def _nothing_changes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever is refused leaves the database and the chain of the shared server as they were."""
    if "shared_server" not in request.fixturenames:
        yield
        return
    server = request.getfixturevalue("shared_server")
    request.getfixturevalue("shared_account")
    before = state_of(server)
    yield
    assert state_of(server) == before


def sent(http: httpx.Client, account: Account, target: str, body: dict[str, Any] | str) -> httpx.Response:
    """Send a body to `METHOD path`, with the account's identifier where `ACCOUNT` stands."""
    method, path = target.split(" ")
    # In ASCII, because httpx would refuse to send a lone surrogate.
    content = (body if isinstance(body, str) else json.dumps(body)).replace("ACCOUNT", account.account_id)
    return http.request(method, path.replace("ACCOUNT", account.account_id), content=content)


# --- Faults of form ---------------------------------------------------------------------------------------

TRANSFER = {"from": "ACCOUNT", "to": UNKNOWN_ACCOUNT, "amount": "1", "idempotency_key": "k"}
PAY, MAKE, PUT = "POST /v1/transfers", "POST /v1/accounts", "PUT /v1/accounts/ACCOUNT/policy"
FUND, KEY = "POST /ext/v1/sandbox/accounts/ACCOUNT/fund", "POST /ext/v1/console/agent-keys"
TENANT, ADVANCE = "POST /ext/v1/sandbox/operators", "POST /ext/v1/sandbox/clock/advance"
HOOK = "POST /v1/webhooks"
WEBHOOK = {"url": "https://a.example", "events": ["transfer.settled"]}

FAULTS: list[tuple[str, dict[str, Any] | str, dict[str, str]]] = [
    # Transfers
    (PAY, {}, dict.fromkeys(("from", "to", "amount", "idempotency_key"), "is required")),
    (PAY, {**TRANSFER, "amount": 25.5}, {"amount": 'must be a string such as "25.50"'}),
    (PAY, {**TRANSFER, "amount": "1e2"}, {"amount": ...}),
    (PAY, {**TRANSFER, "amount": "0.0000001"}, {"amount": ...}),
    (PAY, {**TRANSFER, "amount": "0"}, {"amount": ...}),
    (PAY, {**TRANSFER, "amount": "1" * 60_000}, {"amount": ...}),
    (PAY, {**TRANSFER, "to": None}, {"to": "must be a string"}),
    (PAY, {**TRANSFER, "from": ["x"]}, {"from": "must be a string"}),
    (PAY, {**TRANSFER, "category": None}, {"category": ...}),
    (PAY, {**TRANSFER, "memo": "\U0001f600" * 201}, {"memo": "must have at most 200 characters"}),
    (PAY, {**TRANSFER, "idempotency_key": ""}, {"idempotency_key": "must not be empty"}),
    (PAY, {**TRANSFER, "from_": "x"}, {"from_": "is not a known field"}),
    (PAY, {**TRANSFER, "memo": "a\0b"}, {"memo": ...}),
    (PAY, {**TRANSFER, "to": "x\udfff"}, {"to": ...}),
    (
        PAY,
        {"from": 1, "memo": "\0", "amount": 1},
        dict.fromkeys(("from", "memo", "amount", "to", "idempotency_key"), ...),
    ),
    (
        PAY,
        {"to": 1, "amount": "1e2", "memo": "m" * 201, "idempotency_key": "k" * 129, "x": 1, "y": 2},
        dict.fromkeys(("from", "to", "amount", "memo", "idempotency_key", "x", "y"), ...),
    ),
    # Accounts
    (MAKE, {"metadata": {}}, {"name": "is required"}),
    (MAKE, {"name": None}, {"name": "must be a string"}),
    (MAKE, {"name": " \u00a0\u2003"}, {"name": "must not be empty"}),
    (MAKE, {"name": "x" * 101}, {"name": "must have at most 100 characters"}),
    (MAKE, {"name": "\nab"}, {"name": CONTROL}),
    (MAKE, {"name": "x", "metadata": None}, {"metadata": ...}),
    (MAKE, {"name": "x", "metadata": [{}]}, {"metadata": "must be an object"}),
    *(
        (MAKE, {"name": "x", field: "y"}, {field: "is not a known field"})
        for field in ("policy", "Name", "", "a.b")
    ),
    (
        MAKE,
        {"metadata": {"a": "x" * 17_000}, "surprise": 1},
        dict.fromkeys(("name", "metadata", "surprise"), ...),
    ),
    (MAKE, {"name": "x" * 20_000}, {"name": ...}),
    # Policies
    (PUT, {"max_daily_spend": "1"}, {"max_daily_spend": "must be a number"}),
    (PUT, {"max_single_transfer": True}, {"max_single_transfer": "must be a number"}),
    *(
        (PUT, f'{{"escalation_threshold":{text}}}', {"escalation_threshold": RANGE})
        for text in ("-1", "1e9", "1" * 4_000)
    ),
    *(
        (PUT, f'{{"max_daily_spend":{text}}}', {"max_daily_spend": DECIMALS})
        for text in ("0.0000001", "1e-999999")
    ),
    *(
        (PUT, f'{{"max_daily_spend":{text}}}', {"body": ...})
        for text in ("NaN", "-Infinity", "01", "1.", "0x10")
    ),
    (
        PUT,
        {"paused": None, "require_memo": 1},
        dict.fromkeys(("paused", "require_memo"), "must be true or false"),
    ),
    (PUT, {"categories": {"0": "x"}}, {"categories": "must be an array"}),
    (
        PUT,
        {"max_single_transfer": 5, "paused": True, "max_monthly_spend": 1},
        {"max_monthly_spend": "is not a known field"},
    ),
    (
        PUT,
        {
            "allowed_counterparties": ["ACCOUNT", "nobody", None, "acct_1", "1" * 31],
            "categories": ["ok", "", "c" * 65, 1],
            "max_daily_spend": -1,
            "paused": "no",
            "account_id": "x",
            "updated_at": None,
        },
        dict.fromkeys(
            (
                *(f"allowed_counterparties[{index}]" for index in (1, 2, 3, 4)),
                *(f"categories[{index}]" for index in (1, 2, 3)),
                *("max_daily_spend", "paused", "account_id", "updated_at"),
            ),
            ...,
        ),
    ),
    # Webhooks: which URL may be registered, the tests of addresses have
    *(
        (HOOK, {**WEBHOOK, name: None}, {name: ...})
        for name in ("url", "events", "account_ids", "low_balance_threshold_usdc")
    ),
    # The console and the sandbox
    (KEY, {}, {"account_id": "is required"}),
    (KEY, {"account_id": "x" * 129}, {"account_id": "must have at most 128 characters"}),
    (KEY, {"account_id": UNKNOWN_ACCOUNT, "key": "x"}, {"key": "is not a known field"}),
    *(
        (KEY, {"account_id": "ACCOUNT", "name": name}, {"name": ...})
        for name in (" ", "x" * 101, "a\nb", 1, None)
    ),
    *((FUND, {"amount": amount}, {"amount": ...}) for amount in ("0", "-1", "1e2", "1000000000", None, 1.5)),
    *((TENANT, {"name": name}, {"name": ...}) for name in (None, " ", "x" * 101)),
    *(
        (ADVANCE, f'{{"seconds":{text}}}', {"seconds": ...})
        for text in ("-0.001", "1e9", '"60"', "true", "null")
    ),
]


@pytest.mark.parametrize(("target", "body", "found"), FAULTS, ids=lambda value: str(value)[:40])
def test_every_fault_of_a_body_is_named(
    shared_server: AgentPayServer,
    shared_http: httpx.Client,
    shared_account: Account,
    target: str,
    body: dict[str, Any] | str,
    found: dict[str, Any],
) -> None:
    """With its message, where the endpoint rather than the kind of the value decides it."""
    messages = faults(sent(shared_http, shared_account, target, body))
    assert {name: ... if found.get(name) is ... else text for name, text in messages.items()} == found


# --- What is well-formed and does not exist ---------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["", "x", UNKNOWN_ACCOUNT, "acct_" + "0" * 27, "acct_" + "x" * 60_000, "'; --", "address"]
)
def test_an_unknown_source_is_404(
    shared_server: AgentPayServer, shared_http: httpx.Client, shared_account: Account, source: str
) -> None:
    source = shared_account.usdc_token_account if source == "address" else source
    body = refused(sent(shared_http, shared_account, PAY, {**TRANSFER, "from": source}), "not_found")
    assert len(body["message"]) < 300


@pytest.mark.parametrize("to", ["", " ", "1" * 31, "0x" + "a" * 40, "@payer", "x" * 60_000])
def test_a_recipient_of_another_form_is_422(
    shared_server: AgentPayServer, shared_http: httpx.Client, shared_account: Account, to: str
) -> None:
    body = refused(sent(shared_http, shared_account, PAY, {**TRANSFER, "to": to}), "invalid_recipient")
    assert len(body["message"]) < 300


def test_an_agent_key_of_an_unknown_account_is_404(
    shared_server: AgentPayServer, shared_http: httpx.Client
) -> None:
    for account_id in (UNKNOWN_ACCOUNT, "", "x"):
        refused(shared_http.post("/ext/v1/console/agent-keys", json={"account_id": account_id}), "not_found")


# --- What is allowed, at its bounds -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling", ["plain", "two bytes each", "escaped", "white space", "number", "last", "escaped name"]
)
def test_metadata_of_16_kib_as_sent_is_stored_and_one_byte_more_is_400(
    http: httpx.Client, spelling: str
) -> None:
    limit = 16 * 1024

    def body(extra: int) -> bytes:
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


def test_a_transfer_at_every_bound_is_settled(
    server: AgentPayServer, client: AgentPay, http: httpx.Client
) -> None:
    payer, payee = client.accounts.create(name="x" * 100), client.accounts.create(name="y")
    server.sandbox.fund(payer.account_id, "999999999.999999")
    longest = {"memo": "é" * 200, "category": "c" * 64}
    for number, amount in enumerate(["0.000001", "000000001.5", "999999998.499998"]):
        key = f"{number}" + "\U0001f600" * 127
        parties = {"from": payer.account_id, "to": payee.account_id}
        response = http.post(
            "/v1/transfers", json={**parties, "amount": amount, **longest, "idempotency_key": key}
        )
        assert response.status_code == 200, response.text
        assert (response.json()["memo"], response.json()["idempotency_key"]) == (longest["memo"], key)
    assert client.accounts.balance(payer.account_id).balance_usdc == 0
