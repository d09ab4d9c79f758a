"""What a server is told: one value, made by `AgentPayServer(...)`, by `serve` and by tests."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from attrs import field, frozen

from agentpay_server.chain.protocol import WatchedChain
from agentpay_server.chain.rpc.settings import RpcSettings
from agentpay_server.clock import Clock, SystemClock
from agentpay_server.database.schema_name import DATABASE_SCHEMA, check_database_schema
from agentpay_server.randomness import Randomness, SystemRandomness, randomness
from agentpay_server.settings import Settings

if TYPE_CHECKING:
    from agentpay_server.chain.rpc.client import RpcCaller


@frozen(kw_only=True)
class Edge:
    """Where a server meets what it cannot control. A simulation puts parts of its own here.

    Attributes:
        entropy: source of secrets that never follow from a seed, such as nonces.
        rpc_client: returns what calls the RPC endpoint of the settings; None for a client over HTTP.
    """

    entropy: Randomness = field(factory=SystemRandomness)
    rpc_client: "Callable[[RpcSettings], RpcCaller] | None" = None

    def randomness(self, seed: int | None, *, start: int = 0, stream: str = "") -> Randomness:
        """Return a source that repeats itself where there is a seed, as `randomness` does, else `entropy`."""
        return self.entropy if seed is None else randomness(seed, start=start, stream=stream)


def _same(chain: WatchedChain) -> WatchedChain:
    return chain


@frozen(kw_only=True)
class ServerConfig:
    """All that a server is told.

    Attributes:
        settings: how it behaves.
        data_dir: a directory to keep everything in, made if it is not there.
        database_url: a PostgreSQL database to keep everything in, `postgresql://…`. With neither, everything
            is in memory.
        database_schema: the schema of that database that holds all tables, made if it does not exist.
        rpc: the cluster to work on; None for a chain within the process.
        clock: what tells the time.
        seed: makes identifiers, keys and signatures repeat, but for the keys that hold money on a cluster;
            None takes them from the system. None alone is for a public cluster.
        seeded_port_keys: whether all API keys follow from the seed; False keeps that to the first operator's.
        operator_key: a key of the first operator; None makes a new one at the first start.
        lend_key: whether a key is made for this run where none is given and the first is long known.
        may_crash: whether the sandbox may kill the process, because it is the server's own.
        mounts: transports for receivers of events within the process, by URL prefix.
        wrap_chain: returns the chain that the services see, given the one that executes.
        edge: where secrets come from and how RPC calls are made.

    Raises:
        ValueError: both a data_dir and a database_url; one of them without `seeded_port_keys`; or a
            database_schema that cannot name one.
    """

    settings: Settings = field(factory=Settings)
    data_dir: Path | None = None
    database_url: str | None = field(default=None, repr=False)
    database_schema: str = field(default=DATABASE_SCHEMA, converter=check_database_schema)
    rpc: RpcSettings | None = None
    clock: Clock = field(factory=SystemClock)
    seed: int | None = field(default=None, repr=False)
    seeded_port_keys: bool = True
    operator_key: str | None = field(default=None, repr=False)
    lend_key: bool = False
    may_crash: bool = False
    mounts: Mapping[str, httpx.AsyncBaseTransport] = field(factory=dict)
    wrap_chain: Callable[[Any], WatchedChain] = _same
    edge: Edge = field(factory=Edge)

    def __attrs_post_init__(self) -> None:
        if self.data_dir is not None and self.database_url is not None:
            raise ValueError("a server keeps its data in data_dir or at database_url, not in both")
        is_kept = self.data_dir is not None or self.database_url is not None
        if is_kept and not self.seeded_port_keys:
            # The first operator's key would be stored, and be valid on the port of a later start.
            raise ValueError("seeded_port_keys=False is for servers in memory: leave out the seed instead")
