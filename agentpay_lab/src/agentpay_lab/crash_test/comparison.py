"""Compares the purchases of a crash test one by one: what the agent asked for, the chain, and the books.

Totals would hide two errors that cancel out, such as one purchase paid twice and another one posted but not
paid.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from agentpay import AgentPay
from agentpay.contract.transactions import Transaction
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_lab.crash_test.node import LandedPayment, LandedPayments
from agentpay_server.paywall import Mode

_SERVED_IF_PAID: Final = frozenset({Mode.HONEST, Mode.INJECTED_INSTRUCTION})
"""Sellers that serve only what the chain shows as paid."""


@frozen(kw_only=True)
class Books:
    """What the service says.

    Attributes:
        token_account: the account's token account.
        posted_micro: the account's balance by its history.
        held_micro: its balance on chain.
        spent_micro: the amount that counts toward the daily limit.
        transfers: its transfers of every status.
        history: its settled outgoing entries.
    """

    token_account: str
    posted_micro: int
    held_micro: int
    spent_micro: int
    transfers: Sequence[Transfer]
    history: Sequence[Transaction]


def read_books(client: AgentPay, account_id: str) -> Books:
    """Return what the service says of an account."""
    detail = client.console.details(account_id)
    payments = list(client.payments.list(account_id=account_id, limit=100))
    entries = list(client.accounts.transactions(account_id, limit=100, status="settled"))
    return Books(
        token_account=detail.usdc_token_account,
        posted_micro=sum(
            to_micro(entry.amount_usdc) * (1 if entry.direction == "in" else -1) for entry in entries
        ),
        held_micro=to_micro(client.accounts.balance(account_id).balance_usdc),
        spent_micro=to_micro(detail.spent_usdc),
        transfers=[client.transfers.get(payment.transfer_id) for payment in payments],
        history=[entry for entry in entries if entry.direction == "out"],
    )


def differences(
    orders: Mapping[str, Mode],
    outcomes: Mapping[str, str],
    landed: LandedPayments,
    books: Books,
    *,
    price_micro: int,
) -> Iterator[str]:
    """Yield a sentence for each difference.

    `orders` are the purchases and their sellers, `outcomes` what the agents noted.
    """
    transfers: defaultdict[str, list[Transfer]] = defaultdict(list)
    for transfer in books.transfers:
        transfers[transfer.idempotency_key].append(transfer)
    history: defaultdict[str, list[Transaction]] = defaultdict(list)
    for entry in books.history:
        history[entry.transfer_id or ""].append(entry)
    for name, mode in orders.items():
        payments, posted = landed.of(name), transfers.get(name, [])
        found = [*_of_order(payments, posted, price_micro), *_of_outcome(outcomes.get(name), mode, payments)]
        for transfer in posted:
            found += _of_history(transfer, history.get(transfer.transfer_id, []))
        for what in found:
            yield f"{name}: {what}."
    for name in transfers.keys() - orders.keys():
        yield f"{name}: the books have a transfer that no agent asked for."
    for transfer_id in history.keys() - {transfer.transfer_id for transfer in books.transfers}:
        yield f"{transfer_id or 'no transfer'}: the history has a payment that the books do not list."
    yield from _of_account(orders, landed, books)


def _of_account(orders: Mapping[str, Mode], landed: LandedPayments, books: Books) -> Iterator[str]:
    taken = [payment for payment in landed.payments if books.token_account in payment.taken_micro]
    for payment in taken:
        if orders.keys().isdisjoint(payment.memos):
            yield f"{payment.signature}: it took USDC from the account, and no agent asked for it."
    paid_micro = sum(payment.taken_micro[books.token_account] for payment in taken)
    if books.spent_micro != paid_micro:
        paid_usdc, spent_usdc = from_micro(paid_micro), from_micro(books.spent_micro)
        yield f"The chain shows {paid_usdc} USDC paid, and {spent_usdc} counts toward the limit."
    if books.posted_micro != books.held_micro:
        posted_usdc, held_usdc = from_micro(books.posted_micro), from_micro(books.held_micro)
        yield f"The account holds {held_usdc} USDC on chain, and {posted_usdc} by its history."


def _of_order(
    payments: Sequence[LandedPayment], posted: Sequence[Transfer], price_micro: int
) -> Iterator[str]:
    if len(payments) > 1:
        yield f"it landed {len(payments)} times"
    for payment in payments:
        if payment.amount_micro != price_micro:
            yield f"{from_micro(payment.amount_micro)} USDC landed, not {from_micro(price_micro)}"
    if len(posted) > 1:
        yield f"the books have {len(posted)} transfers"
    settled = {str(each.tx_signature) for each in posted if each.status == "settled"}
    on_chain = {payment.signature for payment in payments}
    for signature in sorted(on_chain - settled):
        said = ", ".join(each.status for each in posted) or "nothing"
        yield f"{signature} landed, and the books say {said}"
    for signature in sorted(settled - on_chain):
        yield f"the books say that {signature} has settled, and it did not land"
    for transfer in posted:
        if to_micro(transfer.amount_usdc) != price_micro:
            yield f"the books say {transfer.amount_usdc} USDC, not {from_micro(price_micro)}"


def _of_outcome(outcome: str | None, mode: Mode, payments: Sequence[LandedPayment]) -> Iterator[str]:
    if outcome == "served" and mode in _SERVED_IF_PAID and not payments:
        yield "the agent received the resource, and nothing landed"
    if outcome == "refused" and payments:
        yield "the policy refused it, and it landed"


def _of_history(transfer: Transfer, entries: Sequence[Transaction]) -> Iterator[str]:
    wanted = [(transfer.tx_signature, transfer.amount_usdc)] if transfer.status == "settled" else []
    if [(entry.tx_signature, entry.amount_usdc) for entry in entries] != wanted:
        yield f"its transfer is {transfer.status}, and the history has {len(entries)} entries for it"
