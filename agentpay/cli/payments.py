"""`agentpay payments`: transfers whose transaction the seller of an API call broadcasts (HTTP 402)."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, cast, get_args

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.exit_codes import PENDING_APPROVAL
from agentpay.cli.options import complete_account, takes_listing, takes_server
from agentpay.cli.values import Identifier, Usdc
from agentpay.contract import choices
from agentpay.contract.identifiers import TRANSFER

if TYPE_CHECKING:
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output
    from agentpay.contract.ext.payments import Payment


@click.group()
def payments() -> None:
    """Authorize, list and show payments for API calls that ask for money (HTTP 402)."""


@payments.command("authorize")
@click.argument("resource", metavar="URL")
@click.option(
    "--account",
    "payer",
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Account that pays. Default: the agent key's.",
)
@click.option("--max-amount", type=Usdc(), metavar="USDC", help="Most to pay. Default: the policy decides.")
@click.option(
    "--session-cap",
    type=Usdc(),
    metavar="USDC",
    help="USDC to lock for a seller that sells by session. Default: such a seller is not paid.",
)
@click.option("--method", default="GET", show_default=True, help="HTTP method of the request.")
@click.option("--memo", help="Memo, at most 200 characters.")
@click.option(
    "--idempotency-key",
    help="Names the purchase: the same key presents the same payment. Default: a new key.",
)
@takes_server
def authorize_payment(
    *,
    server: AgentPay,
    output: Output,
    resource: str,
    payer: str | None,
    max_amount: Decimal | None,
    session_cap: Decimal | None,
    method: str,
    memo: str | None,
    idempotency_key: str | None,
) -> None:
    """Sign the payment for the 402 of URL, read with its headers from standard input.

    \b
    curl -si https://api.example/x | agentpay payments authorize https://api.example/x -q

    Prints the header to send with the paid request; with -q nothing else. Anyone who has it can present it
    until it expires. While the payment waits for approval there is none, and the exit code is 4.

    With --session-cap, a seller that sells by session is paid in steps. After the step open, send the header,
    and authorize the same 402 with the same --idempotency-key: the step voucher pays the request.
    """  # noqa: D301 - the escape stops click from rewrapping the line
    import uuid

    from agentpay.cli.naming import find_account_or_own

    headers, body = _response(sys.stdin.buffer.read())
    account_id = find_account_or_own(server, output, payer)
    key = idempotency_key or str(uuid.uuid4())
    with output.progress("Signing"):
        payment = server.payments.authorize(
            account_id=account_id,
            idempotency_key=key,
            url=resource,
            method=method,
            headers=headers,
            body=body,
            max_amount=max_amount,
            session_cap=session_cap,
            memo=memo,
        )
    header = payment.header
    if output.is_quiet and not output.is_json and header is not None:
        from agentpay.contract.printable import printable

        click.echo(printable(f"{header.name}: {header.value}"))
        return
    output.result(payment, "Payment")
    if header is None:
        click.get_current_context().exit(PENDING_APPROVAL)


def _response(told: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """Return the headers and the body of an HTTP response as curl -i prints it: the last of several."""
    headers: list[tuple[str, str]] = []
    while told.startswith(b"HTTP/"):
        head, *rest = re.split(rb"\r?\n\r?\n", told, maxsplit=1)
        told = rest[0] if rest else b""
        pairs = (line.partition(":") for line in head.decode("latin-1").splitlines()[1:])
        headers = [(name.strip(), value.strip()) for name, colon, value in pairs if colon]
    if not headers:
        raise click.UsageError("pass the 402 with its headers on standard input, as curl -si prints it.")
    return headers, told


@payments.command("get")
@click.argument("transfer_id", type=Identifier(TRANSFER))
@takes_server
def get_payment(*, server: AgentPay, output: Output, transfer_id: str) -> None:
    """Show a payment."""
    with output.progress("Reading"):
        payment = server.payments.get(transfer_id)
    output.record(payment, "Payment")


def _status(payment: Payment) -> str:
    is_undelivered = payment.outcome is not None and not payment.outcome.is_delivered
    return f"{payment.status}, not delivered" if is_undelivered else payment.status


@payments.command("list")
@click.option(
    "--account", metavar="ACCOUNT", shell_complete=complete_account, help="Only payments of this account."
)
@click.option(
    "--status",
    type=click.Choice(get_args(choices.TransferStatus)),
    help="Only payments with this status.",
)
@click.option(
    "--seller", "origin", metavar="URL", help="Only payments to this seller, such as https://api.example."
)
@takes_listing
@takes_server
def list_payments(
    *,
    server: AgentPay,
    output: Output,
    listing: Listing,
    account: str | None,
    status: str | None,
    origin: str | None,
) -> None:
    """List payments, newest first."""
    from agentpay.cli.naming import AccountNames, find_account

    account_id = None if account is None else find_account(server, output, account)
    wanted = cast("choices.TransferStatus | None", status)
    names = AccountNames(server)
    columns = [
        Column("payer", lambda each: names(each.account_id), is_text=True),
        Column("amount", lambda each: each.amount_usdc),
        Column("status", _status),
        Column("seller", lambda each: each.origin.removeprefix("https://"), is_text=True),
        Column("protocol", lambda each: each.protocol, show=Show.WIDE),
        Column("settled", lambda each: each.settled_at, show=Show.IF_IT_FITS),
        Column("url", lambda each: each.url, show=Show.WIDE),
        Column("error", lambda each: each.error, show=Show.WIDE),
        Column("transfer_id", lambda each: each.transfer_id),
    ]
    listing.show(
        output,
        lambda: server.payments.list(
            account_id=account_id,
            status=wanted,
            origin=origin,
            since=listing.since,
            until=listing.until,
            limit=listing.page,
        ),
        columns,
        empty="No payments match.",
    )
