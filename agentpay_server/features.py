"""The features of the server: the only module of the core that names plug-ins, each imported when needed.

A plug-in that is not installed is left out. The paywall, the facilitator, the node and the scenes take part
in no start: the commands and the test kit import them.
"""

from collections.abc import Awaitable, Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from agentpay._loading import needing
from agentpay_server.database.runner import MissingExtraError

if TYPE_CHECKING:
    from agentpay_server.database.file import FileDatabase
    from agentpay_server.feature import Feature
    from agentpay_server.plugins.cluster.chain import RpcChain
    from agentpay_server.plugins.cluster.client import RpcCaller as RpcCaller
    from agentpay_server.plugins.cluster.settings import RpcSettings as RpcSettings
    from agentpay_server.plugins.postgres.database import PostgresDatabase

_MODULES: Final = (
    "agentpay_server.accounts.feature",
    "agentpay_server.transfers.feature",
    "agentpay_server.plugins.pay402.feature",
    "agentpay_server.plugins.channels.feature",
    "agentpay_server.sessions.feature",
    "agentpay_server.webhooks.feature",
    "agentpay_server.operators.feature",
    "agentpay_server.sandbox.service",
    "agentpay_server.plugins.guards",
    "agentpay_server.plugins.console",
)


@cache
def features() -> "tuple[Feature[Any], ...]":
    """Return the features that are installed, in the order of the list."""
    found = []
    for name in _MODULES:
        try:
            found.append(import_module(name).FEATURE)
        except ModuleNotFoundError as missing:
            if not f"{name}.".startswith(f"{missing.name}."):
                raise
    return tuple(found)


def cluster() -> "Callable[..., Awaitable[RpcChain]]":
    """Return what connects to a cluster: `connect` of `plugins/cluster/chain.py`."""
    # It takes a fifth of a start.
    with needing("a Solana cluster", extra="cluster", refusal=MissingExtraError):
        from agentpay_server.plugins.cluster.chain import connect  # noqa: PLC0415
    return connect


def postgres(url: str, schema: str) -> "PostgresDatabase":
    """Return a PostgreSQL database, not connected yet."""
    with needing("PostgreSQL", extra="postgres", refusal=MissingExtraError):
        from agentpay_server.plugins.postgres.database import PostgresDatabase  # noqa: PLC0415
    return PostgresDatabase(url, schema)


async def upgrade(database: "FileDatabase | PostgresDatabase", *, only_if_empty: bool = False) -> None:
    """Lay out a database, or upgrade it to this version's schema; see `plugins/migrations`."""
    from agentpay_server.plugins import migrations  # noqa: PLC0415

    await migrations.upgrade(database, only_if_empty=only_if_empty)
