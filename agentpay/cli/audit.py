"""`agentpay audit` and `agentpay requests`: who changed what, and what the service has responded to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.options import complete_account, takes_listing, takes_server

if TYPE_CHECKING:
    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.naming import AccountNames
    from agentpay.cli.output import Output
    from agentpay.contract.ext.console import AuditEntry, ServedRequest


@click.group()
def audit() -> None:
    """List who changed what."""


@audit.command("list")
@click.option(
    "--account",
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Only changes that name this account.",
)
@takes_listing
@takes_server
def list_audit(*, server: AgentPay, output: Output, account: str | None, listing: Listing) -> None:
    """List changes, newest first. With --json, includes the state before and after each."""
    from agentpay.cli.naming import AccountNames, find_account

    names = AccountNames(server)
    account_id = None if account is None else find_account(server, output, account)
    columns = [
        Column("when", lambda each: each.created_at),
        Column("by", partial(_by, names), is_text=True),
        Column("action", lambda each: each.action),
        Column("subject", lambda each: names(each.subject), is_text=True),
        Column("request_id", lambda each: each.request_id, show=Show.WIDE),
    ]
    listing.show(
        output,
        lambda: server.console.audit_log.list(
            account_id=account_id, since=listing.since, until=listing.until, limit=listing.page
        ),
        columns,
        empty="No changes.",
    )


def _by(names: AccountNames, each: AuditEntry | ServedRequest) -> str:
    """Return the name of a key; of an agent's key without one, its account."""
    if each.key_name is not None:
        return each.key_name
    if each.key_account_id is not None:
        return f"agent of {names(each.key_account_id)}"
    return each.key_id or "the service"


@click.group()
def requests() -> None:
    """List requests that the service has responded to."""


@requests.command("list")
@takes_listing
@takes_server
def list_requests(*, server: AgentPay, output: Output, listing: Listing) -> None:
    """List the last 1,000 requests of the operator to this server process, newest first."""
    from agentpay.cli.naming import AccountNames

    names = AccountNames(server)
    columns = [
        Column("when", lambda each: each.at),
        Column("by", partial(_by, names), is_text=True),
        Column("method", lambda each: each.method),
        Column("route", lambda each: each.route, is_text=True),
        Column("status", lambda each: each.status),
        Column("ms", lambda each: each.duration_ms),
        Column("request_id", lambda each: each.request_id, show=Show.IF_IT_FITS),
    ]
    listing.show(
        output,
        lambda: server.console.request_logs.list(limit=listing.page),
        columns,
        empty="No requests.",
        moment=lambda each: each.at,
    )
