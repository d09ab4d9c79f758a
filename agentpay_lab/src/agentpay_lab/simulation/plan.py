"""The parameters of a run: its seed, its size, and what the seed determines (swarm testing).

Each run draws which faults are on, how frequent they are, and how skewed the work is: a fault that is always
rare hides the effects of frequent ones, and one that is always on hides errors that need its absence.
"""

import random
from collections.abc import Mapping
from typing import Final

from attrs import Factory, evolve, frozen

from agentpay_lab.simulation.chance import Chance

ODDS: Final[Mapping[str, float]] = {
    # The database, per unit of work
    "db.lost before": 0.002,  # the connection is lost before the unit runs
    "db.lost after": 0.002,  # it is committed, and the response is lost
    "db.rolled back": 0.006,  # it runs and is rolled back
    "db.rerun": 0.006,  # it is rolled back and run again, as after a deadlock
    "db.slow": 0.01,
    # RPC, per call
    "rpc.lost request": 0.01,
    "rpc.lost reply": 0.01,
    "rpc.refused": 0.003,  # a JSON-RPC error, as of a node that is behind
    "rpc.slow": 0.02,
    # Transactions, per submission
    "tx.dropped": 0.03,
    "tx.late": 0.05,
    "tx.repeated": 0.05,  # submitted again, up to 70 s later
    # HTTP, per request of an agent
    "http.lost request": 0.02,
    "http.lost reply": 0.03,
    "http.repeated": 0.02,
    "http.hung up": 0.01,
    "http.slow": 0.02,
    # Sellers behind HTTP 402, per purchase
    "shop.other price": 0.03,  # possibly for an earlier price
    "shop.never": 0.1,
    "shop.late": 0.1,
    "shop.last blocks": 0.1,  # the last blocks that can hold it
    "shop.twice": 0.1,
    "shop.altered": 0.15,  # signed as fee payer in two ways, both of which reach the cluster
    "shop.asks again": 0.1,
    # Sellers with channels, per request: they misbehave for up to a minute
    "channel.loses reply": 0.02,
    "channel.steals voucher": 0.02,
    "channel.raises price": 0.02,
    "channel.out of order": 0.02,
    "channel.refuses accepted": 0.02,
    "channel.never closes": 0.02,
    "channel.seals early": 0.02,
    "channel.forgets": 0.02,
    "upto.charges maximum": 0.02,
    "upto.loses reply": 0.02,
    "upto.fails": 0.02,
    "upto.never settles": 0.02,
    # What these sellers add to a settlement, per settlement
    "payout.verifies more": 0.15,  # they settle a lower voucher than they have verified
    "payout.leaves voucher": 0.05,  # they seal without the voucher that is verified before
    "payout.flags otherwise": 0.15,  # they seal with a voucher by another flag than 1
    "payout.calls inside": 0.15,  # another program calls that of channels
    "payout.pays out together": 0.15,  # they pay out with the next channel
    "payout.adds credit": 0.15,
    "payout.closes account": 0.1,
    # Webhook receivers, per post
    "hook.refuses": 0.08,
    "hook.lost": 0.05,
    "hook.slow": 0.05,
    # A server dies, at each interaction with the outside
    "kill.before commit": 0.0006,
    "kill.after commit": 0.0006,
    "kill.before send": 0.004,
    "kill.after send": 0.004,
    "kill.before answer": 0.001,
    "kill.posting": 0.002,
}

EVERY_SECONDS: Final[Mapping[str, float]] = {
    "server.killed": 25.0,
    "server.stopped": 180.0,
    "rpc.down": 90.0,
    "node.stuck": 30.0,
    "node.lags": 20.0,
    "cluster.rollback": 120.0,
    "cluster.stalls": 200.0,
    "clock.jumps": 120.0,
    "clock.wrong": 60.0,  # by up to two days, for up to some minutes
    "database.copied": 120.0,  # the newest copy replaces the database at the end
    "schema.upgraded": 300.0,  # once in a run: afterwards every server is of the next release
}

