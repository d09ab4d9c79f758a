"""Payments behind HTTP 402 on the wire: what a caller may send, and what comes back."""

import pytest

from agentpay.contract import codec
from agentpay.contract.codec import InvalidValueError
from agentpay.contract.ext.payments import AuthorizePayment, Payment, PinSeller, site_of

ASKED = {
    "account_id": "acct_1",
    "idempotency_key": "forecast-7",
    "origin": "https://api.example.com",
    "headers": [["payment-required", "e30="], ["payment-required", "e30="]],
}
PAYMENT = {
    "transfer_id": "txn_1",
    "account_id": "acct_1",
    "idempotency_key": "key-1",
    "status": "submitted",
    "protocol": "x402_v2",
    "amount_usdc": "0.050000",
    "recipient": "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin",
    "fee_payer": None,
    "origin": "https://api.example.com",
    "url": None,
    "category": None,
    "memo": None,
    "header": {"name": "PAYMENT-SIGNATURE", "value": "e30="},
    "expires_at": "2026-01-31T12:00:00.000Z",
    "tx_signature": None,
    "settled_at": None,
    "outcome": None,
    "is_replay": False,
}


def test_headers_keep_their_order_and_may_repeat():
    asked = codec.structure(ASKED, AuthorizePayment)

    assert asked.headers == (("payment-required", "e30="), ("payment-required", "e30="))
    assert codec.parse_json(codec.print_json(codec.unstructure(asked)))["headers"] == ASKED["headers"]


@pytest.mark.parametrize(
    "headers",
    [None, "x", {"a": "b"}, ["ab"], [["a"]], [["a", "b", "c"]], [["a", 1]], [["a", "b"]] * 257],
    ids=["null", "text", "object", "no pair", "one", "three", "number", "too many"],
)
def test_other_headers_are_refused(headers):
    with pytest.raises(InvalidValueError, match="headers"):
        codec.structure({**ASKED, "headers": headers}, AuthorizePayment)


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:8402",
        "https://api.example.com",
        "https://api.example.com:8443",
        "https://xn--bcher-kva.example",
        "http://[::1]:8040",
        "http://a",
    ],
)
def test_a_normalized_origin_is_accepted(origin):
    assert codec.structure({**ASKED, "origin": origin}, AuthorizePayment).origin == origin


@pytest.mark.parametrize(
    "origin",
    [
        "api.example.com",
        "ftp://api.example.com",
        "https://API.example.com",
        "HTTPS://api.example.com",
        "https://api.example.com/",
        "https://api.example.com/forecast",
        "https://api.example.com:443",
        "http://api.example.com:80",
        "http://api.example.com:0",
        "http://api.example.com:65536",
        "https://user@api.example.com",
        "https://bücher.example",
        "https://",
        "https://-a",
        "https://a-",
        "https://api.example.com\n",
        "https://" + "a" * 300,
    ],
)
def test_another_form_of_an_origin_is_refused(origin):
    with pytest.raises(InvalidValueError, match="origin must be an origin"):
        codec.structure({**ASKED, "origin": origin}, AuthorizePayment)


def test_a_payment_round_trips():
    assert codec.unstructure(codec.structure(PAYMENT, Payment)) == PAYMENT


def test_a_refused_payment_has_error_and_message():
    refused = {**PAYMENT, "status": "rejected", "header": None, "error": "policy_violation", "message": "No."}

    assert codec.unstructure(codec.structure(refused, Payment)) == refused


def test_a_pin_may_be_empty_but_its_recipients_may_not():
    nothing = {"category": None, "max_amount": None, "recipients": None}
    assert codec.structure({}, PinSeller) == codec.structure(nothing, PinSeller) == PinSeller()
    with pytest.raises(InvalidValueError, match="recipients must not be empty"):
        codec.structure({"recipients": []}, PinSeller)
    with pytest.raises(InvalidValueError, match=r"recipients\[0\] must be a base58"):
        codec.structure({"recipients": ["acct_1"]}, PinSeller)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://api.example.com", "https://api.example.com"),
        ("HTTPS://API.Example.com.:443/path?query", "https://api.example.com"),
        ("http://api.example.com:8080", "http://api.example.com:8080"),
        ("https://me:secret@api.example.com", "https://api.example.com"),
        ("https://caf\u00e9.example", "https://xn--caf-dma.example"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_the_origin_of_a_url_is_normalized(url: str, origin: str) -> None:
    assert site_of(url).origin == origin


@pytest.mark.parametrize(
    "url", ["", "api.example.com", "ftp://a.example", "https://", "https://a..b", "https://a.example:x"]
)
def test_a_url_without_scheme_host_or_port_has_no_origin(url: str) -> None:
    with pytest.raises(ValueError, match="an http or https URL"):
        site_of(url)
