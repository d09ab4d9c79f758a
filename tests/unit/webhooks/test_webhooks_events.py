"""Events: a signed payload is the event that it says it is, or one error that names every fault."""

import json
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import attrs
import pytest
from webhook_world import ENVELOPE, MOMENT, PAYLOAD, SECRET, payload, signed

from agentpay._calls import deliveries
from agentpay.contract import json_text
from agentpay.contract.usdc import UsdcNumber, UsdcString
from agentpay.errors import FieldError, WebhookPayloadError, WebhookSignatureError
from agentpay.webhooks import (
    EVENT_CLASSES,
    RETRY_SCHEDULE,
    TransferSettled,
    TransferSettledData,
    UnknownEvent,
    unwrap,
)

CREATED = datetime(2026, 1, 31, 12, tzinfo=UTC)


def opened(body, **options):
    return unwrap(body, signed(body), SECRET, **options)


def test_a_delivery_becomes_an_event_of_the_class_of_its_type():
    match unwrap(PAYLOAD, signed(), SECRET):
        case TransferSettled(id="evt_a", created_at=moment, data=data):
            assert moment == CREATED
            assert data == TransferSettledData(
                transfer_id="txn_a",
                account_id="acct_a",
                amount_usdc=Decimal("1.5"),
                tx_signature="5ig",
                settled_at=CREATED,
            )
        case other:
            pytest.fail(f"{other!r}")


@pytest.mark.parametrize("name", EVENT_CLASSES)
def test_every_event_type_has_exactly_one_class(name):
    kind = EVENT_CLASSES[name]
    fields = attrs.fields(attrs.fields(kind).data.type)
    values = {UsdcString: "1.000000", UsdcNumber: 1, datetime: MOMENT}
    data = {field.name: values.get(field.type, "text") for field in fields if field.default is attrs.NOTHING}
    event = opened(payload(type=str(name), data=data))
    assert (type(event), event.type) == (kind, name)


@pytest.mark.parametrize("name", ["moon.landed", "transfer.Settled", "transfer.settled ", ""])
def test_an_unknown_type_becomes_an_unknown_event_with_raw_data(name):
    raw = {"amount": 1.5, "list": [1, {"deep": None}], "text": 'ü😀"\\'}
    event = opened(payload(type=name, data=raw))
    assert type(event) is UnknownEvent
    assert (event.type, event.data) == (name, {**raw, "amount": Decimal("1.5")})


def test_layout_and_unknown_fields_do_not_matter():
    for body in (
        b" \n" + PAYLOAD + b"\r\n",
        json.dumps(ENVELOPE, indent=2).encode(),
        payload(new={"a": [1]}),
        payload(data={**ENVELOPE["data"], "new": {"a": {"b": 'c"\\'}}}),
    ):
        assert opened(body) == opened(PAYLOAD)
    event = opened(payload(created_at=MOMENT.replace("Z", "+05:30")))
    assert event.created_at == datetime(2026, 1, 31, 6, 30, tzinfo=UTC)
    assert event.created_at.tzinfo is UTC
    for body in (PAYLOAD, payload(type="moon.landed")):
        assert pickle.loads(pickle.dumps(opened(body))) == opened(body)


REFUSED = {
    "nothing": (b"", "body"),
    "no JSON": (b"{", "body"),
    "more than JSON": (PAYLOAD + PAYLOAD, "body"),
    "not UTF-8": (b"\xff" + PAYLOAD, "body"),
    "UTF-16": (PAYLOAD.decode().encode("utf-16"), "body"),
    "a byte order mark": (b"\xef\xbb\xbf" + PAYLOAD, "body"),
    "an array": (b"[]", "body"),
    "a string": (b'"evt_a"', "body"),
    "null": (b"null", "body"),
    "NaN": (payload(data={"x": float("nan")}), "body"),
    "Infinity": (payload(new=float("-inf")), "body"),
    "a repeated key": (PAYLOAD[:-1] + b',"type":"session.settled"}', "body"),
    "a repeated key, deep": (payload(type="x", data={"a": 0}).replace(b'"a":0', b'"a":0,"a":0'), "body"),
    "a lone surrogate": (payload(id="\ud800"), "id"),
    "an encoded surrogate": (PAYLOAD.replace(b"evt_a", b"\xed\xa0\x80"), "body"),
    "NUL": (payload(id="\0"), "id"),
    "a control character": (PAYLOAD.replace(b"evt_a", b"evt\n"), "body"),
    "deep objects": (payload(type="x", data={}).replace(b"{}", b'{"a":' * 16 + b"{}" + b"}" * 16), "body"),
    "deep arrays": (b"[" * 100_000, "body"),
    "deep arrays, closed": (b"[" * 100_000 + b"]" * 100_000, "body"),
    "deeper objects": (b'{"a":' * 100_000, "body"),
    "a huge integer": (PAYLOAD.replace(b'"evt_a"', b"1" * 5000), "body"),
    "a huge exponent": (PAYLOAD.replace(b'"evt_a"', b"1e" + b"9" * 30), "body"),
    "a large exponent": (PAYLOAD.replace(b'"evt_a"', b"1e999999"), "id"),
    "an empty object": (b"{}", "created_at data id type"),
    "no id": (payload(id=""), "id"),
    "an id that is a number": (payload(id=1), "id"),
    "a type that is a number": (payload(type=1), "type"),
    "a type that is an array": (payload(type=["transfer.settled"]), "type"),
    "a type that is null": (payload(type=None), "type"),
    "a time without offset": (payload(created_at="2026-01-31T12:00:00"), "created_at"),
    "a time out of range": (payload(created_at="9999-12-31T23:59:59-23:00"), "created_at"),
    "a time that is a number": (payload(created_at=1767225600), "created_at"),
    "data that is null": (payload(data=None), "data"),
    "data that is an array": (payload(data=[]), "data"),
    "unknown data that is a string": (payload(type="moon.landed", data="x"), "data"),
    "unknown data that is missing": (payload(type="moon.landed").replace(b'"data"', b'"date"'), "data"),
    "data of another type": (
        payload(type="balance.low_threshold"),
        "data.balance_usdc data.usdc_token_account",
    ),
    **{
        f"an amount of {amount!r:.9}": (
            payload(data={**ENVELOPE["data"], "amount_usdc": amount}),
            "data.amount_usdc",
        )
        for amount in (1.5, "9" * 99, "\u0661", "-1")
    },
}


