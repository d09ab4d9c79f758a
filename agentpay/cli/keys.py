"""`agentpay keys`: managing agent keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.options import complete_account, takes_listing, takes_server, takes_yes
from agentpay.contract.bounds import MAX_KEY_SECONDS

if TYPE_CHECKING:
    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output


@click.group()
def keys() -> None:
    """Manage agent keys.

    An agent key is bound to one account. It can pay from that account, within its policy, and read it.
    """


@keys.command("list")
@takes_listing
@takes_server
def list_keys(*, server: AgentPay, output: Output, listing: Listing) -> None:
    """List valid agent keys, newest first. The keys themselves are not shown."""
    from agentpay.cli.naming import AccountNames

    names = AccountNames(server)
    columns = [
        Column("name", lambda key: key.name, is_text=True),
        Column("account", lambda key: names(key.account_id), is_text=True),
        Column("created", lambda key: key.created_at, show=Show.IF_IT_FITS),
        Column("expires", lambda key: key.expires_at, show=Show.IF_IT_FITS),
        Column("spent", lambda key: key.spent_total_usdc, show=Show.IF_IT_FITS),
        Column("of", lambda key: key.max_total_usdc, show=Show.IF_IT_FITS),
        Column("key_id", lambda key: key.key_id),
    ]
    listing.show(
        output,
        lambda: server.agent_keys.list(limit=listing.page),
        columns,
        empty="No agent keys. Create one with agentpay keys create --account ACCOUNT.",
        moment=lambda each: each.created_at,
    )


@keys.command("create")
@click.option(
    "--account",
    required=True,
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Account that the key is bound to.",
)
@click.option("--name", help="Label, 1 to 100 characters.")
@click.option(
    "--expires-in",
    type=click.IntRange(1, MAX_KEY_SECONDS),
    metavar="SECONDS",
    help="Let the key expire after this time. Default: it does not expire.",
)
@click.option(
    "--max-total",
    metavar="USDC",
    help="USDC that the key may spend in its lifetime. Default: only the policy limits it.",
)
@takes_server
def create_key(
    *,
    server: AgentPay,
    output: Output,
    account: str,
    name: str | None,
    expires_in: int | None,
    max_total: str | None,
) -> None:
    """Create an agent key. It is shown only once."""
    from agentpay.cli.naming import find_account

    account_id = find_account(server, output, account)
    key = server.agent_keys.create(account_id, name=name, expires_in=expires_in, max_total_usdc=max_total)
    output.record_once(key, "New agent key")


@keys.command("revoke")
@click.argument("agent_key", metavar="KEY_ID|NAME")
@takes_yes
@takes_server
def revoke_key(*, server: AgentPay, output: Output, agent_key: str, is_yes: bool) -> None:
    """Revoke an agent key, given by identifier or name. It does nothing any more."""
    from agentpay.cli.confirming import confirm
    from agentpay.cli.naming import find_key

    key_id = find_key(server, output, agent_key)
    confirm(output, lambda: f"Revoke {_described(server, key_id)}? It can pay nothing more.", is_yes=is_yes)
    server.agent_keys.revoke(key_id)
    output.done("key_id", key_id, "revoked")


def _described(server: AgentPay, key_id: str) -> str:
    from agentpay.cli.naming import AccountNames

    found = (each for each in server.agent_keys.list(limit=100) if each.key_id == key_id)
    return next(
        (f"agent key {each.name!r} of {AccountNames(server)(each.account_id)}" for each in found), key_id
    )
