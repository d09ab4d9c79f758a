"""Amounts of USDC: exact in every direction, refused where they cannot be (interface R8, R6)."""

import re
import time
from decimal import Decimal, localcontext

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpay.contract import usdc

micros = st.integers(min_value=0, max_value=usdc.MAX_MICRO)

NOT_DECIMALS = ["1_000.5", "1_0", "1__0_", "\n300\t", " 1", "1\n", "\u0661", "\uff11", "1,5", ".5", "+1"]
"""Texts that `Decimal` reads, most of them, and that are no decimal strings."""

MONSTERS = ["1e999999", "1e-999999", "1E+20", "9" * 100, "1e999999999999999999"]


@given(micros)
def test_micro_usdc_round_trips_in_every_form(micro):
    amount = usdc.from_micro(micro)

    assert usdc.to_micro(amount) == micro
    assert usdc.to_micro(usdc.format_string(amount)) == micro
    assert usdc.to_micro(usdc.format_number(amount)) == micro
    assert usdc.to_micro(usdc.parse_string(usdc.format_string(amount))) == micro
    assert usdc.to_micro(usdc.parse_number(Decimal(usdc.format_number(amount)))) == micro


@given(micros, st.integers(min_value=1, max_value=28))
def test_amounts_are_exact_in_any_decimal_context(micro, precision):
    with localcontext() as context:
        context.prec = precision
        amount = usdc.to_decimal(str(Decimal(micro).scaleb(-6, usdc.EXACT)))
        assert usdc.to_micro(usdc.format_string(amount)) == micro
        assert usdc.to_micro(usdc.parse_number(Decimal(usdc.format_number(amount)))) == micro


@given(micros)
def test_an_amount_on_the_wire_has_six_fraction_digits(micro):
    text = usdc.format_string(usdc.from_micro(micro))

    assert re.fullmatch(r"[0-9]+\.[0-9]{6}", text)
    assert Decimal(text).scaleb(6) == micro


@given(micros)
def test_a_json_number_is_the_shortest_exact_one(micro):
    text = usdc.format_number(usdc.from_micro(micro))

    assert re.fullmatch(r"0|[1-9][0-9]*(\.[0-9]{0,5}[1-9])?|0\.[0-9]{0,5}[1-9]", text)
    assert Decimal(text).scaleb(6) == micro


@given(st.integers(min_value=1, max_value=usdc.MAX_MICRO))
def test_every_valid_amount_round_trips(micro):
    amount = usdc.from_micro(micro)

    assert usdc.parse_amount(usdc.format_string(amount)) == amount
    assert usdc.parse_amount(usdc.format_number(amount)) == amount


@pytest.mark.parametrize(
    ("value", "micro"),
    [
        ("25", 25_000_000),
        ("25.00", 25_000_000),
        (25, 25_000_000),
        (Decimal("2.5E+1"), 25_000_000),
        ("0.000001", 1),
        ("0", 0),
        ("-0", 0),
        ("0e999999", 0),
        ("1.50000000", 1_500_000),
        ("999999999.999999", usdc.MAX_MICRO),
    ],
)
def test_equal_amounts_are_equal_in_micro_usdc(value, micro):
    assert usdc.to_micro(value) == micro


@pytest.mark.parametrize("value", [0.1, 1.0, float("nan"), True, False, None, b"1", [1]])
def test_inexact_types_of_usdc_are_a_type_error(value):
    with pytest.raises(TypeError, match="Decimal, an int or a string"):
        usdc.to_micro(value)


def test_the_refusal_of_a_float_shows_the_exact_spelling():
    with pytest.raises(TypeError, match=re.escape("Decimal('0.1') or '0.1' instead of 0.1")):
        usdc.to_decimal(0.1)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "abc",
        "1,5",
        "NaN",
        "sNaN",
        "Infinity",
        "-Infinity",
        "-1",
        "-0.000001",
        "0.0000001",
        "1.0000001",
    ],
)
def test_an_invalid_amount_of_usdc_is_a_value_error(value):
    with pytest.raises(ValueError, match="an amount of USDC must"):
        usdc.to_micro(value)


