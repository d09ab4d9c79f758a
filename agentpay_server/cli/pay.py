"""`agentpay-server pay`: pay an HTTP 402 from the command line, and show the exchange."""

import contextlib
import uuid
from decimal import Decimal
from typing import Final

import click
import httpx

from agentpay import AgentPay
from agentpay._pay402.challenges import refusal_reason, sells_by_session
from agentpay._pay402.undelivered import is_news
from agentpay.cli import PENDING_APPROVAL
from agentpay.cli.options import OWN_ACCOUNT, USDC, takes_server
from agentpay.cli.output import CommandRefusedError, Output
from agentpay.contract.printable import printable
from agentpay.errors import AgentPayError, PaymentRefusedError
from agentpay.payments import READ_TIMEOUT_SECONDS, PaymentAuth

_SHOWN_CHARACTERS: Final = 2_000


@click.command()
@click.argument("resource", metavar="URL")
@click.option(
    "--account", "account_id", type=OWN_ACCOUNT, help="Account that pays. Default: the agent key's."
)
@click.option("--max-amount", type=USDC, help="Most to pay. Default: the policy decides.")
@click.option(
    "--session-cap",
    type=USDC,
    help="USDC to lock for a seller that sells by session. Default: such a seller is not paid.",
)
@click.option("--method", default="GET", show_default=True, help="HTTP method of the request.")
@click.option(
    "--payment-key",
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
    payment_key: str | None,
) -> None:
    """Request URL, and pay if it responds 402.

    Prints each step of the exchange. Redirects are not followed. The outcome of the payment is read from the
    chain, not from the seller's response.

    With --session-cap, a seller that sells by session gets a voucher. The session stays open for the next
    request, until agentpay sessions close or until it is idle.
    """
    if payment_key == "":
        raise click.BadParameter("must not be empty", param_hint="--payment-key")
    chosen_key = payment_key or str(uuid.uuid4())
    with httpx.Client(timeout=READ_TIMEOUT_SECONDS, trust_env=False) as http:
        asked = _sent(http, output, method, resource)
        if asked.status_code != 402:
            _shown(output, asked, None)
            return
        if session_cap is not None and sells_by_session(asked.headers.multi_items()):
            auth = PaymentAuth(
                server, account_id=account_id, max_amount=max_amount, session_cap=session_cap, report=True
            )
            answered = _sent(http, output, method, resource, auth=auth, key=chosen_key)
            _shown_in_session(output, answered, chosen_key)
            return
        payment = server.payments.authorize(
            account_id=account_id,
            idempotency_key=chosen_key,
            response=asked,
            max_amount=max_amount,
        )
        output.note(
            f"{payment.amount_usdc} USDC to {payment.recipient} by {payment.protocol}: {payment.transfer_id} "
            f"{payment.status}, key {chosen_key}"
        )
        if payment.header is None:
            raise CommandRefusedError(
                f"{payment.transfer_id} waits for approval. Approve it with agentpay approvals "
                f"approve {payment.transfer_id}, then "
                f"pay again with --payment-key {chosen_key}.",
                output,
                exit_code=PENDING_APPROVAL,
                error="pending_approval",
            )
        answered = _sent(http, output, method, resource, {payment.header.name: payment.header.value})
    if is_news(payment, is_delivered=answered.is_success):
        with contextlib.suppress(AgentPayError):
            server.payments.report_outcome(payment.transfer_id, status_code=answered.status_code)
    _shown(output, answered, payment.transfer_id)
    output.note(f"{payment.transfer_id} is {server.payments.get(payment.transfer_id).status}")
    if not answered.is_success:
        reason = refusal_reason(answered.headers.multi_items(), answered.content)
        raise _not_served(output, answered.status_code, reason, chosen_key, transfer_id=payment.transfer_id)


def _not_served(
    output: Output, status_code: int, reason: str | None, key: str, *, transfer_id: str | None
) -> CommandRefusedError:
    said = "" if reason is None else f": {printable(reason).rstrip('.')}"
    return CommandRefusedError(
        f"the seller responded {status_code} to the payment{said}. Pay again with "
        f"--payment-key {key}: it presents the same payment.",
        output,
        error="not_served",
        status_code=status_code,
        reason=reason,
        transfer_id=transfer_id,
    )


def _shown_in_session(output: Output, response: httpx.Response, key: str) -> None:
    """Show the response to a voucher, and raise CommandRefusedError if it is no success."""
    step = response.extensions["payment"].session
    _shown(output, response, step.charge_id)
    output.note(
        f"{step.amount_usdc} USDC by {step.charge_id}, key {key}: {step.running_total_usdc} of "
        f"{step.cap_usdc} USDC in {step.session_id}"
    )
    output.note(f"close it with agentpay sessions close {step.session_id}")
    if not response.is_success:
        reason = refusal_reason(response.headers.multi_items(), response.content)
        raise _not_served(output, response.status_code, reason, key, transfer_id=step.charge_id)


def _sent(
    http: httpx.Client,
    output: Output,
    method: str,
    url: str,
    header: dict[str, str] | None = None,
    *,
    auth: PaymentAuth | None = None,
    key: str = "",
) -> httpx.Response:
    extensions = {} if auth is None else {"payment_key": key}
    try:
        response = http.request(method, url, headers=header, auth=auth, extensions=extensions)
    except PaymentRefusedError as refused:
        status = refused.status_code
        raise _not_served(output, status, refused.reason, key, transfer_id=refused.transfer_id) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandRefusedError(
            f"no response from {printable(url)}: {printable(str(error))}.", output, error="no_response"
        ) from None
    paid = f" with {next(iter(header))}" if header else " with a voucher" if auth else ""
    output.note(f"{method} {printable(url)}{paid}: {response.status_code}")
    return response


def _shown(output: Output, response: httpx.Response, transfer_id: str | None) -> None:
    text = printable(response.text[:_SHOWN_CHARACTERS])
    if output.is_json:
        output.document({"status_code": response.status_code, "body": text, "transfer_id": transfer_id})
    elif text:
        output.line(text)
