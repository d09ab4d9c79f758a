"""Writes the present state of a server as the file of a scene. It contains no secret."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from agentpay._sync.client import AgentPay
from agentpay.contract.console import AccountDetails
from agentpay.contract.policies import POLICY_FIELDS, Policy
from agentpay.contract.transfers import Transfer
from agentpay_server.testkit.embedded.inbox import INBOX_URL
from agentpay_server.testkit.scenes.document import OUTSIDE

_LIMIT: Final = 100
_DEFAULTS: Final = Policy()
_HEAD: Final = """\
# A scene of agentpay. Keys and webhook secrets are not in it: new ones are created when it is built.
# Rejected and failed transfers are left out, and all history happens at once.
"""


def save(server: AgentPay) -> str:
    """Return the accounts, policies, keys, webhooks, sellers and history of an operator as a scene.

    Args:
        server: a client with an operator key.

    Raises:
        AgentPayError: the server refuses or fails.
    """
    return "\n".join(_Writer(server).lines())


class _Writer:
    def __init__(self, server: AgentPay) -> None:
        self._server = server
        self._accounts: list[AccountDetails] = sorted(
            server.accounts.list_details(limit=_LIMIT), key=lambda each: (each.created_at, each.account_id)
        )
        self._names: dict[str, str] = {}
        self._outside: dict[str, str] = {}
        taken: set[str] = set()
        for account in self._accounts:
            name = base = account.handle.removeprefix("@") or "account"
            if name.startswith((OUTSIDE, "acct_")):
                name = base = f"the-{name}"
            number = 1
            while name in taken:
                number += 1
                name = f"{base}-{number}"
            taken.add(name)
            for known in (account.account_id, account.chain_address, account.usdc_token_account):
                self._names[known] = name

    def lines(self) -> Iterator[str]:
        yield _HEAD
        # First, because it names the payees outside the service, which policies may allow.
        history = list(self._history())
        keys = list(self._server.agent_keys.list(limit=_LIMIT))
        now = self._now()
        for account in self._accounts:
            name = self._names[account.account_id]
            yield f"[accounts.{name}]"
            yield f"name = {_text(account.name)}"
            if account.balance_usdc:
                yield f"balance_usdc = {_text(account.balance_usdc)}"
            if account.metadata:
                yield f"metadata = {_value(account.metadata)}"
            if policy := self._policy(account.policy):
                yield f"policy = {_value(policy)}"
            own = []
            for key in reversed(keys):
                left = None if key.expires_at is None else int((key.expires_at - now).total_seconds())
                if key.account_id != account.account_id or (left is not None and left < 1):
                    continue
                rest = None
                if key.max_total_usdc is not None:
                    rest = key.max_total_usdc - (key.spent_total_usdc or 0)
                    if rest <= 0:
                        continue
                own.append({"name": key.name, "expires_in": left, "max_total_usdc": rest and str(rest)})
            if own:
                yield f"keys = {_value(own)}"
            yield ""
        yield from self._webhooks()
        for pin in reversed(list(self._server.sellers.list(limit=_LIMIT))):
            yield from _table(
                "sellers",
                origin=pin.origin,
                category=pin.category,
                recipients=pin.recipients,
                max_amount=None if pin.max_amount is None else str(pin.max_amount),
                blocked=pin.blocked or None,
                sponsor_fees=pin.sponsor_fees or None,
            )
        yield from history

    def _now(self) -> datetime:
        newest = self._server.accounts.balance(self._accounts[0].account_id) if self._accounts else None
        return datetime.now(UTC) if newest is None else newest.last_updated

    def _policy(self, policy: Policy) -> dict[str, Any]:
        changed: dict[str, Any] = {
            name: getattr(policy, name)
            for name in POLICY_FIELDS
            if getattr(policy, name) != getattr(_DEFAULTS, name)
        }
        if "allowed_counterparties" in changed:
            changed["allowed_counterparties"] = [
                self._names.get(each, self._outside.get(each, each))
                for each in changed["allowed_counterparties"]
            ]
        return changed

    def _webhooks(self) -> Iterator[str]:
        for webhook in reversed(list(self._server.webhooks.list(limit=_LIMIT))):
            if webhook.url.startswith(INBOX_URL):
                yield "# An inbox of the test kit is left out: its receiver ends with its server."
                yield ""
                continue
            yield from _table(
                "webhooks",
                url=webhook.url,
                events=webhook.events,
                accounts=[self._names[each] for each in webhook.account_ids] or None,
                low_balance_threshold_usdc=webhook.low_balance_threshold_usdc,
            )

    def _payee(self, to: str) -> str:
        if to in self._names:
            return self._names[to]
        return self._outside.setdefault(to, f"{OUTSIDE}-{len(self._outside) + 1}")

    def _category(self, transfer: Transfer) -> str | None:
        """Return a category that the policy allows: a transfer does not show its own."""
        policies = {each.account_id: each.policy for each in self._accounts}
        return next(iter(policies[transfer.from_].categories or ()), None)

    def _history(self) -> Iterator[str]:
        """Settled transfers and sessions by their time, then the transfers that wait for approval."""
        found: list[tuple[tuple[int, datetime, int], dict[str, Any]]] = []
        for number, transfer in enumerate(reversed(list(self._server.transfers.list(limit=_LIMIT)))):
            waits = transfer.status == "pending_approval"
            if not waits and transfer.status != "settled":
                continue
            step: dict[str, Any] = {
                "from": self._names[transfer.from_],
                "to": self._payee(transfer.to),
                "amount": str(transfer.amount_usdc),
                "memo": transfer.memo or None,
                "category": self._category(transfer) if waits else None,
                "status": "pending_approval" if waits else None,
            }
            at = transfer.settled_at or datetime.max.replace(tzinfo=UTC)
            found.append(((int(waits), at, number), step))
        for number, session in enumerate(reversed(list(self._server.sessions.list(limit=_LIMIT)))):
            is_open = session.status == "open"
            if session.opened_at is None or not (is_open or session.status == "settled"):
                continue
            step = {"from": self._names[session.account_id], "to": self._payee(session.to)}
            if session.protocol == "escrow":
                charged = session.running_total_usdc if is_open else session.settled_usdc
                step |= {"cap_usdc": str(session.cap_usdc), "charged_usdc": str(charged) if charged else None}
                step |= {"category": session.category, "status": "open" if is_open else None}
            elif session.settled_usdc:
                # Vouchers belong to a seller that is not in the scene: what they moved is a transfer.
                step |= {"amount": str(session.settled_usdc), "category": session.category}
            else:
                continue
            found.append(((0, session.opened_at, number), step))
        for _, step in sorted(found, key=lambda each: each[0]):
            yield from _table("history", **step)


def _table(name: str, **fields: Any) -> Iterator[str]:  # noqa: ANN401 - values of TOML
    yield f"[[{name}]]"
    for key, value in fields.items():
        if value is not None:
            yield f"{key} = {_value(value)}"
    yield ""


def _value(value: object) -> str:
    """TOML has no null: what is None is left out."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping):
        fields = [f"{_text(key)} = {_value(each)}" for key, each in value.items() if each is not None]
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value if each is not None) + "]"
    return _text(value)


def _text(value: object) -> str:
    # JSON's strings are TOML's, except for the character DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
