"""`agentpay approvals`: transfers at or above their account's `escalation_threshold`.

See interface AP1 to AP5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from agentpay.cli.columns import Column, Show, amount
from agentpay.cli.options import takes_listing, takes_server, takes_yes
from agentpay.cli.values import Identifier
from agentpay.contract.identifiers import TRANSFER

if TYPE_CHECKING:
    from agentpay import AgentPay, PendingTransfer
    from agentpay.cli.listing import Listing
    from agentpay.cli.naming import AccountNames
    from agentpay.cli.output import Output

_EMPTY: Final = "No transfer waits for approval."


@click.group()
def approvals() -> None:
    """List, approve and reject transfers that wait for approval.

    While a transfer waits, nothing is signed and nothing is reserved. If it is not approved in time, it is
    rejected.
    """


@approvals.command("list")
@takes_listing
@takes_server
def list_approvals(*, server: AgentPay, output: Output, listing: Listing) -> None:
    """List waiting transfers, newest first."""
    from agentpay.cli.naming import AccountNames

    listing.show(
        output,
        lambda: server.approvals.list(limit=listing.page),
        _columns(AccountNames(server)),
        empty=_EMPTY,
        moment=lambda each: each.created_at,
    )


def _columns(names: AccountNames) -> list[Column]:
    return [
        Column("from", lambda each: names(each.from_), is_text=True),
        Column("amount", lambda each: each.amount_usdc),
        Column("reason", lambda each: each.memo or each.category, is_text=True),
        Column("to", lambda each: _recipients(names, each), is_text=True, show=Show.IF_IT_FITS),
        Column("expires", lambda each: each.expires_at, show=Show.IF_IT_FITS),
        Column("memo", lambda each: each.memo, is_text=True, show=Show.WIDE),
        Column("category", lambda each: each.category, show=Show.WIDE),
        Column("transfer_id", lambda each: each.transfer_id),
    ]


def _recipients(names: AccountNames, pending: PendingTransfer) -> str:
    count = len(pending.splits or ())
    return names(pending.to) + (f" and {count} more" if count else "")


def _described(server: AgentPay, transfer_id: str) -> str:
    from agentpay.cli.naming import AccountNames

    transfer, names = server.transfers.get(transfer_id), AccountNames(server)
    memo = f", {transfer.memo!r}" if transfer.memo else ""
    return f"{amount(transfer.amount_usdc)} USDC from {names(transfer.from_)} to {names(transfer.to)}{memo}"


@approvals.command("approve")
@click.argument("transfer_id", type=Identifier(TRANSFER))
@takes_yes
@takes_server
def approve(*, server: AgentPay, output: Output, transfer_id: str, is_yes: bool) -> None:
    """Approve a transfer: check the current policy again, then pay.

    Approving a transfer twice never pays twice.
    """
    from agentpay.cli.confirming import confirm

    confirm(output, lambda: f"Approve {_described(server, transfer_id)}?", is_yes=is_yes)
    with output.progress(f"Paying {transfer_id}"):
        transfer = server.approvals.approve(transfer_id)
    output.result(transfer, "Approved")


@approvals.command("reject")
@click.argument("transfer_id", type=Identifier(TRANSFER))
@click.option("--reason", help="Reason, 1 to 200 characters. The agent can read it.")
@takes_yes
@takes_server
def reject(*, server: AgentPay, output: Output, transfer_id: str, reason: str | None, is_yes: bool) -> None:
    """Reject a transfer. This cannot be undone."""
    from agentpay.cli.confirming import confirm

    confirm(output, lambda: f"Reject {_described(server, transfer_id)}?", is_yes=is_yes)
    output.result(server.approvals.reject(transfer_id, reason=reason), "Rejected")
