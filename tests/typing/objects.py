"""Types of the public objects as type checkers see them; `nox -s types` runs mypy and pyright over this file.

Each `ignore` stands where an error must be reported: one that is not needed is an error itself.
"""

from decimal import Decimal
from typing import assert_never, assert_type

import httpx
import httpx2

import agentpay
from agentpay import (
    Account,
    AgentPay,
    AgentPayError,
    AsyncAgentPay,
    ErrorBody,
    EventType,
    NotFoundError,
    Transfer,
    TransferOutcomeUnknownError,
)
from agentpay.payments import PaymentAuth, PaymentRecord
from agentpay.resources import Accounts, AsyncPage, Page
from agentpay.types import TransferStatus
from agentpay.webhooks import (
    AnyEvent,
    BalanceLowThreshold,
    EscalationRequired,
    SessionCapReached,
    SessionCapWarning,
    SessionOpened,
    SessionSettled,
    TransferInitiated,
    TransferRejected,
    TransferSettled,
    UnknownEvent,
    unwrap,
)

agentpay.Acount  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] # noqa: B018


def a_misspelt_import_is_reported() -> None:
    from agentpay import Acount  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] # noqa: F401, PLC0415


def a_status_is_one_of_a_closed_set(transfer: Transfer) -> str:
    if transfer.status == "setled":  # type: ignore[comparison-overlap] # pyright: ignore[reportUnnecessaryComparison]
        return "never"
    match transfer.status:
        case "settled":
            return "done"
        case "rejected" | "failed":
            return "refused"
        case "submitted" | "pending_approval" | "approved":
            return "not yet"
        case _:
            assert_never(transfer.status)


def a_forgotten_status_is_reported(status: TransferStatus) -> str:
    match status:
        case "settled" | "rejected" | "failed" | "submitted":
            return "known"
        case _:
            assert_never(status)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def every_event_has_its_class(body: bytes, headers: dict[str, str]) -> Decimal | None:
    event = unwrap(body, headers, "whsec_test")
    match event:
        case TransferSettled(data=data):
            return assert_type(data.amount_usdc, Decimal)
        case TransferRejected(data=data):
            # The service always sends them, so callers need no check for None.
            assert_type(data.transfer_id, str)
            return assert_type(data.amount_usdc, Decimal)
        case TransferInitiated() | EscalationRequired() | BalanceLowThreshold():
            return None
        case SessionOpened() | SessionCapWarning() | SessionCapReached() | SessionSettled():
            return None
        case UnknownEvent(data=raw):
            assert_type(raw.get("amount_usdc"), object)  # type: ignore[assert-type] # pyright: ignore[reportAssertTypeFailure]
            return None
        case _:
            assert_never(event)


def an_event_narrows_by_its_type(event: AnyEvent) -> str:
    if event.type == "transfer.settled":
        assert_type(event, TransferSettled)
        return event.data.tx_signature
    if event.type == "transfer.setled":  # type: ignore[comparison-overlap] # pyright: ignore[reportUnnecessaryComparison]
        return "never"
    match event.type:
        case "escalation.required":
            return event.data.transfer_id
        case _:
            return event.id


async def events_of_lists_and_streams_have_their_types(client: AgentPay, async_client: AsyncAgentPay) -> None:
    for event in client.events.list():
        assert_type(event, AnyEvent)
    with client.events.stream() as stream:
        assert_type(next(stream), AnyEvent)
    async with async_client.events.stream() as async_stream:
        async for each in async_stream:
            assert_type(each, AnyEvent)


def a_forgotten_event_is_reported(body: bytes, headers: dict[str, str]) -> str:
    event = unwrap(body, headers, "whsec_test")
    match event:
        case TransferSettled():
            return event.data.tx_signature
        case _:
            assert_never(event)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def objects_become_json_and_come_back(account: Account) -> Account:
    assert_type(account.request_id, str | None)
    return assert_type(Account.from_dict(account.to_dict()), Account)


def event_types_are_checked(client: AgentPay) -> None:
    wanted: list[EventType] = ["transfer.settled"]
    webhook = client.webhooks.create(url="https://example.com", events=wanted)
    assert_type(webhook.webhook_id, str)
    client.webhooks.create(url="https://example.com", events=["transfer.setled"])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]


def resources_and_pages_have_names(client: AgentPay) -> Page[Account]:
    accounts: Accounts = client.accounts
    return accounts.list()


async def async_pages_have_names(client: AsyncAgentPay) -> AsyncPage[Account]:
    return await client.accounts.list()


def errors_carry_their_body(error: NotFoundError) -> ErrorBody | None:
    if error.code == "not_fuond":  # type: ignore[comparison-overlap] # pyright: ignore[reportUnnecessaryComparison]
        return None
    return error.body


def every_error_says_what_to_do(error: AgentPayError) -> str | None:
    assert_type(error.retryable, bool)
    if error.outcome == "unknwon":  # type: ignore[comparison-overlap] # pyright: ignore[reportUnnecessaryComparison]
        return "never"
    match error.outcome:
        case "unknown" | "not_done" | "decided":
            return assert_type(error.idempotency_key, str | None)
        case _:
            assert_never(error.outcome)


def a_transfer_of_unknown_outcome_has_a_key(error: TransferOutcomeUnknownError) -> str:
    return error.idempotency_key


def an_auth_is_one_of_every_library(client: AgentPay, async_client: AsyncAgentPay) -> str | None:
    auth = PaymentAuth(client, account_id="acct_a", max_amount="0.05")
    httpx2.Client(auth=auth)
    httpx.AsyncClient(auth=PaymentAuth(async_client))
    record: PaymentRecord = httpx.Client(auth=auth).get("https://example.com").extensions["payment"]
    PaymentAuth(client, account_id="acct_a", max_amount=0.05)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    return assert_type(record.receipt, str | None)
