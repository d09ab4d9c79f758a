"""The configuration of a server, created by `AgentPayServer(...)`, by `serve` and by tests."""

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import converters, field, frozen

from agentpay_server.chain.protocol import Chain
from agentpay_server.platform.clock import Clock, SystemClock
from agentpay_server.platform.randomness import Randomness, SystemRandomness, randomness
from agentpay_server.platform.settings import (
    DATABASE_SCHEMA,
    KEY_VARIABLE,
    Settings,
    check_database_schema,
    option,
)

if TYPE_CHECKING:
    import httpx

    from agentpay_server.features import RpcCaller, RpcSettings


@frozen(kw_only=True)
class Edge:
    """A server's connections to the outside, which a simulation replaces.

    `entropy` is the source of secrets that must not depend on a seed, such as nonces.
    """

    entropy: Randomness = field(factory=SystemRandomness)
    rpc_client: "Callable[[RpcSettings], RpcCaller] | None" = None

    def randomness(self, seed: int | None, *, start: int = 0, stream: str = "") -> Randomness:
        """The function `randomness`, with `entropy` as the system's source."""
        return self.entropy if seed is None else randomness(seed, start=start, stream=stream)


def _same(chain: Chain) -> Chain:
    return chain


def check_authority(path: Path | str) -> str:
    """Return the path of a PEM file with certificates.

    Raises:
        ValueError: it cannot be read, or is not PEM.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except OSError as error:
        reason = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise ValueError(f"webhook_ca: cannot read {path}: {reason}") from None
    return str(path)


@frozen(kw_only=True)
class ServerConfig:
    """The configuration of a server; `AgentPayServer` describes the fields that it takes as arguments.

    Attributes:
        database_url: without it and `data_dir`, data is in memory.
        rpc: the Solana cluster; None for an embedded chain.
        channel_program: ELF file of the embedded chain's program of payment channels; None for ours.
        seed: does not affect the keys that hold money on a cluster; public clusters require None.
        seeded_port_keys: all API keys are derived from the seed; False limits that to the first operator's,
            and requires data in memory.
        operator_key: a key of the first operator; None creates one at the first start on the data.
        temporary_key: create a key for this run if none is given and the first is no longer known.
        may_crash: the sandbox may kill the process, because it serves nothing else.
        mounts: transports for event receivers within the process, by URL prefix.
    """

    settings: Settings = field(factory=Settings)
    data_dir: Path | None = field(
        default=None,
        metadata=option("--data-dir", "Directory for all data; created if missing."),
    )
    database_url: str | None = field(
        default=None,
        repr=False,
        metadata=option(
            "--database-url",
            f"PostgreSQL database for all data, postgresql://…; requires {KEY_VARIABLE}.",
            variable="AGENTPAY_SERVER_DATABASE_URL",
            metavar="URL",
            is_secret=True,
        ),
    )
    database_schema: str = field(
        default=DATABASE_SCHEMA,
        converter=check_database_schema,
        metadata=option(
            "--database-schema",
            "Schema for all tables; created if missing.",
            variable="AGENTPAY_SERVER_DATABASE_SCHEMA",
            metavar="NAME",
            default=DATABASE_SCHEMA,
        ),
    )
    rpc: "RpcSettings | None" = None
    channel_program: bytes | None = field(default=None, repr=False)
    clock: Clock = field(factory=SystemClock)
    seed: int | None = field(default=None, repr=False)
    seeded_port_keys: bool = True
    operator_key: str | None = field(
        default=None,
        repr=False,
        metadata=option(
            "--operator-key",
            "Operator key to use instead of a new one; it is never printed. On existing data it is added to "
            "the existing keys. Generate one with agentpay-server keys generate.",
            variable="AGENTPAY_SERVER_OPERATOR_KEY",
            is_secret=True,
        ),
    )
    webhook_ca: str | None = field(
        default=None,
        converter=converters.optional(check_authority),
        metadata=option(
            "--webhook-ca",
            "PEM file of a certificate authority that webhook receivers may have their certificate from, in "
            "addition to the usual ones. SSL_CERT_FILE replaces the usual ones.",
            metavar="FILE",
        ),
    )
    temporary_key: bool = False
    may_crash: bool = False
    mounts: "Mapping[str, httpx.AsyncBaseTransport]" = field(factory=dict)
    wrap_chain: Callable[[Any], Chain] = _same
    edge: Edge = field(factory=Edge)

    def __attrs_post_init__(self) -> None:
        if self.data_dir is not None and self.database_url is not None:
            raise ValueError("a server stores its data in data_dir or at database_url, not in both")
        is_kept = self.data_dir is not None or self.database_url is not None
        if is_kept and not self.seeded_port_keys:
            # The stored key of the first operator would still be valid on a port of a later run.
            raise ValueError("seeded_port_keys=False is for servers in memory: leave out the seed instead")
