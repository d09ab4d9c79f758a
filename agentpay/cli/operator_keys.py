"""`agentpay operator-keys`: the caller's own operator keys (interface K8, K9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from agentpay.cli.columns import Column
from agentpay.cli.options import takes_listing, takes_server, takes_yes

if TYPE_CHECKING:
    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output

_COLUMNS: Final = [
    Column("name", lambda key: key.name, is_text=True),
    Column("kind", lambda key: key.kind),
    Column("created", lambda key: key.created_at),
    Column("expires", lambda key: key.expires_at),
    Column("key_id", lambda key: key.key_id),
]


@click.group("operator-keys")
def operator_keys() -> None:
    """Manage your operator keys.

    To replace a leaked key, create another one, give it to your programs, then revoke the old one.
    """


@operator_keys.command("list")
@takes_listing
@takes_server
def list_operator_keys(*, server: AgentPay, output: Output, listing: Listing) -> None:
    """List your valid operator keys, newest first. The keys themselves are not shown."""
    listing.show(
        output,
        lambda: server.operator_keys.list(limit=listing.page),
        _COLUMNS,
        empty="No operator keys.",
        moment=lambda each: each.created_at,
    )


@operator_keys.command("create")
@click.argument("name")
@takes_server
def create_operator_key(*, server: AgentPay, output: Output, name: str) -> None:
    """Create another operator key. It is shown only once.

    NAME is a label, 1 to 100 characters.
    """
    output.record_once(server.operator_keys.create(name=name), "New operator key")


@operator_keys.command("revoke")
@click.argument("operator_key", metavar="KEY_ID|NAME")
@takes_yes
@takes_server
def revoke_operator_key(*, server: AgentPay, output: Output, operator_key: str, is_yes: bool) -> None:
    """Revoke an operator key, given by identifier or name. The last valid key cannot be revoked."""
    from agentpay.cli.confirming import confirm
    from agentpay.cli.naming import find_operator_key

    key_id = find_operator_key(server, output, operator_key)
    confirm(
        output,
        lambda: f"Revoke {_described(server, key_id)}? Programs that use it are refused from then on.",
        is_yes=is_yes,
    )
    server.operator_keys.revoke(key_id)
    output.done("key_id", key_id, "revoked")


def _described(server: AgentPay, key_id: str) -> str:
    found = (each for each in server.operator_keys.list(limit=100) if each.key_id == key_id)
    return next((f"operator key {each.name!r}" for each in found), key_id)
