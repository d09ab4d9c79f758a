"""The JSON codec: exact numbers both ways, and nothing taken that two readers could read differently.

See interface R9.
"""

import json
import time
from contextlib import suppress
from decimal import Decimal

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from agentpay.contract import codec, json_text
from agentpay.contract.json_text import InvalidJsonError

decimals = st.decimals(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
scalars = st.none() | st.booleans() | st.integers() | decimals | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def nested(depth, opening="[", closing="]", core=""):
    return (opening * depth + core + closing * depth).encode()


# --- Reading ----------------------------------------------------------------------------------------------


def test_numbers_with_a_point_or_an_exponent_are_decimals():
    value = json_text.parse_request_json(b"[0.1, 1e2, 25, -0.0, 123456789.123456789123456789]")

    assert value == [Decimal("0.1"), Decimal(100), 25, Decimal(0), Decimal("123456789.123456789123456789")]
    assert not any(isinstance(number, float) for number in value)


@pytest.mark.parametrize("parse", [json_text.parse_json, json_text.parse_request_json])
@pytest.mark.parametrize(
    "body",
    [
        *[
            b"",
            b" ",
            b"{",
            b"}",
            b"[1,]",
            b'{"a":1,}',
            b"{'a':1}",
            b"01",
            b".5",
            b"5.",
            b"+1",
            b"0x1",
            b"nul",
        ],
        *[b"1 2", b"{} {}", b'{"a"}', b'"\n"', b'"\\x"', b'"\\ud8"', b"// x", b"NaN", b"[Infinity]"],
        *[b"-Infinity", b'{"a":NaN}', b"\xff", b'"\xc3"', b'"\xed\xa0\x80"', "\ufeff{}".encode(), b"\0"],
        *["{}".encode("utf-16"), b"1" * 5000, b"1e" + b"9" * 30],
    ],
    ids=lambda value: repr(value)[:24] if isinstance(value, bytes) else value.__name__,
)
def test_invalid_json_is_refused(parse, body):
    with pytest.raises(InvalidJsonError, match=r"^must "):
        parse(body)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_one_declared_error(body):
    for parse in (json_text.parse_json, json_text.parse_request_json):
        with suppress(InvalidJsonError):
            parse(body)


@pytest.mark.parametrize("parse", [json_text.parse_json, json_text.parse_request_json])
def test_extremely_deep_nesting_is_refused(parse):
    with pytest.raises(InvalidJsonError):
        parse(b"[" * 60_000)
    with pytest.raises(InvalidJsonError):
        parse(b'{"a":' * 10_000)


@pytest.mark.parametrize("body", [b"1e999999", b"-1e-999999", b'{"a":[1e999999]}'])
def test_a_number_with_a_huge_exponent_is_parsed_and_printed_compactly(body):
    started = time.perf_counter()

    printed = json_text.print_json(json_text.parse_request_json(body))

    assert time.perf_counter() - started < 60, "without the rule it would take hours"
    assert len(printed) < 40


@pytest.mark.parametrize(
    "body",
    [b'{"a":1,"a":1}', b'{"a":1,"\\u0061":2}', b'[{"b":{"x":1,"x":2}}]', b'{"":1,"":2}'],
)
def test_a_repeated_key_in_a_request_is_refused(body):
    with pytest.raises(InvalidJsonError, match="must not repeat a key"):
        json_text.parse_request_json(body)


@pytest.mark.parametrize(
    "body",
    [
        *[b'"\\u0000"', b'["a\\u0000b"]', b'{"\\u0000":1}', b'{"a":{"b":["\\u0000"]}}'],
        *[b'"\\ud800"', b'"\\udc00"', b'{"\\udfff":1}', b'["\\udc00\\ud800"]'],
    ],
)
def test_nul_and_lone_surrogates_in_a_request_are_faults(body):
    (fault,) = codec.text_faults(json_text.parse_request_json(body))
    assert fault.message == "must not contain NUL or lone surrogates"
    assert fault.field.isprintable()


def test_every_string_with_nul_is_a_fault_with_its_path():
    value = json_text.parse_request_json(b'{"a":["x","\\u0000"],"b":{"c":"\\ud800"},"d":"fine"}')
    assert [fault.field for fault in codec.text_faults(value)] == ["a[1]", "b.c"]


def test_a_pair_of_surrogates_is_one_character():
    assert json_text.parse_request_json(b'"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_request_may_nest_sixteen_deep_and_no_deeper(opening, closing):
    json_text.parse_request_json(nested(16, opening, closing, "1"))

    with pytest.raises(InvalidJsonError, match="must not nest deeper than 16"):
        json_text.parse_request_json(nested(17, opening, closing, "1"))


def test_empty_containers_count_as_a_level():
    json_text.parse_request_json(nested(16))

    with pytest.raises(InvalidJsonError, match="must not nest deeper than 16"):
        json_text.parse_request_json(nested(17))


# --- Printing ---------------------------------------------------------------------------------------------


@given(values)
def test_printed_json_parses_to_the_same_value(value):
    printed = json_text.print_json(value)

    assert json_text.parse_json(printed) == value
    assert printed.isascii()


@given(decimals.filter(lambda number: -20 <= number.adjusted() <= 20))
@example(Decimal("-0"))
@example(Decimal("1E+20"))
@example(Decimal("1E-20"))
@example(Decimal("100.00"))
def test_a_decimal_is_printed_exactly_shortest_and_without_exponent(number):
    text = json_text.print_json(number).decode()

    assert Decimal(text) == number
    assert "E" not in text.upper()
    assert not ("." in text and text.endswith(("0", ".")))
    assert text != "-0"


@given(decimals)
def test_no_digit_of_a_decimal_is_lost(number):
    assert json_text.parse_json(json_text.print_json([number])) == [number]


@pytest.mark.parametrize("value", [0.1, float("nan"), [1.5], {"a": [0.0]}])
def test_a_float_is_not_printed(value):
    with pytest.raises(TypeError, match="float has no exact JSON form; use Decimal"):
        json_text.print_json(value)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), 1j])
