"""Reads what the outcome of a transaction changes, for tests without a database."""

from typing import Any

from agentpay_server.database.rows import Change
from agentpay_server.ledger.apply import Outcome


def added(outcome: Outcome[Any]) -> dict[str, dict[str, int]]:
    """Return what an outcome adds to each account."""
    totals: dict[str, dict[str, int]] = {}
    for posting in outcome.postings:
        of_account = totals.setdefault(posting.account_id, {})
        for name, amount in posting.added.items():
            of_account[name] = of_account.get(name, 0) + amount
    return {
        account: {name: amount for name, amount in amounts.items() if amount}
        for account, amounts in totals.items()
    }


def after(outcome: Outcome[Any]) -> Any:
    """Return the row of its subject as it will be."""
    assert isinstance(outcome.subject, Change)
    return outcome.subject.after
