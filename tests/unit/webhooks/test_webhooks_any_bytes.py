"""P12: any bytes and any headers give an event or one declared error.

Where bytes are signed, the signature is a genuine one, so that what reads them is reached. `fuzz_unwrap.py`
in this directory searches the same, guided by coverage.
"""

from random import Random, SystemRandom

import hostile
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from webhook_world import PAYLOAD, SECRET

from agentpay.contract.json_text import parse_request_json
from agentpay.errors import WebhookPayloadError, WebhookSignatureError
from agentpay.webhooks import EVENT_CLASSES, Event, UnknownEvent, sign, unwrap, verify

pytestmark = pytest.mark.unmeasured

texts = st.text(st.characters(), max_size=70) | st.binary(max_size=70)


def outcome(body, headers):
    try:
        if isinstance(headers, str | bytes):
            return verify(body, headers, SECRET)
        return unwrap(body, headers, SECRET)
    except (WebhookSignatureError, WebhookPayloadError) as error:
        return error


def signed_bytes_are_an_event_or_a_payload_error(body):
    result = outcome(body, {"X-Service-Signature": sign(body, SECRET)})
    if not isinstance(result, Event):
        assert type(result) is WebhookPayloadError
        assert len(str(result).encode()) < 2000
        return
    raw = parse_request_json(body)
    assert (result.id, result.type) == (raw["id"], raw["type"])
    assert type(result) is EVENT_CLASSES.get(raw["type"], UnknownEvent)
    if type(result) is UnknownEvent:
        assert result.data == raw["data"]


def one_seed(seed):
    random = Random(seed)
    signed_bytes_are_an_event_or_a_payload_error(hostile.body(random))
    assert type(outcome(PAYLOAD, hostile.headers(random))) is WebhookSignatureError


def many_seeds(count):
    """Try as many seeds in a row, from one that no run has tried."""
    first = SystemRandom().getrandbits(48)
    for seed in range(first, first + count):
        try:
            one_seed(seed)
        except BaseException as error:
            error.add_note(f"one_seed({seed})")
            raise


@pytest.mark.timeout(600)
def test_hostile_deliveries_are_an_event_or_one_error():
    many_seeds(20_000)


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_very_many_hostile_deliveries_are_an_event_or_one_error():
    many_seeds(200_000)


@given(st.binary())
@example(PAYLOAD)
def test_signed_bytes_are_an_event_or_a_payload_error(body):
    signed_bytes_are_an_event_or_a_payload_error(body)


@given(
    st.binary() | st.text(st.characters()),
    st.none()
    | texts
    | st.dictionaries(texts, texts)
    | st.lists(st.tuples(texts, texts | st.none() | st.lists(texts))),
)
def test_unsigned_bytes_are_a_signature_error(body, headers):
    assert type(outcome(body, headers)) is WebhookSignatureError


@given(texts)
def test_any_value_of_the_signature_header_is_a_signature_error(value):
    assert type(outcome(PAYLOAD, {"X-Service-Signature": value})) is WebhookSignatureError


def test_the_hostile_deliveries_include_valid_and_invalid_ones():
    made = [hostile.body(Random(seed)) for seed in range(500)]
    results = [type(outcome(body, {"X-Service-Signature": sign(body, SECRET)})) for body in made]
    assert results.count(WebhookPayloadError) > 200
    assert len(results) - results.count(WebhookPayloadError) > 20
