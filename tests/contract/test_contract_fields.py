"""Rules of single fields: timestamps, texts, page sizes."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay.contract.fields import format_timestamp, parse_timestamp, query_integer, text

offsets = st.integers(min_value=-23 * 60, max_value=23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
moments = st.datetimes(
    min_value=datetime(2, 1, 1, tzinfo=UTC).replace(tzinfo=None),
    max_value=datetime(9998, 12, 31, tzinfo=UTC).replace(tzinfo=None),
    timezones=st.just(UTC) | offsets,
)


@given(moments)
def test_a_timestamp_round_trips_to_the_millisecond(moment):
    expected = moment.astimezone(UTC)
    expected = expected.replace(microsecond=expected.microsecond // 1000 * 1000)

    assert parse_timestamp(format_timestamp(moment)) == expected


def test_a_timestamp_on_the_wire_is_utc_with_milliseconds_and_z():
    moment = datetime(2026, 1, 31, 14, 30, 0, 123999, tzinfo=timezone(timedelta(hours=2)))

    assert format_timestamp(moment) == "2026-01-31T12:30:00.123Z"


@given(moments)
def test_any_offset_is_read_as_utc(moment):
    read = parse_timestamp(moment.isoformat())

    assert read == moment
    assert read.tzinfo is UTC


@pytest.mark.parametrize(
    "value", ["2026-01-31T12:00:00z", "2026-01-31t12:00:00Z", "2026-01-31t12:00:00.000z"]
)
def test_a_timestamp_may_be_written_in_lower_case(value):
    assert parse_timestamp(value) == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("value", ["2026-01-31T12:00:00", "2026-01-31T12:00:00.000"])
def test_a_timestamp_without_an_offset_is_refused(value):
    with pytest.raises(ValueError, match="must have a UTC offset"):
        parse_timestamp(value)


@pytest.mark.parametrize(
    "value",
    [
        *["", "now", "2026-01-31", "2026-W05-6", "2026-01-31 12:00:00Z", "2026-13-01T00:00:00Z"],
        *["2026-02-30T00:00:00Z", "2026-01-31T25:00:00Z", "1767225600", "2026-01-31T12:00:00Z" + " " * 40],
        # As long as the texts that the service sends.
        *["2026-02-30T00:00:00.000Z", "2026-01-31T12:00:60.000Z", "2026-01-31T12:00:00.00 Z"],
        *["20260131-1T12:00:00.000Z", "2026W05-01T12:00:00.000Z", "٢٠٢٦-01-31T12:00:00.000Z"],
    ],
)
def test_an_invalid_timestamp_is_refused(value):
    with pytest.raises(ValueError, match="must be an ISO 8601 timestamp"):
        parse_timestamp(value)


@pytest.mark.parametrize("value", [None, 0, 1767225600, 1.5, True, [], {}])
def test_a_timestamp_must_be_a_string(value):
    with pytest.raises(ValueError, match="must be an ISO 8601 string"):
        parse_timestamp(value)


@pytest.mark.parametrize("value", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_a_timestamp_beyond_the_calendar_is_refused(value):
    with pytest.raises(ValueError, match="years 1 to 9999"):
        parse_timestamp(value)


@given(st.integers(min_value=1, max_value=100))
def test_a_page_size_in_range_is_read(number):
    assert query_integer(minimum=1, maximum=100).parse(str(number)) == number


@pytest.mark.parametrize(
    "value", ["0", "101", "-1", "+1", "1.0", "1e1", "abc", "", " 1", "\u0661", "1" * 5000, 5, True, None]
)
def test_a_page_size_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="must be an integer from 1 to 100"):
        query_integer(minimum=1, maximum=100).parse(value)


def test_the_length_of_a_text_is_checked_after_trimming():
    rule = text(minimum=1, maximum=3, trim=True)

    assert rule.parse("  abc\u00a0\n") == "abc"
    with pytest.raises(ValueError, match="must not be empty"):
        rule.parse(" \t ")
    with pytest.raises(ValueError, match="must have at most 3 characters"):
        rule.parse("abcd")


@pytest.mark.parametrize("name", ["\nagent", "agent\t", "\x1fagent", "agent\x85", "\x1c", " \r\n "])
def test_control_characters_at_the_trimmed_ends_are_refused(name):
    with pytest.raises(ValueError, match="must not contain control characters"):
        text(minimum=1, maximum=100, trim=True, control=False).parse(name)


def test_white_space_without_control_characters_is_trimmed():
    assert text(minimum=1, maximum=3, trim=True, control=False).parse("\u2003 abc\u00a0") == "abc"


def test_the_length_of_a_text_counts_characters_not_bytes():
    assert text(maximum=2).parse("\U0001f600\U0001f600") == "\U0001f600\U0001f600"


@pytest.mark.parametrize("character", ["\0", "\n", "\x1f", "\x7f", "\x80", "\x9f"])
def test_control_characters_are_refused_where_they_are_not_allowed(character):
    with pytest.raises(ValueError, match="must not contain control characters"):
        text(maximum=100, control=False).parse(f"a{character}b")


@pytest.mark.parametrize("value", [None, 1, True, b"a", ["a"]])
def test_a_text_must_be_a_string(value):
    with pytest.raises(ValueError, match="must be a string"):
        text(maximum=100).parse(value)
