"""Cursors: opaque, bound to their list, and every other text refused (interface R15)."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.database.pages import List
from agentpay_server.platform.errors import Problem

pytestmark = pytest.mark.unmeasured

ACCOUNTS = List("accounts", "op_a")
seqs = st.integers(min_value=0, max_value=2**63 - 2)


def cursor_of(listing, seq):
    """The cursor that a page gives whose last item has this sequence number."""
    return listing.page([seq, None], 1, seq=lambda row: row, item=lambda row: row).cursor


def refused(listing, cursor):
    with pytest.raises(Problem) as raised:
        listing.before(cursor)
    problem = raised.value
    assert problem.http_status == 400
    assert [fault.field for fault in problem.details or ()] == ["cursor"]
    return True


@given(st.text(max_size=20), st.text(max_size=20), seqs)
def test_a_cursor_decodes_to_the_end_of_its_page(name, owner, seq):
    listing = List(name, owner)

    assert listing.before(cursor_of(listing, seq)) == seq


@given(
    st.integers(0, 10**6), st.sampled_from([List("accounts", "op_b"), List("audit", "op_a"), List("", "")])
)
def test_a_cursor_of_another_list_is_refused(seq, other):
    assert refused(other, cursor_of(ACCOUNTS, seq))


@given(
    st.text(max_size=60)
    | st.binary(min_size=16, max_size=16).map(lambda raw: base64.urlsafe_b64encode(raw).decode())
)
def test_an_invented_cursor_is_refused(text):
    assert not text or refused(ACCOUNTS, text)


@given(seqs, st.data())
def test_a_cursor_with_one_changed_character_is_refused(seq, data):
    cursor = cursor_of(ACCOUNTS, seq)
    at = data.draw(st.integers(0, len(cursor) - 1))
    wrong = data.draw(st.characters().filter(lambda character: character != cursor[at]))

    assert refused(ACCOUNTS, cursor[:at] + wrong + cursor[at + 1 :])


@given(st.integers(0, 30), st.integers(1, 30))
def test_a_page_holds_at_most_its_limit_and_has_more_if_rows_remain(count, limit):
    rows = list(range(count, 0, -1))

    page = ACCOUNTS.page(rows[: limit + 1], limit, seq=lambda row: row, item=str)

    assert page.data == tuple(str(row) for row in rows[:limit])
    assert page.has_more == (count > limit)
    assert (page.cursor == "") == (not page.has_more)


@given(st.integers(0, 40), st.integers(1, 7))
def test_pages_together_give_the_whole_list_once(count, limit):
    cursor, seen = "", []
    while True:
        before = ACCOUNTS.before(cursor)
        rows = [row for row in range(count, 0, -1) if row < before][: limit + 1]
        page = ACCOUNTS.page(rows, limit, seq=lambda row: row, item=lambda row: row)
        seen += page.data
        cursor = page.cursor
        if not page.has_more:
            break

    assert seen == list(range(count, 0, -1))
