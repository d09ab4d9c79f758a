"""Handles: how they are derived (interface A9)."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpay_server.accounts.service import handle_of


@pytest.mark.parametrize(
    ("name", "handle"),
    [
        ("Research Bot", "@research-bot"),
        ("research-bot", "@research-bot"),
        ("  Résumé   Crawler!! ", "@resume-crawler"),
        ("A__B..C", "@a-b-c"),
        ("\uff21\uff47\uff45\uff4e\uff54 \uff17", "@agent-7"),
        ("ﬁne", "@fine"),
        ("x²", "@x2"),
        ("½", "@1-2"),
        ("Straße", "@stra-e"),
        ("İstanbul", "@istanbul"),
        ("\u212aelvin", "@kelvin"),
        ("ŁÓDŹ", "@odz"),
        ("日本語", "@account"),
        ("agent 日本 9", "@agent-9"),
        ("🤖", "@account"),
        ("---", "@account"),
        ("@home", "@home"),
        ("", "@account"),
        ("a" * 100, "@" + "a" * 32),
        ("a" * 31 + " b", "@" + "a" * 31),
        ("a" * 32 + " b", "@" + "a" * 32),
        ("٣", "@account"),
        # Combining marks of class 0: enclosing (Me), spacing (Mc), non-spacing (Mn).
        ("a\u20ddgent", "@agent"),
        ("key\u0903s", "@keys"),
        ("da\u034fta", "@data"),
        ("x\ufe0fy", "@xy"),
    ],
)
def test_a_handle_is_derived_from_the_name(name, handle):
    assert handle_of(name) == handle


@given(st.text(max_size=200))
@example("-" * 40 + "a")
@example("a" * 31 + "-" * 40 + "b")
def test_a_handle_has_at_most_33_allowed_characters(name):
    handle = handle_of(name)

    assert re.fullmatch(r"@[a-z0-9]+(-[a-z0-9]+)*", handle)
    assert len(handle) <= 33


@given(st.text(max_size=200))
def test_the_handle_of_a_handle_is_itself(name):
    handle = handle_of(name)

    assert handle_of(handle) == handle