@given(st.text() | st.text("0159.eE+-_ \t\n,\u0663\uff11", max_size=8))
@example("25.50")
@example("1E+2")
@example("-0")
def test_text_is_an_amount_exactly_if_it_is_a_decimal_string(text):
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", text) is None:
        with pytest.raises(ValueError, match="must be a decimal number such as"):
            usdc.to_micro(text)
        return
    number = Decimal(text)
    if 0 <= number < 10**20 and number % Decimal("0.000001") == 0:
        assert usdc.to_micro(text) == number * 10**6
    else:
        with pytest.raises(ValueError, match=r"must not be negative|at most 6 decimals|below 1e20"):
            usdc.to_micro(text)


@pytest.mark.parametrize("value", NOT_DECIMALS)
def test_a_literal_of_python_is_not_an_amount(value):
    with pytest.raises(ValueError, match=r"must be a decimal number such as '25\.50'"):
        usdc.to_micro(value)


@pytest.mark.parametrize("value", MONSTERS)
def test_a_short_text_with_a_huge_exponent_is_refused_quickly(value):
    started = time.perf_counter()

    with pytest.raises(ValueError, match="an amount of USDC must"):
        usdc.to_micro(value)

    assert time.perf_counter() - started < 60, "without the rule it would take hours"


@pytest.mark.parametrize("value", ["1e999999", "1e-999999", "0.1e-6"])
def test_a_json_number_with_a_huge_exponent_is_refused_quickly(value):
    started = time.perf_counter()

    with pytest.raises(ValueError, match="must"):
        usdc.parse_number(Decimal(value))

    assert time.perf_counter() - started < 60, "without the rule it would take hours"


@pytest.mark.parametrize(
    "value",
    [
        *["", " 1", "1 ", "+1", "-1", ".5", "5.", "1e2", "1E2", "0x1", "1_000", "1,5", "NaN", "Infinity"],
        *["1.0000001", "1234567890", "0.000000", "0", "\u0661", "\uff11", "1\n", "1" * 5000],
    ],
)
def test_an_amount_of_another_form_is_refused(value):
    with pytest.raises(ValueError, match=r"^must be "):
        usdc.parse_amount(value)


@pytest.mark.parametrize("value", [1, Decimal(1), 1.5, True, None, ["1"], {"amount": "1"}])
def test_an_amount_must_be_a_string(value):
    with pytest.raises(ValueError, match="must be a string"):
        usdc.parse_amount(value)


@pytest.mark.parametrize("value", ["1", 1.0, True, False, None, [], {}])
def test_a_limit_must_be_a_number(value):
    with pytest.raises(ValueError, match="must be a number"):
        usdc.parse_number(value)


@pytest.mark.parametrize(
    "value", [-1, Decimal("-0.000001"), 10**9, Decimal("1e9"), Decimal("NaN"), Decimal("inf")]
)
def test_a_limit_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match=re.escape("must be from 0 to 999999999.999999")):
        usdc.parse_number(value)


@pytest.mark.parametrize("value", ["0.0000001", "1.0000001", "999999999.9999999"])
def test_a_limit_with_seven_decimals_is_refused(value):
    with pytest.raises(ValueError, match="must have at most 6 decimals"):
        usdc.parse_number(Decimal(value))


@pytest.mark.parametrize("value", ["0", "0.000001", "999999999.999999", "1E+2", "2.5e1"])
def test_a_limit_keeps_its_exact_value(value):
    assert usdc.parse_number(Decimal(value)) == Decimal(value)


@pytest.mark.parametrize("value", [None, 1, 1.5, Decimal(1), "", "1e2", "-1", "1.0000001", "NaN", "1" * 21])
def test_a_balance_must_be_a_decimal_string(value):
    with pytest.raises(ValueError, match="must be a decimal string"):
        usdc.parse_string(value)