LIES: Final[Mapping[str, float]] = {
    "lie.last valid height": 0.01,
    "lie.height": 0.01,
    "lie.slot": 0.01,
    # Other false replies: one method at a time
    "lie.status": 0.003,
    "lie.transaction": 0.003,
    "lie.history": 0.003,
    "lie.account": 0.003,
    "lie.send": 0.003,
    "lie.blockhash": 0.003,
    "lie.rent": 0.03,
    "lie.genesis": 0.01,
    # The same, of methods that are called before an expiry is accepted
    "lie.validity": 0.1,
    "lie.block": 0.03,
    "lie.blocks": 0.03,
    "lie.first block": 0.1,
}
"""Probability of each lie, per reply; off unless requested."""

KINDS: Final = frozenset({*ODDS, *EVERY_SECONDS, *LIES})


@frozen(kw_only=True)
class Skew:
    """How the work of a run is skewed.

    Attributes:
        repeats: share of calls that reuse a key.
        twins: share of calls made twice concurrently.
        hot: share of the work on the first account.
        sessions: share of the work with sessions.
        purchases: share of the other work with sellers that respond 402.
        channels: share of these that buy by session or up to a maximum.
        think_seconds: average pause between two calls.
        skips_every: one slot in so many has no block; 0 means that all have one.
        lie_seconds: how long a method may lie; a blockhash lives about 60 s.
        sticky_seconds: how long a server's calls of a method go to one node; 0 means any node.
    """

    repeats: float = 0.3
    twins: float = 0.2
    hot: float = 0.2
    sessions: float = 0.35
    purchases: float = 0.3
    channels: float = 0.4
    agent_keys: bool = False
    think_seconds: float = 0.6
    skips_every: int = 0
    sticky_seconds: float = 0.0
    slot_seconds: float = 0.4
    lie_seconds: float = 30.0


@frozen(kw_only=True)
class Plan:
    """All parameters of a run.

    Attributes:
        minutes: simulated minutes of work and faults.
        odds: probability of each kind of fault; missing kinds never strike.
        every_seconds: average pause between scheduled faults, by kind.
        without: actors, kinds of faults, single strikes and calls to leave out.
    """

    seed: int
    minutes: float = 5.0
    servers: int = 3
    agents: int = 8
    odds: Mapping[str, float] = Factory(dict)
    every_seconds: Mapping[str, float] = Factory(dict)
    skew: Skew = Skew()
    accounts: int = 5
    without: frozenset[str] = frozenset()

    def leaving_out(self, *names: str) -> "Plan":
        return evolve(self, without=self.without | set(names))


def drawn(
    seed: int,
    *,
    minutes: float = 5.0,
    servers: int | None = None,
    agents: int = 8,
    lies: bool = False,
    strength: float = 1.0,
) -> Plan:
    """Return the plan of a seed, which determines everything that is not given.

    `strength` multiplies the frequency of every fault; 0 means none.
    """
    random_ = Chance(seed).stream("plan")
    odds = {kind: value * _strength(random_) * strength for kind, value in ODDS.items()}
    pauses = {kind: value / factor for kind, value in EVERY_SECONDS.items() if (factor := _strength(random_))}
    lying = {kind: value * _strength(random_) * strength for kind, value in LIES.items()}
    # Always drawn, so that passing this number leaves the rest of the plan the same.
    some_servers = random_.choice((1, 2, 3, 3, 3, 4, 5))
    return Plan(
        seed=seed,
        minutes=minutes,
        servers=servers or some_servers,
        agents=agents,
        odds={kind: value for kind, value in (odds | (lying if lies else {})).items() if value},
        every_seconds={kind: value / strength for kind, value in pauses.items()} if strength else {},
        skew=Skew(
            repeats=random_.choice((0.05, 0.3, 0.6)),
            twins=random_.choice((0.0, 0.2, 0.5)),
            hot=random_.choice((0.0, 0.2, 0.8)),
            sessions=random_.choice((0.0, 0.35, 0.35, 0.8)),
            agent_keys=random_.random() < 0.3,
            think_seconds=0.6,
            skips_every=random_.choice((0, 5, 20)),
            sticky_seconds=random_.choice((0.0, 5.0, 45.0, 300.0)),
            slot_seconds=random_.choice((0.4, 0.4, 0.3)),
            purchases=random_.choice((0.0, 0.3, 0.3, 0.8)),
            lie_seconds=random_.choice((0.0, 5.0, 30.0, 150.0)),
            channels=random_.choice((0.0, 0.4, 0.4, 0.8)),
        ),
    )


def _strength(random_: random.Random) -> float:
    return random_.choice((0.0, 0.3, 1.0, 1.0, 3.0))
