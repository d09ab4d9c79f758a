"""`agentpay pay`: buying from an API that asks for money with HTTP 402, and showing the exchange."""

import base64
import json
import uuid
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Final

import click
import httpx

from agentpay import AgentPay
from agentpay.cli.connection import RefusedError, takes_server
from agentpay.cli.output import Output
from agentpay.cli.values import Identifier, Usdc
from agentpay.contract.identifiers import ACCOUNT
from agentpay.contract.printable import printable
from agentpay.payments import PaymentAuth, PaymentRecord, PaymentRefusedError

_SHOWN_BYTES: Final = 64 * 1024


@click.command()
@click.argument("resource", metavar="RESOURCE_URL")
@click.option(
    "--account",
    "account_id",
    type=Identifier(ACCOUNT),
    metavar="ACCOUNT_ID",
    help="Account that pays. Default: the one that the key is bound to.",
)
@click.option(
    "--max-amount", type=Usdc(), metavar="USDC", help="The most to pay. Default: what the policy allows."
)
@click.option(
    "--idempotency-key",
    help="Key of the purchase. Default: a new one. Pass that of an earlier attempt to resume it.",
)
@click.option("--memo", help="Memo, at most 200 characters. It stays off chain.")
@click.option("--request", "-X", "method", default="GET", show_default=True, help="HTTP method.")
@click.option("--header", "-H", "headers", multiple=True, metavar="'NAME: VALUE'", help="Request header.")
@click.option("--data", "-d", help="Request body.")
@takes_server
def pay(
    *,
    server: AgentPay,
    output: Output,
    resource: str,
    account_id: str | None,
    max_amount: Decimal | None,
    idempotency_key: str | None,
    memo: str | None,
    method: str,
    headers: tuple[str, ...],
    data: str | None,
) -> None:
    """Request a URL, pay if it asks for money, and show the exchange.

    The account's policy decides. The body of the response goes to standard output, everything else to
    standard error. The same --idempotency-key never pays twice.
    """
    account_id = account_id or server.whoami().account_id
    if account_id is None:
        raise click.UsageError("an operator key is bound to no account: say which one pays with --account.")
    key = idempotency_key or str(uuid.uuid4())
    auth = PaymentAuth(server, account_id=account_id, max_amount=max_amount, memo=memo, report=True)
    hooks = {
        "request": [lambda request: _sent(output, request)],
        "response": [lambda reply: _came(output, reply)],
    }
    try:
        with httpx.Client(auth=auth, event_hooks=hooks, timeout=30) as http:
            response = http.request(
                method, resource, headers=_headers(headers), content=data, extensions={"payment_key": key}
            )
    except PaymentRefusedError as refused:
        raise RefusedError(
            f"{refused}.",
            output,
            error="payment_refused",
            transfer_id=refused.transfer_id,
            idempotency_key=key,
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _lost(error, output, key) from None
    _report(output, response, key)


def _report(output: Output, response: httpx.Response, key: str) -> None:
    record: PaymentRecord | None = response.extensions.get("payment")
    body = response.content[:_SHOWN_BYTES].decode("utf-8", "replace")
    if output.is_json:
        paid = None if record is None or record.payment is None else record.payment.to_dict()
        if paid is not None:
            paid["header"] = None  # who has it can present it
        output.document(
            {
                "status_code": response.status_code,
                "idempotency_key": key,
                "payment": paid,
                "receipt": None if record is None else record.receipt,
                "declined": None if record is None else record.declined,
                "body": body,
            }
        )
    else:
        if record is not None and record.payment is not None:
            payment = record.payment
            output.note(
                f"Paid {payment.amount_usdc} USDC to {payment.recipient} by {payment.protocol}, "
                f"{payment.transfer_id}, key {key}"
            )
            if record.receipt is not None:
                output.note(f"Receipt {_decoded(record.receipt)}")
        elif record is not None:
            output.note(f"Nothing was paid: {record.declined}")
        click.echo(printable(body))
    if response.is_error:
        raise RefusedError(
            f"{response.status_code} {response.reason_phrase}.",
            output,
            error="seller_failed",
            idempotency_key=key,
        )


def _sent(output: Output, request: httpx.Request) -> None:
    if not output.is_json:
        record = request.extensions.get("payment")
        presenting = "" if record is None else f", presenting {record.transfer_id}"
        output.note(f"> {request.method} {printable(str(request.url))}{presenting}")


def _came(output: Output, response: httpx.Response) -> None:
    if not output.is_json:
        phrase = HTTPStatus(response.status_code).phrase if response.status_code in set(HTTPStatus) else ""
        output.note(f"< {response.status_code} {phrase}".rstrip())


def _lost(error: Exception, output: Output, key: str) -> RefusedError:
    request: Any = None
    if isinstance(error, httpx.RequestError):
        try:
            request = error.request
        except RuntimeError:
            request = None
    record = None if request is None else request.extensions.get("payment")
    if record is None:
        return RefusedError(f"{type(error).__name__}: {error}. Nothing was paid.", output, error="no_answer")
    return RefusedError(
        f"the response was lost after {record.transfer_id} was presented. Repeat the command with "
        f"--idempotency-key {key}: it presents the same payment.",
        output,
        error="no_answer",
        transfer_id=record.transfer_id,
        idempotency_key=key,
    )


def _headers(given: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = []
    for header in given:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{header!r} is not 'NAME: VALUE'.", param_hint="--header")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _decoded(receipt: str) -> str:
    """Return a receipt as its JSON, where it is some."""
    try:
        content = base64.b64decode(receipt.replace("-", "+").replace("_", "/") + "==")
        return json.dumps(json.loads(content))
    except ValueError:
        return receipt