def test_values_without_a_json_form_are_refused(value):
    with pytest.raises(TypeError, match="has no exact JSON form"):
        json_text.print_json(value)


@pytest.mark.parametrize("text", ["NaN", "sNaN", "Infinity", "-Infinity"])
def test_a_number_that_is_not_finite_is_not_printed(text):
    with pytest.raises(ValueError, match="must be finite"):
        json_text.print_json(Decimal(text))


def test_empty_containers_are_printed_as_such():
    assert json_text.print_json([{}, [], {"a": ()}]) == b'[{},[],{"a":[]}]'


# --- RFC 8785 ---------------------------------------------------------------------------------------------


def as_floats(value):
    """The value as the oracle takes it: JSON numbers as binary floats, as RFC 8785 has them."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    return [as_floats(item) for item in value] if isinstance(value, list) else value


usdc_numbers = st.integers(min_value=0, max_value=999_999_999_999_999).map(
    lambda micro: Decimal(micro).scaleb(-6)
)
canonical_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | usdc_numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(canonical_values)
@example({"\ufffd": 1, "\U0001f600": 2, "\ue000": 3})
@example({"\x7f": '\x7f\u2028/\\"\x1f\t', "é": "é", "e\u0301": 1, "": "\U0010ffff"})
@example([Decimal("0.000001"), Decimal("999999999.999999"), Decimal("25.50"), Decimal("1E+2")])
def test_canonical_json_is_that_of_an_independent_implementation(value):
    assert json_text.print_canonical_json(value) == rfc8785.dumps(as_floats(value))


@given(st.dictionaries(texts, usdc_numbers, max_size=6))
def test_equal_values_have_equal_canonical_bytes(value):
    reversed_order = dict(reversed(value.items()))
    other_digits = {key: number.normalize() for key, number in reversed_order.items()}

    assert json_text.print_canonical_json(value) == json_text.print_canonical_json(other_digits)


@given(canonical_values)
def test_canonical_json_is_json(value):
    assert json.loads(json_text.print_canonical_json(value)) == as_floats(value)
