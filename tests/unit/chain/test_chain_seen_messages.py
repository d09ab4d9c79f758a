"""The messages that the embedded chain has seen: each is remembered while its blockhash may be valid."""

from solders.hash import Hash

from agentpay_server.chain.embedded.blocks import SeenMessages
from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS


def message(number: int) -> Hash:
    return Hash(number.to_bytes(32, "big"))


def test_refused_messages_are_forgotten_when_their_blockhash_has_expired() -> None:
    """Whoever may submit transactions can submit any number that cannot execute."""
    seen = SeenMessages()
    for height in range(10_000):
        seen.refused(message(height), height, "signature")
    newest = 9_999 - BLOCKHASH_LIFE_BLOCKS
    known = [height for height in range(10_000) if seen.get(message(height)) is not None]
    assert known == list(range(newest, 10_000))


def test_a_message_that_is_refused_again_is_remembered_longer_with_all_signatures() -> None:
    seen = SeenMessages()
    seen.refused(message(1), 0, "first")
    seen.landed(message(2), 10)
    seen.refused(message(1), 100, "second")
    seen.landed(message(3), 100 + BLOCKHASH_LIFE_BLOCKS)
    again = seen.get(message(1))
    assert again is not None
    assert again.refused == {"first", "second"}
    assert seen.get(message(2)) is None
    seen.landed(message(4), 101 + BLOCKHASH_LIFE_BLOCKS)
    assert seen.get(message(1)) is None
