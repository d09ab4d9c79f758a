"""Events: the envelope and the payloads have exactly the fields of interface EV1."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest

from agentpay.contract import choices, codec, events, json_text
from agentpay.contract.events import EVENT_CLASSES, EVENTS, AnyEvent, Event, UnknownEvent

ROOT = Path(__file__).resolve().parents[2]
MOMENT = "2026-01-31T12:00:00.000Z"

PAYLOADS: dict[str, dict[str, Any]] = {
    "transfer.initiated": {
        "transfer_id": "txn_a",
        "account_id": "acct_a",
        "to": "acct_b",
        "amount_usdc": "1.500000",
        "tx_signature": "5ig",
    },
    "transfer.settled": {
        "transfer_id": "txn_a",
        "account_id": "acct_a",
        "amount_usdc": "1.500000",
        "tx_signature": "5ig",
        "settled_at": MOMENT,
    },
    "transfer.rejected": {
        "account_id": "acct_a",
        "rejection_reason": "policy_violation",
        "transfer_id": "txn_a",
        "to": "acct_b",
        "amount_usdc": "1.500000",
        "message": "No.",
    },
    "session.opened": {
        "session_id": "sess_a",
        "cap_usdc": "5.000000",
        "account_id": "acct_a",
        "to": "acct_b",
        "category": "data",
        "tx_signature": "5ig",
    },
    "session.cap_warning": {
        "session_id": "sess_a",
        "running_total_usdc": "4.500000",
        "cap_usdc": "5.000000",
    },
    "session.cap_reached": {
        "session_id": "sess_a",
        "account_id": "acct_a",
        "running_total_usdc": "5.000000",
        "cap_usdc": "5.000000",
    },
    "session.settled": {
        "session_id": "sess_a",
        "account_id": "acct_a",
        "cap_usdc": "5.000000",
        "settled_usdc": "4.500000",
        "returned_usdc": "0.500000",
        "tx_signature": "5ig",
        "settled_at": MOMENT,
    },
    "balance.low_threshold": {
        "account_id": "acct_a",
        "balance_usdc": "0.100000",
        "usdc_token_account": "token",
    },
    "escalation.required": {
        "transfer_id": "txn_a",
        "account_id": "acct_a",
        "to": "acct_b",
        "amount_usdc": "1.500000",
        "memo": None,
        "escalation_threshold": 1,
    },
}
IN_THE_CONTRACT: dict[str, set[str]] = {
    "transfer.initiated": set(),
    "transfer.rejected": {"account_id", "rejection_reason"},
    "session.opened": {"session_id", "cap_usdc"},
    "session.cap_reached": set(),
    "escalation.required": set(),
}


def envelope(event_type):
    return {"id": "evt_a", "type": event_type, "created_at": MOMENT, "data": PAYLOADS[event_type]}


def test_the_event_types_are_those_of_the_contract():
    assert set(EVENTS) == set(PAYLOADS)
    assert list(EVENT_CLASSES) == list(EVENTS)


def test_what_type_checkers_read_equals_the_registry():
    assert get_args(choices.EventType) == tuple(EVENTS)
    assert get_args(AnyEvent) == (*EVENT_CLASSES.values(), UnknownEvent)
    assert {"AnyEvent", "EVENT_CLASSES", "Event", "UnknownEvent"} == set(events.__all__) - {
        model.__name__ for kind in EVENTS.values() for model in (kind.model, kind.data)
    }


def test_no_other_file_lists_the_event_types():
    """A new type needs a line only in these: names, and classes. The scene that causes it is a file."""
    names = [
        re.compile(rf"[\"']{re.escape(name)}[\"']|EventType\.{name.replace('.', '_').upper()}")
        for name in EVENTS
    ]
    listing = {
        str(path.relative_to(ROOT))
        for package in ("agentpay", "agentpay_server")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".js")
        for text in (path.read_text("utf-8"),)
        if sum(bool(name.search(text)) for name in names) > len(names) * 2 // 3
    }
    assert listing == {
        "agentpay/contract/choices.py",
        "agentpay/contract/events.py",
    }


def test_every_kind_of_event_has_a_sentence_of_one_line():
    for kind in EVENTS.values():
        assert re.fullmatch(r"[A-Z].{10,100}\.", kind.sentence), kind.name


@pytest.mark.parametrize("event_type", PAYLOADS)
def test_every_event_round_trips(event_type):
    model = EVENT_CLASSES[event_type]

    event = codec.structure(json_text.parse_json(json_text.print_json(envelope(event_type))), model)

    assert json_text.parse_json(json_text.print_json(codec.unstructure(event))) == envelope(event_type)


@pytest.mark.parametrize("event_type", PAYLOADS)
def test_a_payload_has_exactly_the_documented_fields(event_type):
    data = attrs.fields_dict(EVENT_CLASSES[event_type])["data"].type

    assert {attribute.name for attribute in attrs.fields(data)} == set(PAYLOADS[event_type])


@pytest.mark.parametrize("event_type", PAYLOADS)
def test_the_envelope_has_exactly_four_fields(event_type):
    names = [attribute.name for attribute in attrs.fields(EVENT_CLASSES[event_type])]
    assert sorted(names) == ["created_at", "data", "id", "type"]


@pytest.mark.parametrize("event_type", IN_THE_CONTRACT)
def test_fields_outside_the_contract_may_be_missing(event_type):
    shown = {name: PAYLOADS[event_type][name] for name in IN_THE_CONTRACT[event_type]}

    event = codec.structure({**envelope(event_type), "data": shown}, EVENT_CLASSES[event_type])

    assert {name: codec.unstructure(event.data)[name] for name in shown} == shown
    assert all(getattr(event.data, name) is None for name in PAYLOADS[event_type].keys() - shown.keys())


@pytest.mark.parametrize("event_type", PAYLOADS)
def test_unknown_fields_of_an_event_are_ignored(event_type):
    grown = {**envelope(event_type), "new": 1, "data": {**PAYLOADS[event_type], "new": {"x": 1}}}

    model = EVENT_CLASSES[event_type]

    assert codec.structure(grown, model) == codec.structure(envelope(event_type), model)


def test_an_event_serialized_through_its_envelope_has_its_payload_in_wire_form():
    settled = codec.structure(envelope("transfer.settled"), EVENT_CLASSES["transfer.settled"])
    event = Event(
        id="evt_a",
        type="transfer.settled",
        created_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        data=settled.data,
    )

    assert codec.unstructure(event) == envelope("transfer.settled")


def test_an_unknown_event_keeps_its_raw_data():
    raw = {"id": "evt_a", "type": "moon.landed", "created_at": MOMENT, "data": {"a": [1, {"b": None}]}}

    event = codec.structure(raw, UnknownEvent)

    assert event.data == raw["data"]
    assert codec.unstructure(event) == raw
