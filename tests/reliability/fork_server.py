"""A process that has loaded all that a server needs, and forks one for every order; see `forking.py`.

With it every fault point of every operation can be tried on every store in each run.
"""

import tempfile
import threading
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # noqa: F401 - loaded for the children
import sqlalchemy.dialects.postgresql.asyncpg  # noqa: F401
from forking import fork_for_each_order

from agentpay_server import AgentPayServer, cli
from agentpay_server import crash_points as faults
from agentpay_server.cli import process, serve  # noqa: F401 - loaded for the children
from agentpay_server.database import postgres  # noqa: F401


def warm_up() -> None:
    """Serve once, so that the children find everything loaded and every statement compiled."""
    with tempfile.TemporaryDirectory() as directory, AgentPayServer(data_dir=Path(directory)) as server:
        server.listen()
        client = server.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        server.sandbox.fund(payer.account_id, "1")
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
        client.policies.update(payer.account_id, max_single_transfer=1)
        server.sandbox.clock.advance(0)
    # A fork takes no thread along, and what a thread holds is held for ever.
    assert threading.active_count() == 1


def serve_order(order: dict[str, Any]) -> None:
    """Be the server that an order asks for."""
    if order["crash_at"] is not None:
        faults.arm(order["crash_at"])
    cli.main(order["arguments"])


if __name__ == "__main__":
    warm_up()
    fork_for_each_order(serve_order)
