"""What a store keeps sealed, opened with its encryption key as another program could."""

import money
import stores

from agentpay_server import AgentPayServer
from agentpay_server.platform.vault import Place, Vault


def opened(sealed: bytes, *, table: str, column: str, row: str, key: bytes = stores.KEY) -> str:
    """Return the secret that is stored in a row.

    Raises:
        Exception: it is damaged, or belongs to another place or key.
    """
    return Vault(key).open(sealed, Place(table=table, column=column, row=row))


def opened_by(server: AgentPayServer, sealed: bytes, *, table: str, column: str, row: str) -> str:
    """Return the secret with the key of a server that runs."""
    return server._running.server.context.vault.open(sealed, Place(table=table, column=column, row=row))


def seed_of(server: AgentPayServer) -> str:
    """Return the seed of all signing keys, as hex."""
    (row,) = money.rows(server, "server_state", name="custody_seed")
    return opened_by(server, row["value"], table="server_state", column="value", row="custody_seed")
