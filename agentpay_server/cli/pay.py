"""`agentpay-server pay`: pay an HTTP 402 from the command line, and show the exchange."""

import uuid
from decimal import Decimal
from typing import Final

import click
import httpx

from agentpay import AgentPay
from agentpay._pay402.challenges import refusal_reason
from agentpay._pay402.messages import identifier_of
from agentpay.cli import PENDING_APPROVAL
from agentpay.cli.options import USDC, payer_option, takes_server
from agentpay.cli.output import CommandRefusedError, Output
from agentpay.contract.ext.payments import Payment, SessionStep
from agentpay.contract.printable import printable
from agentpay.errors import (
    OutcomeUnknownError,
    PaidNotDeliveredError,
    PaymentPendingApprovalError,
    PaymentRefusedError,
)
from agentpay.payments import READ_TIMEOUT_SECONDS, PaymentAuth, PaymentRecord

_SHOWN_CHARACTERS: Final = 2_000


@click.command()
@click.argument("resource", metavar="URL")
@payer_option("account_id", "--account")
@click.option("--max-amount", type=USDC, help="Most to pay. Default: the policy decides.")
@click.option(
    "--session-cap",
    type=USDC,
    help="USDC to lock for a seller that sells by session. Default: such a seller is not paid.",
)
@click.option("--method", default="GET", show_default=True, help="HTTP method of the request.")
@click.option(
    "--payment-key",
    "idempotency_key",
    help="Idempotency key of the purchase: the same key presents the same payment. Default: a new key.",
)
@takes_server
def pay(
    *,
    server: AgentPay,
    output: Output,
    resource: str,
    account_id: str,
    max_amount: Decimal | None,
    session_cap: Decimal | None,
    method: str,
    idempotency_key: str | None,
) -> None:
    """Request URL, and pay if it responds 402.

    Prints each step of the exchange. Redirects are not followed. The outcome of the payment is read from the
    chain, not from the seller's response.

    With --session-cap, a seller that sells by session gets a voucher. The session stays open for the next
    request, until agentpay sessions close or until it is idle.
    """
    if idempotency_key == "":
        raise click.BadParameter("must not be empty", param_hint="--payment-key")
    key = idempotency_key or str(uuid.uuid4())
    auth = PaymentAuth(server, account_id=account_id, max_amount=max_amount, session_cap=session_cap)
    exchange = _Exchange(output)
    with httpx.Client(
        timeout=READ_TIMEOUT_SECONDS,
        trust_env=False,
        event_hooks={"request": [exchange.sends], "response": [exchange.receives]},
    ) as http:
        try:
            response = http.request(method, resource, auth=auth, extensions={"payment_key": key})
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise click.BadParameter(printable(str(error)), param_hint="URL") from None
        except httpx.HTTPError as error:
            said = f"no response from {printable(resource)}: {printable(str(error)).rstrip('.')}."
            if exchange.paid is None:
                raise CommandRefusedError(said, output, error="no_response") from None
            output.note(said)
            transfer_id = identifier_of(exchange.paid)
            raise OutcomeUnknownError(
                operation=f"payment {transfer_id}", idempotency_key=key, transfer_id=transfer_id
            ) from None
        except PaymentPendingApprovalError as waiting:
            raise CommandRefusedError(
                f"{waiting.transfer_id} waits for approval. Approve it with agentpay approvals approve "
                f"{waiting.transfer_id}, then repeat the command with --payment-key {key}.",
                output,
                exit_code=PENDING_APPROVAL,
                error="pending_approval",
                transfer_id=waiting.transfer_id,
                idempotency_key=key,
            ) from None
        except PaymentRefusedError as refused:
            raise _not_served(output, refused) from None
    paid = exchange.paid
    _shown(output, response, None if paid is None else identifier_of(paid))
    if paid is None:
        if response.status_code == 402:
            record: PaymentRecord | None = response.extensions.get("payment")
            why = (record and record.declined) or "it has no challenge of x402 or MPP"
            raise CommandRefusedError(f"this 402 is not paid: {why}.", output, error="nothing_payable")
        return
    if isinstance(paid, Payment):
        output.note(f"{paid.transfer_id} is {server.payments.get(paid.transfer_id).status}")
    else:
        output.note(f"close it with agentpay sessions close {paid.session_id}")
    if not response.is_success:
        failed = PaymentRefusedError(
            idempotency_key=key,
            transfer_id=identifier_of(paid),
            status_code=response.status_code,
            reason=refusal_reason(response.headers.multi_items(), response.content),
        )
        raise _not_served(output, failed)


class _Exchange:
    """Prints each step, and has what was signed once it is presented."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.paid: Payment | SessionStep | None = None

    def sends(self, request: httpx.Request) -> None:
        record: PaymentRecord | None = request.extensions.get("payment")
        if record is None:
            return
        paid, key = record.payment or record.session, record.idempotency_key
        if isinstance(paid, Payment):
            self._output.note(
                f"{paid.amount_usdc} USDC to {paid.recipient} by {paid.protocol}: {paid.transfer_id} "
                f"{paid.status}, key {key}"
            )
        elif paid is not None:
            self._output.note(
                f"{paid.amount_usdc} USDC by {identifier_of(paid)}, key {key}: {paid.running_total_usdc} of "
                f"{paid.cap_usdc} USDC in {paid.session_id}"
            )
        self.paid = paid

    def receives(self, response: httpx.Response) -> None:
        request, header = response.request, self.paid and self.paid.header
        paid = f" with {header.name}" if header else ""
        self._output.note(f"{request.method} {printable(str(request.url))}{paid}: {response.status_code}")


def _not_served(output: Output, refused: PaymentRefusedError) -> CommandRefusedError:
    said = "" if refused.reason is None else f": {printable(refused.reason).rstrip('.')}"
    key, transfer_id = refused.idempotency_key, refused.transfer_id
    if isinstance(refused, PaidNotDeliveredError):
        then = f"{transfer_id} is paid, and the seller did not deliver. Nothing more is paid: ask the seller"
    else:
        then = f"Repeat the command with --payment-key {key}: it presents the same payment"
    return CommandRefusedError(
        f"the seller responded {refused.status_code} to the payment{said}. {then}.",
        output,
        error="not_served",
        status_code=refused.status_code,
        reason=refused.reason,
        transfer_id=transfer_id,
        idempotency_key=key,
    )


def _shown(output: Output, response: httpx.Response, transfer_id: str | None) -> None:
    text = printable(response.text[:_SHOWN_CHARACTERS])
    if output.is_json:
        output.document({"status_code": response.status_code, "body": text, "transfer_id": transfer_id})
    elif text:
        output.line(text)
