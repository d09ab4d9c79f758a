"""`agentpay transfers`: moving USDC out of an account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.exit_codes import PENDING_APPROVAL, REFUSED
from agentpay.cli.options import complete_account, takes_listing, takes_server
from agentpay.cli.values import Identifier, Usdc
from agentpay.contract.choices import TransferStatus
from agentpay.contract.identifiers import TRANSFER

if TYPE_CHECKING:
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output

_PAYEE: Final = "Payee: account, or USDC token account."


@click.group()
def transfers() -> None:
    """Create, check and list transfers."""


def _takes_transfer(command: Any) -> Any:  # noqa: ANN401 - a function and the same function
    for option in (
        click.option("--category", help="Spend category, 1 to 64 characters."),
        click.option("--memo", help="Memo, at most 200 characters."),
        click.option("--amount", type=Usdc(), required=True, metavar="USDC", help="Amount to pay."),
        click.option(
            "--to", "payee", required=True, metavar="PAYEE", shell_complete=complete_account, help=_PAYEE
        ),
        click.option(
            "--from",
            "payer",
            metavar="ACCOUNT",
            shell_complete=complete_account,
            help="Account that pays. Default: the agent key's.",
        ),
    ):
        command = option(command)
    return command


@transfers.command("create")
@_takes_transfer
@click.option(
    "--idempotency-key",
    help="Idempotency key. Default: a new one. To resume an earlier attempt, pass its key.",
)
@takes_server
def create_transfer(
    *,
    server: AgentPay,
    output: Output,
    payer: str | None,
    payee: str,
    amount: Decimal,
    memo: str | None,
    category: str | None,
    idempotency_key: str | None,
) -> None:
    """Pay USDC from an account, under its policy.

    At or above the policy's escalation_threshold the transfer waits for approval: status pending_approval,
    exit code 4. If the outcome is unknown, the exit code is 6, and the message has the idempotency key that
    resumes it.
    """
    from_, to = _ends(server, output, payer, payee)
    with output.progress(f"Paying {amount} USDC"):
        transfer = server.transfers.create(
            from_=from_, to=to, amount=amount, memo=memo, category=category, idempotency_key=idempotency_key
        )
    output.result(transfer, "Transfer")
    if transfer.status == "pending_approval":
        click.get_current_context().exit(PENDING_APPROVAL)


@transfers.command("check")
@_takes_transfer
@takes_server
def check_transfer(
    *,
    server: AgentPay,
    output: Output,
    payer: str | None,
    payee: str,
    amount: Decimal,
    memo: str | None,
    category: str | None,
) -> None:
    """Show what a transfer would do. Nothing is paid or reserved.

    The result is that it would settle, wait for approval (exit code 4) or be rejected (exit code 5).
    """
    from_, to = _ends(server, output, payer, payee)
    with output.progress("Checking"):
        check = server.transfers.check(from_=from_, to=to, amount=amount, memo=memo, category=category)
    output.record(check, "Check")
    if code := {"escalate": PENDING_APPROVAL, "reject": REFUSED}.get(check.decision):
        click.get_current_context().exit(code)


@transfers.command("get")
@click.argument("transfer_id", type=Identifier(TRANSFER))
@takes_server
def get_transfer(*, server: AgentPay, output: Output, transfer_id: str) -> None:
    """Show a transfer."""
    with output.progress("Reading"):
        transfer = server.transfers.get(transfer_id)
    output.record(transfer, "Transfer")


@transfers.command("list")
@click.option(
    "--account",
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Only transfers out of this account.",
)
@click.option(
    "--status",
    type=click.Choice(get_args(TransferStatus)),
    help="Only transfers with this status.",
)
@takes_listing
@takes_server
def list_transfers(
    *,
    server: AgentPay,
    output: Output,
    listing: Listing,
    account: str | None,
    status: TransferStatus | None,
) -> None:
    """List transfers, newest first."""
    from agentpay.cli.naming import AccountNames, find_account

    account_id = None if account is None else find_account(server, output, account)
    names = AccountNames(server)
    columns = [
        Column("from", lambda each: names(each.from_), is_text=True),
        Column("amount", lambda each: each.amount_usdc),
        Column("status", lambda each: each.status),
        Column("to", lambda each: names(each.to), show=Show.IF_IT_FITS),
        Column("settled", lambda each: each.settled_at, show=Show.IF_IT_FITS),
        Column("error", lambda each: each.error, show=Show.WIDE),
        Column("memo", lambda each: each.memo, is_text=True, show=Show.IF_IT_FITS),
        Column("transfer_id", lambda each: each.transfer_id),
    ]
    listing.show(
        output,
        lambda: server.transfers.list(
            account_id=account_id, status=status, since=listing.since, until=listing.until, limit=listing.page
        ),
        columns,
        empty="No transfers match.",
    )


def _ends(server: AgentPay, output: Output, payer: str | None, payee: str) -> tuple[str, str]:
    from agentpay.cli.naming import find_account_or_own, find_payee

    return find_account_or_own(server, output, payer), find_payee(server, output, payee)
