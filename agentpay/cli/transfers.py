"""`agentpay transfers` and `agentpay approvals`: moving USDC out of an account, and approving it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import click

from agentpay.cli import PENDING_APPROVAL, REFUSED
from agentpay.cli.commands import Column, Show, command, group, listing
from agentpay.cli.options import (
    CATEGORY,
    IDEMPOTENCY_KEY,
    TO,
    TRANSFER_ID,
    USDC,
    account_option,
    by_option,
    identifier,
    payer_option,
    status_option,
)
from agentpay.contract.choices import ApprovalSort, TransferSort, TransferStatus
from agentpay.contract.identifiers import TRANSFER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentpay import AgentPay, PendingTransfer

_TRANSFER = (
    payer_option("from_"),
    TO,
    click.option("--amount", type=USDC, required=True, help="Amount to pay."),
    click.option("--memo", help="Memo, at most 200 characters."),
    CATEGORY,
)

_ORDERS: Final[Mapping[str, TransferSort]] = {"amount": "-amount"}

transfers: Final = group(
    "transfers",
    "Create, check and list transfers.",
    command(
        "create",
        """Pay USDC from an account, under its policy.

        At or above the policy's escalation_threshold the transfer waits for approval: status
        pending_approval, exit code 4. If the outcome is unknown, the exit code is 6, and the message has the
        idempotency key that resumes it.
        """,
        *_TRANSFER,
        IDEMPOTENCY_KEY,
        call=lambda client: client.transfers.create,
        progress="Paying {amount} USDC",
        makes="Transfer",
        exit_code=lambda transfer: PENDING_APPROVAL if transfer.status == "pending_approval" else 0,
    ),
    command(
        "check",
        """Show what a transfer would do. Nothing is paid or reserved.

        The result is that it would settle, wait for approval (exit code 4) or be rejected (exit code 5).
        """,
        *_TRANSFER,
        call=lambda client: client.transfers.check,
        progress="Checking",
        reads="Check",
        exit_code=lambda check: {"escalate": PENDING_APPROVAL, "reject": REFUSED}.get(check.decision, 0),
    ),
    command(
        "get", "Show a transfer.", TRANSFER_ID, call=lambda client: client.transfers.get, reads="Transfer"
    ),
    listing(
        "list",
        "List transfers, newest first or sorted.",
        account_option("Only transfers out of this account."),
        status_option(TransferStatus, "transfers"),
        click.option("--error", metavar="CODE", help="Only with this error, such as insufficient_balance."),
        by_option("Only transfers that this key requested."),
        click.option("--memo", metavar="TEXT", help="Only with a memo that begins with this, ignoring case."),
        click.option("--min-amount", type=USDC, help="Only transfers of at least this amount."),
        click.option("--max-amount", type=USDC, help="Only transfers of at most this amount."),
        click.option("--sort", type=click.Choice(list(_ORDERS)), help="By amount, the largest first."),
        call=lambda client: lambda sort="", **given: client.transfers.list(sort=_ORDERS.get(sort), **given),
        columns=[
            Column("from", "from_", is_text=True, is_account=True),
            Column("amount", "amount_usdc"),
            Column("status"),
            Column("to", show=Show.IF_IT_FITS, is_account=True),
            Column("settled", "settled_at", Show.IF_IT_FITS),
            Column("error", show=Show.WIDE),
            Column("memo", is_text=True, show=Show.IF_IT_FITS),
            Column("transfer_id"),
        ],
        empty="No transfers match.",
    ),
)


def _recipients(pending: PendingTransfer) -> str:
    count = len(pending.splits or ())
    return pending.to + (f" and {count} more" if count else "")


def _described(client: AgentPay, transfer_id: str, **_: Any) -> str:  # noqa: ANN401 - other options
    from agentpay.cli.tables import amount

    transfer = client.transfers.get(transfer_id)
    memo = f", {transfer.memo!r}" if transfer.memo else ""
    return f"{amount(transfer.amount_usdc)} USDC from {transfer.from_} to {transfer.to}{memo}"


_WAITING = click.argument("transfer_id", type=identifier(TRANSFER, completes="waiting transfer"))

approvals: Final = group(
    "approvals",
    """List, approve and reject transfers that wait for approval.

    While a transfer waits, nothing is signed and nothing is reserved. If it is not approved in time, it is
    rejected.
    """,
    listing(
        "list",
        "List waiting transfers, newest first or sorted.",
        click.option(
            "--sort", type=click.Choice(get_args(ApprovalSort)), help="The soonest to expire first."
        ),
        call=lambda client: client.approvals.list,
        columns=[
            Column("from", "from_", is_text=True, is_account=True),
            Column("amount", "amount_usdc"),
            Column("reason", lambda each: each.memo or each.category, is_text=True),
            Column("to", _recipients, Show.IF_IT_FITS, is_text=True, is_account=True),
            Column("expires", "expires_at", Show.IF_IT_FITS),
            Column("memo", is_text=True, show=Show.WIDE),
            Column("category", show=Show.WIDE),
            Column("transfer_id"),
        ],
        empty="No transfer waits for approval.",
        moment="created_at",
    ),
    command(
        "approve",
        """Approve a transfer: check the current policy again, then pay.

        Approving a transfer twice never pays twice.
        """,
        _WAITING,
        call=lambda client: client.approvals.approve,
        asks=lambda client, **given: f"Approve {_described(client, **given)}?",
        progress="Paying {transfer_id}",
        makes="Approved",
    ),
    command(
        "reject",
        "Reject a transfer. This cannot be undone.",
        _WAITING,
        click.option("--reason", help="Reason, 1 to 200 characters. The agent can read it."),
        call=lambda client: client.approvals.reject,
        asks=lambda client, **given: f"Reject {_described(client, **given)}?",
        progress="Rejecting {transfer_id}",
        makes="Rejected",
    ),
)
