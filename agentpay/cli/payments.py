"""`agentpay payments`, `sellers` and `sessions`: paying calls (HTTP 402), and charging in small amounts."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from agentpay.cli import FAILED, OUTCOME_UNKNOWN, PENDING_APPROVAL, REFUSED
from agentpay.cli.commands import Column, Show, command, group, listing
from agentpay.cli.options import (
    CATEGORY,
    IDEMPOTENCY_KEY,
    SESSION_ID,
    TO,
    TRANSFER_ID,
    USDC,
    account_option,
    as_typed,
    payer_option,
    status_option,
    takes_server,
)
from agentpay.contract.choices import PaymentFilter, SessionStatus

if TYPE_CHECKING:
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.output import Output
    from agentpay.contract.ext.payments import Payment


def _status(payment: Payment) -> str:
    is_undelivered = payment.outcome is not None and not payment.outcome.is_delivered
    return f"{payment.status}, not delivered" if is_undelivered else payment.status


payments: Final = group(
    "payments",
    "Pay for API calls (HTTP 402) and tools (MCP) that ask for money; list payments.",
    command("get", "Show a payment.", TRANSFER_ID, call=lambda client: client.payments.get, reads="Payment"),
    listing(
        "list",
        "List payments, newest first.",
        account_option("Only payments of this account."),
        status_option(PaymentFilter, "payments", "undelivered: settled, and not delivered."),
        click.option(
            "--seller",
            "origin",
            metavar="URL",
            help="Only payments to this seller, such as https://api.example.",
        ),
        call=lambda client: client.payments.list,
        columns=[
            Column("payer", "account_id", is_text=True, is_account=True),
            Column("amount", "amount_usdc"),
            Column("status", _status),
            Column("seller", lambda each: each.origin.removeprefix("https://"), is_text=True),
            Column("protocol", show=Show.WIDE),
            Column("settled", "settled_at", Show.IF_IT_FITS),
            Column("url", show=Show.WIDE),
            Column("error", show=Show.WIDE),
            Column("transaction", "tx_signature", Show.WIDE),
            Column("receipt", lambda each: each.outcome and each.outcome.receipt, Show.WIDE),
            Column("transfer_id"),
        ],
        empty="No payments match.",
    ),
)


@payments.command("authorize")
@click.argument("resource", metavar="URL")
@payer_option("account_id", "--account")
@click.option("--max-amount", type=USDC, help="Most to pay. Default: the policy decides.")
@click.option(
    "--session-cap",
    type=USDC,
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
    account_id: str,
    idempotency_key: str | None,
    **given: Any,  # noqa: ANN401 - as `payments.authorize` takes them
) -> None:
    """Sign the payment for the 402 on standard input.

    It is the response of URL with its headers, as curl prints it:

    \b
    curl -si https://api.example/x | agentpay payments authorize https://api.example/x -q

    Prints the header to send with the paid request; with -q nothing else. Anyone who knows it can present it
    until it expires. A payment that waits for approval has no header yet; the exit code is then 4.

    With --session-cap, a seller that sells by session is paid in steps. After the step open, send the header,
    and authorize the same 402 with the same --idempotency-key: the step voucher pays the request.
    """  # noqa: D301 - the escape stops click from rewrapping the line
    import uuid

    _origin_of(resource)
    headers, body = _response(sys.stdin.buffer.read())
    key = idempotency_key or str(uuid.uuid4())
    with output.progress("Signing"):
        payment = server.payments.authorize(
            account_id=account_id, idempotency_key=key, url=resource, headers=headers, body=body, **given
        )
    header = payment.header
    if output.is_quiet and not output.is_json and header is not None:
        from agentpay.contract.printable import printable

        click.echo(printable(f"{header.name}: {header.value}"))
        return
    output.result(payment, "Payment")
    if header is None:
        click.get_current_context().exit(PENDING_APPROVAL)


@payments.command("call-tool")
@click.argument("resource", metavar="URL")
@click.argument("tool")
@click.argument("arguments", metavar="[JSON]", default="{}")
@payer_option("account_id", "--account")
@click.option("--max-amount", type=USDC, required=True, help="Most to pay.")
@click.option(
    "--ref",
    "payment_ref",
    help="Names the purchase, in 8 to 120 characters: the same one pays once. Default: a new one.",
)
@takes_server
def call_paid_tool(
    *,
    server: AgentPay,
    output: Output,
    resource: str,
    tool: str,
    arguments: str,
    account_id: str,
    max_amount: Decimal,
    payment_ref: str | None,
) -> None:
    """Call a tool of an MCP server, and pay what it asks for.

    URL is that of the MCP server. The arguments of the tool are JSON.

    \b
    agentpay payments call-tool https://tools.example.com/mcp forecast '{"city": "Oslo"}' --max-amount 0.05

    Prints what the tool returned; the payment is printed on standard error. Needs the extra mcp.
    """  # noqa: D301 - the escape stops click from rewrapping the line
    import json
    import uuid

    from attrs import evolve

    from agentpay.tools import AgentTools

    try:
        given = json.loads(arguments)
    except ValueError as error:
        raise click.UsageError(f"the arguments of the tool are not JSON: {error}.") from None
    # The user of the command decides where the call may go.
    tools = AgentTools(server, private_origins=[_origin_of(resource)])
    tools.bind(evolve(server.whoami(), account_id=account_id))
    with output.progress("Calling"):
        result = tools.call_paid_tool(
            url=resource,
            tool=tool,
            arguments=given,
            max_usdc=f"{max_amount:f}",
            payment_ref=payment_ref or f"call-{uuid.uuid4()}",
        )
    content = result.untrusted_content
    if output.is_json:
        click.echo(json.dumps(result.to_dict()))
    else:
        amount = f", {result.amount_usdc} USDC" if result.amount_usdc else ""
        output.note(f"{result.status or 'nothing was asked for'}{amount} (ref {result.payment_ref})")
        if result.reason:
            output.note(as_typed(result.reason))
        if content is not None and content.http_status != 402:
            click.echo(content.body)
    is_delivered = content is not None and content.http_status == 200
    if not (is_delivered and result.status in _DONE):
        code = _EXIT_CODES.get(str(result.status), FAILED)
        # The service has recorded what the policy, a pause or the balance refused.
        click.get_current_context().exit(FAILED if code == REFUSED and not result.transfer_id else code)


_DONE: Final = (None, "settled", "submitted")
"""Statuses of a payment with which what was delivered is paid, or was free."""

_EXIT_CODES: Final = {
    "pending_approval": PENDING_APPROVAL,
    "rejected": REFUSED,
    "submitted": OUTCOME_UNKNOWN,
    "unknown": OUTCOME_UNKNOWN,
}
"""Of a paid call that is not done, by the status of its payment; of others, it failed."""


def _origin_of(url: str) -> str:
    from agentpay._pay402.challenges import origin_of

    try:
        return origin_of(url)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None


def _response(told: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """Return the headers and the body of a 402 as curl -i prints it: the last of several responses."""
    headers: list[tuple[str, str]] = []
    status = ""
    while told.startswith(b"HTTP/"):
        head, *rest = re.split(rb"\r?\n\r?\n", told, maxsplit=1)
        told = rest[0] if rest else b""
        begin, *lines = head.decode("latin-1").splitlines()
        status = begin.partition(" ")[2].partition(" ")[0]
        pairs = (line.partition(":") for line in lines)
        headers = [(name.strip(), value.strip()) for name, colon, value in pairs if colon]
    if not headers:
        raise click.UsageError("pass the 402 with its headers on standard input, as curl -si prints it.")
    if status != "402":
        shown = status if re.fullmatch("[0-9]{3}", status) else "unreadable"
        raise click.UsageError(f"the response on standard input is {shown}, not 402: it asks for no payment.")
    return headers, told


_SELLER = click.argument("origin", metavar="SELLER")

sellers: Final = group(
    "sellers",
    "Pin and list sellers; a pin can block one.",
    listing(
        "list",
        "List the pinned sellers, the last pinned first.",
        call=lambda client: client.sellers.list,
        columns=[
            Column("seller", "origin"),
            Column("blocked"),
            Column("max_amount"),
            Column("category", is_text=True),
            Column("sponsors_fees", "sponsor_fees", Show.IF_IT_FITS),
            Column("recipients", lambda pin: ", ".join(pin.recipients or ()) or None, Show.WIDE),
            Column("updated", "updated_at", Show.IF_IT_FITS),
        ],
        empty="No sellers are pinned.",
        moment="updated_at",
    ),
    command(
        "get",
        "Show the pin of a seller, such as https://api.example.com.",
        _SELLER,
        call=lambda client: client.sellers.get,
        reads="Seller",
    ),
    command(
        "pin",
        "Pin a seller, such as https://api.example.com. Replaces its whole pin, including omitted options.",
        _SELLER,
        click.option("--max-amount", type=USDC, help="Highest price. Default: no limit."),
        click.option(
            "--category", help="Spend category of all its products. Default: that of the challenge."
        ),
        click.option(
            "--recipient",
            "recipients",
            multiple=True,
            metavar="ADDRESS",
            help="On-chain address of an owner that may be paid there. Repeatable. Default: all.",
        ),
        click.option("--blocked", is_flag=True, help="Block every payment to it."),
        click.option(
            "--sponsor-fees", is_flag=True, help="Pay the network fee if an x402 challenge names no payer."
        ),
        call=lambda client: client.sellers.put,
        progress="Pinning {origin}",
        makes="Seller",
    ),
    command(
        "unpin",
        "Delete the pin of a seller, which is no longer blocked.",
        _SELLER,
        call=lambda client: client.sellers.delete,
        asks=lambda _client, origin: f"Unpin {origin}? What its challenges claim is believed from then on.",
        progress="Unpinning {origin}",
        ends="unpinned",
    ),
)

sessions: Final = group(
    "sessions",
    """Open, charge, close and list sessions.

    Opening a session moves its cap into escrow. Charges add up within the cap; closing pays the payee what
    was charged and returns the rest.
    """,
    command(
        "open",
        "Open a session: put its cap into escrow.",
        payer_option("account_id"),
        TO,
        click.option("--cap", "cap_usdc", type=USDC, required=True, help="Most that can be charged."),
        CATEGORY,
        IDEMPOTENCY_KEY,
        call=lambda client: client.sessions.open,
        progress="Funding the escrow with {cap_usdc} USDC",
        makes="Session",
    ),
    command(
        "charge",
        "Add AMOUNT to a session's running total.",
        SESSION_ID,
        click.argument("amount", type=USDC),
        IDEMPOTENCY_KEY,
        call=lambda client: client.sessions.charge,
        progress="Charging {amount} USDC",
        makes="Session",
    ),
    command(
        "close",
        """Close a session: pay what was charged, return the rest. Closing again never pays twice.

        For a session over HTTP 402 this asks its seller to settle; the service closes it by force if the
        seller does not within 60 seconds.
        """,
        SESSION_ID,
        call=lambda client: client.sessions.close,
        progress="Settling {session_id}",
        makes="Session",
    ),
    command("get", "Show a session.", SESSION_ID, call=lambda client: client.sessions.get, reads="Session"),
    listing(
        "list",
        "List sessions, newest first.",
        account_option("Only sessions that this account pays."),
        status_option(SessionStatus, "sessions"),
        call=lambda client: client.sessions.list,
        columns=[
            Column("payer", "account_id", is_text=True, is_account=True),
            Column("charged", "running_total_usdc"),
            Column("cap", "cap_usdc"),
            Column("status"),
            Column("to", show=Show.IF_IT_FITS, is_account=True),
            Column("opened", "opened_at", Show.IF_IT_FITS),
            Column("category", show=Show.WIDE),
            Column("closing_reason", show=Show.WIDE),
            Column("session_id"),
        ],
        empty="No sessions match.",
    ),
)
