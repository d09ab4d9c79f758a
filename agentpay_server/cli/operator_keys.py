"""`agentpay-server operator-keys`: the caller's own operator keys (interface K8, K9)."""

import click

from agentpay import AgentPay
from agentpay.contract.identifiers import KEY
from agentpay_server.cli.connection import takes_server
from agentpay_server.cli.output import Output, takes_limit, up_to
from agentpay_server.cli.values import Identifier


@click.group("operator-keys")
def operator_keys() -> None:
    """Manage your operator keys.

    To replace a leaked key, create another one, give it to your programs, then revoke the old one.
    """


@operator_keys.command("list")
@takes_limit
@takes_server
def list_operator_keys(*, server: AgentPay, output: Output, limit: int) -> None:
    """List your valid operator keys, newest first. The keys themselves are not shown."""
    output.table(
        up_to(server.console.operator_keys.list(limit=min(limit, 100)), limit, output),
        {
            "key_id": lambda key: key.key_id,
            "name": lambda key: key.name,
            "kind": lambda key: key.kind,
            "created_at": lambda key: key.created_at,
            "expires_at": lambda key: key.expires_at,
        },
        empty="No operator keys.",
    )


@operator_keys.command("create")
@click.argument("name")
@takes_server
def create_operator_key(*, server: AgentPay, output: Output, name: str) -> None:
    """Create another operator key. It is shown only once.

    NAME is a label, 1 to 100 characters.
    """
    output.record_once(server.console.operator_keys.create(name=name), "New operator key")


@operator_keys.command("revoke")
@click.argument("key_id", type=Identifier(KEY))
@takes_server
def revoke_operator_key(*, server: AgentPay, output: Output, key_id: str) -> None:
    """Revoke an operator key. Its next request is refused. The last valid key cannot be revoked."""
    server.console.operator_keys.revoke(key_id)
    output.revoked(key_id)
