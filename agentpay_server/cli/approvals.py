"""`agentpay-server approvals`: transfers at or above their account's `escalation_threshold`.

See interface AP1 to AP5.
"""

import click

from agentpay import AgentPay
from agentpay.contract.identifiers import TRANSFER
from agentpay_server.cli.connection import takes_server
from agentpay_server.cli.output import Output, takes_limit, up_to
from agentpay_server.cli.values import Identifier


@click.group()
def approvals() -> None:
    """List, approve and reject transfers that wait for approval.

    While a transfer waits, nothing is signed and nothing is reserved. If it is not approved in time, it is
    rejected.
    """


@approvals.command("list")
@takes_limit
@takes_server
def list_approvals(*, server: AgentPay, output: Output, limit: int) -> None:
    """List waiting transfers, newest first."""
    output.table(
        up_to(server.console.approvals.list(limit=min(limit, 100)), limit, output),
        {
            "transfer_id": lambda transfer: transfer.transfer_id,
            "amount_usdc": lambda transfer: transfer.amount_usdc,
            "from": lambda transfer: transfer.from_,
            "to": lambda transfer: transfer.to,
            "memo": lambda transfer: transfer.memo,
            "category": lambda transfer: transfer.category,
            "expires_at": lambda transfer: transfer.expires_at,
        },
        empty="No transfer waits for approval.",
    )


@approvals.command("approve")
@click.argument("transfer_id", type=Identifier(TRANSFER))
@takes_server
def approve(*, server: AgentPay, output: Output, transfer_id: str) -> None:
    """Approve a transfer: check the current policy again, then pay.

    Approving a transfer twice never pays twice.
    """
    with output.progress(f"Paying {transfer_id}"):
        transfer = server.console.approvals.approve(transfer_id)
    output.record(transfer, "Approved")


@approvals.command("reject")
@click.argument("transfer_id", type=Identifier(TRANSFER))
@click.option("--reason", help="Reason, 1 to 200 characters. The agent can read it.")
@takes_server
def reject(*, server: AgentPay, output: Output, transfer_id: str, reason: str | None) -> None:
    """Reject a transfer, finally."""
    output.record(server.console.approvals.reject(transfer_id, reason=reason), "Rejected")