@pytest.mark.parametrize(("body", "fields"), REFUSED.values(), ids=REFUSED)
def test_a_signed_payload_that_is_not_an_event_is_refused_with_every_fault(body, fields):
    with pytest.raises(WebhookPayloadError, match="is not an event") as caught:
        opened(body)
    assert " ".join(sorted({fault.field for fault in caught.value.details})) == fields
    for fault in caught.value.details:
        assert f"{fault.field} {fault.message}" in str(caught.value)


def test_a_refusal_shows_only_field_names_of_the_payload_and_only_if_it_was_signed():
    body = payload(data={**ENVELOPE["data"], "amount_usdc": "PRIVATE", "PRIVATE": "PRIVATE"})
    with pytest.raises(WebhookPayloadError) as caught:
        opened(body)
    assert caught.value.details == (
        FieldError(field="data.amount_usdc", message="must be a decimal string with at most 6 decimals"),
    )
    assert "PRIVATE" not in str(caught.value)
    with pytest.raises(WebhookSignatureError):
        unwrap(b"{", signed(b"["), SECRET)


def test_the_fast_and_the_full_parser_agree():
    numbers, texts = ("0", "-0", "1.50", "1e3", "1E-7"), ('"\\u00e9"', '"\\ud83d\\ude00"', '"é"')
    for text in (*numbers, *texts, "true", "[]", "[[1]]", '{"a":{}}'):
        body = b'{"a":%s}' % text.encode()
        for layout in (body, b" " + body, body + b"\n"):
            value = deliveries._parse(layout)
            assert value == json_text.parse_request_json(body)
            assert repr(value) == repr(json_text.parse_request_json(body))


@pytest.mark.parametrize("tolerance", [RETRY_SCHEDULE, 9330, 9330.0, timedelta(hours=3), float("inf")])
@pytest.mark.parametrize("away", [timedelta(), RETRY_SCHEDULE, -RETRY_SCHEDULE])
def test_an_event_within_the_tolerance_is_accepted(tolerance, away):
    assert opened(PAYLOAD, tolerance=tolerance, now=CREATED + away).id == "evt_a"


def test_an_event_out_of_tolerance_is_refused():
    for away, said in ((1, "ago"), (-1, "ahead")):
        now = CREATED + away * (RETRY_SCHEDULE + timedelta(microseconds=1))
        with pytest.raises(WebhookSignatureError, match=f"9330 s {said}"):
            opened(PAYLOAD, tolerance=RETRY_SCHEDULE, now=now)
        assert opened(PAYLOAD, now=now).id == "evt_a"
    # The clock is the default.
    assert opened(payload(created_at=datetime.now(UTC).isoformat()), tolerance=9330).id == "evt_a"
    with pytest.raises(WebhookSignatureError, match="beyond the tolerance"):
        opened(payload(created_at="2020-01-01T00:00:00Z"), tolerance=9330)
    # Extreme moments can be compared.
    for moment in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"):
        for now in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), CREATED):
            assert opened(payload(created_at=moment), tolerance=1e12, now=now).id == "evt_a"


def test_a_tolerance_that_is_too_short_or_no_duration_is_refused():
    short = RETRY_SCHEDULE - timedelta(microseconds=1)
    for tolerance in (0, -1, 300, 9329.999, short, float("nan"), True):
        with pytest.raises(ValueError, match="2 h 35 min 30 s"):
            opened(PAYLOAD, tolerance=tolerance, now=CREATED)
    for tolerance in ("three hours", [], object()):
        with pytest.raises(TypeError, match="timedelta or seconds"):
            opened(PAYLOAD, tolerance=tolerance)
    with pytest.raises(ValueError, match="UTC offset"):
        opened(PAYLOAD, tolerance=9330, now=datetime(2026, 1, 31, 12))  # noqa: DTZ001 - the point
