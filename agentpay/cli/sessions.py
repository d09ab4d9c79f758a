"""`agentpay sessions`: a cap in escrow, charged in small amounts, settled in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.options import complete_account, takes_listing, takes_server
from agentpay.cli.values import Identifier, Usdc
from agentpay.contract.choices import SessionStatus
from agentpay.contract.identifiers import SESSION

if TYPE_CHECKING:
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output

_KEY_HELP = "Idempotency key. Default: a new one. To resume an earlier attempt, pass its key."


@click.group()
def sessions() -> None:
    """Open, charge, close and list sessions.

    Opening a session moves its cap into escrow. Charges add up within the cap; closing pays the payee what
    was charged and returns the rest.
    """


@sessions.command("open")
@click.option(
    "--from",
    "payer",
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Account that pays. Default: the agent key's.",
)
@click.option(
    "--to",
    "payee",
    required=True,
    metavar="PAYEE",
    shell_complete=complete_account,
    help="Payee: account, or USDC token account.",
)
@click.option("--cap", type=Usdc(), required=True, metavar="USDC", help="Most that can be charged.")
@click.option("--category", help="Spend category, 1 to 64 characters.")
@click.option("--idempotency-key", help=_KEY_HELP)
@takes_server
def open_session(
    *,
    server: AgentPay,
    output: Output,
    payer: str | None,
    payee: str,
    cap: Decimal,
    category: str | None,
    idempotency_key: str | None,
) -> None:
    """Open a session: put its cap into escrow."""
    from agentpay.cli.naming import find_account_or_own, find_payee

    account_id = find_account_or_own(server, output, payer)
    to = find_payee(server, output, payee)
    with output.progress(f"Funding the escrow with {cap} USDC"):
        session = server.sessions.open(
            account_id=account_id, to=to, cap_usdc=cap, category=category, idempotency_key=idempotency_key
        )
    output.result(session, "Session")


@sessions.command("charge")
@click.argument("session_id", type=Identifier(SESSION))
@click.argument("amount", type=Usdc())
@click.option("--idempotency-key", help=_KEY_HELP)
@takes_server
def charge_session(
    *, server: AgentPay, output: Output, session_id: str, amount: Decimal, idempotency_key: str | None
) -> None:
    """Add AMOUNT to a session's running total."""
    with output.progress(f"Charging {amount} USDC"):
        session = server.sessions.charge(session_id, amount=amount, idempotency_key=idempotency_key)
    output.result(session, "Session")


@sessions.command("close")
@click.argument("session_id", type=Identifier(SESSION))
@takes_server
def close_session(*, server: AgentPay, output: Output, session_id: str) -> None:
    """Close a session: pay what was charged, return the rest. Closing again never pays twice.

    For a session over HTTP 402 this asks its seller to settle; the service closes it by force if the seller
    does not within 60 seconds.
    """
    with output.progress(f"Settling {session_id}"):
        session = server.sessions.close(session_id)
    output.result(session, "Session")


@sessions.command("get")
@click.argument("session_id", type=Identifier(SESSION))
@takes_server
def get_session(*, server: AgentPay, output: Output, session_id: str) -> None:
    """Show a session."""
    with output.progress("Reading"):
        session = server.sessions.get(session_id)
    output.record(session, "Session")


@sessions.command("list")
@click.option(
    "--account",
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Only sessions that this account pays.",
)
@click.option(
    "--status",
    type=click.Choice(get_args(SessionStatus)),
    help="Only sessions with this status.",
)
@takes_listing
@takes_server
def list_sessions(
    *, server: AgentPay, output: Output, listing: Listing, account: str | None, status: SessionStatus | None
) -> None:
    """List sessions, newest first."""
    from agentpay.cli.naming import AccountNames, find_account

    account_id = None if account is None else find_account(server, output, account)
    names = AccountNames(server)
    columns = [
        Column("payer", lambda each: names(each.account_id), is_text=True),
        Column("charged", lambda each: each.running_total_usdc),
        Column("cap", lambda each: each.cap_usdc),
        Column("status", lambda each: each.status),
        Column("to", lambda each: names(each.to), show=Show.IF_IT_FITS),
        Column("opened", lambda each: each.opened_at, show=Show.IF_IT_FITS),
        Column("category", lambda each: each.category, show=Show.WIDE),
        Column("closing_reason", lambda each: each.closing_reason, show=Show.WIDE),
        Column("session_id", lambda each: each.session_id),
    ]
    listing.show(
        output,
        lambda: server.sessions.list(
            account_id=account_id,
            status=status,
            since=listing.since,
            until=listing.until,
            limit=listing.page,
        ),
        columns,
        empty="No sessions match.",
    )
