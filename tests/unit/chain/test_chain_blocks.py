"""Blocks of the embedded chain: computed from a clock, never going back, and apart in every future."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.hash import Hash

from agentpay_server.chain.embedded.blocks import BLOCK_US, FIRST_SLOT, BlockPosition, Blocks, slot_at


class Clock:
    def __init__(self) -> None:
        self.now_us = 10**15

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def blocks(clock: Clock) -> Blocks:
    return Blocks("genesis", clock)


def test_a_block_takes_400_ms(blocks: Blocks, clock: Clock) -> None:
    heights = []
    for _ in range(5):
        heights.append(blocks.height())
        clock.now_us += BLOCK_US // 2
    assert heights == [0, 0, 1, 1, 2]
    assert slot_at(2) == FIRST_SLOT + 2


def test_a_blockhash_is_valid_in_its_block_and_the_150_after_it(blocks: Blocks, clock: Clock) -> None:
    _, blockhash = blocks.latest()
    for height in range(151):
        assert blocks.height() == height
        assert blocks.height_of(blockhash) == 0
        clock.now_us += BLOCK_US
    assert blocks.height_of(blockhash) is None


def test_a_blockhash_that_was_never_requested_is_valid_too(clock: Clock) -> None:
    told, asked = Blocks("genesis", clock), Blocks("genesis", clock)
    clock.now_us += 7 * BLOCK_US
    _, blockhash = told.latest()
    clock.now_us += 100 * BLOCK_US
    assert asked.height_of(blockhash) == 7
    assert asked.height_of(Hash.hash(b"made up")) is None


def test_a_blockhash_of_a_future_block_is_not_valid_yet(clock: Clock) -> None:
    ahead, blocks = Blocks("genesis", clock), Blocks("genesis", clock)
    ahead.begin()
    height, blockhash = ahead.latest()
    assert height == 1
    assert blocks.height_of(blockhash) is None
    blocks.begin()
    assert blocks.height_of(blockhash) == 1


def test_chains_with_different_names_have_different_blockhashes(clock: Clock) -> None:
    assert Blocks("one", clock).latest() != Blocks("other", clock).latest()


def test_resuming_continues_with_a_new_block(blocks: Blocks, clock: Clock) -> None:
    clock.now_us += 20 * BLOCK_US
    seen = blocks.latest()
    position = blocks.position()
    after = Blocks("genesis", clock)
    after.resume(position)
    assert after.height() == 21
    assert after.latest() != seen
    assert after.height_of(seen[1]) == 20
    # A clock that was set back between the two.
    clock.now_us -= 10**12
    later = Blocks("genesis", clock)
    later.resume(position)
    assert later.height() == 21
    clock.now_us += BLOCK_US
    assert later.height() == 22


def test_resuming_from_a_lower_height_keeps_the_reported_height(blocks: Blocks, clock: Clock) -> None:
    clock.now_us += 20 * BLOCK_US
    assert blocks.height() == 20
    blocks.resume(BlockPosition(3, clock.now_us))
    assert blocks.height() == 21


STEPS = st.lists(st.tuples(st.sampled_from(["clock", "begin", "capture", "restore"]), st.integers(-5, 400)))


@given(steps=STEPS)
def test_the_valid_window_always_equals_the_latest_blockhashes(steps: list[tuple[str, int]]) -> None:
    """Against a list: every blockhash that was handed out, in the future that it was handed out in."""
    clock = Clock()
    blocks = Blocks("genesis", clock)
    handed: dict[Hash, int] = {}
    abandoned: set[Hash] = set()
    captured = None
    for step, amount in steps:
        before = blocks.height()
        height, blockhash = blocks.latest()
        handed[blockhash] = height
        if step == "clock":
            clock.now_us += amount * BLOCK_US // 2
        elif step == "begin":
            blocks.begin(abs(amount))
        elif step == "capture":
            captured = blocks.capture(), dict(handed), clock.now_us
        elif captured is not None:
            restore, handed_then, now_us = captured
            restore()
            clock.now_us, before = now_us, 0
            abandoned |= handed.keys() - handed_then.keys()
            handed = dict(handed_then)
        assert blocks.height() >= before
        for blockhash, height in handed.items():
            is_valid = blocks.height() - height <= 150
            assert blocks.height_of(blockhash) == (height if is_valid else None)
        assert all(blocks.height_of(blockhash) is None for blockhash in abandoned)
