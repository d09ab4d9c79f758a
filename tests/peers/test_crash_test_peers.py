"""`crash-test --peers`: clients of others buy from hostile sellers, each in its own environment."""

import random
from pathlib import Path

import pytest

from agentpay_lab.crash_test.peers import PEERS, TRIES, run_peers
from agentpay_server.paywall import Mode

PURCHASES = 6


@pytest.mark.peers
def test_every_peer_buys_and_is_checked_against_the_chain(tmp_path: Path) -> None:
    # A seed with a seller that settles and serves: a client that does not work would pay nothing.
    seed = next(number for number in range(100) if Mode.HONEST in drawn(number))
    lines = list(
        run_peers(seed=seed, seconds=60, purchases=PURCHASES, scratch=tmp_path, say=lambda text: None)
    )
    assert [line.client for line in lines] == [peer.name for peer in PEERS]
    for line in lines:
        assert 0 < line.purchases <= line.asked <= PURCHASES * TRIES
        assert 0 < line.settled <= line.purchases
        assert line.served > 0
        assert line.twice_in_a_call <= line.twice <= line.settled


def drawn(seed: int) -> list[Mode]:
    chance = random.Random(seed)
    return [chance.choice(tuple(Mode)) for _ in range(PURCHASES)]
