"""Writes the present state of a server as the file of a scene. It contains no secret."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from attrs import frozen

from agentpay._sync.client import AgentPay
from agentpay.contract.console import AccountDetails
from agentpay.contract.policies import POLICY_FIELDS, Policy
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import to_micro
from agentpay_server.engine.policy import Means, Recipient, Spend, needs_approval, spending_refusal
from agentpay_server.testkit.embedded.inbox import INBOX_URL
from agentpay_server.testkit.scenes.document import MAX_BYTES, OUTSIDE

_LIMIT: Final = 100
_DEFAULTS: Final = Policy()
_HEAD: Final = """\
# A scene of agentpay. Keys and webhook secrets are not in it: new ones are created when it is built.
# All history happens at once, when it is built, so what was spent before yesterday counts as spent today.
"""


@frozen(kw_only=True)
class SavedScene:
    """A scene as text, and a sentence for each kind of thing that is not in it."""

    text: str
    left_out: tuple[str, ...]


def save(server: AgentPay) -> SavedScene:
    """Return the accounts, policies, keys, webhooks, sellers and history of an operator as a scene.

    Args:
        server: a client with an operator key.

    Raises:
        AgentPayError: the server refuses or fails.
    """
    writer = _Writer(server)
    lines = list(writer.lines())
    left_out = tuple(f"Left out: {kind}: {count}." for kind, count in sorted(writer.left_out.items()))
    text = "\n".join([_HEAD + "".join(f"# {line}\n" for line in left_out), *lines])
    if (size := len(text.encode())) > MAX_BYTES:
        left_out += (f"It has {size} bytes, and at most {MAX_BYTES} are read: delete history from it.",)
    return SavedScene(text=text, left_out=left_out)


class _Writer:
    def __init__(self, server: AgentPay) -> None:
        self._server = server
        self._accounts: list[AccountDetails] = sorted(
            server.accounts.list_details(limit=_LIMIT), key=lambda each: (each.created_at, each.account_id)
        )
        self._names: dict[str, str] = {}
        self._outside: dict[str, str] = {}
        self._details = {each.account_id: each for each in self._accounts}
        self.left_out: Counter[str] = Counter()
        taken: set[str] = set()
        for account in self._accounts:
            if account.balance_usdc is None:
                # The chain does not respond, which this raises.
                server.accounts.balance(account.account_id)
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
                if key.account_id != account.account_id:
                    continue
                rest = None
                if key.max_total_usdc is not None:
                    rest = key.max_total_usdc - (key.spent_total_usdc or 0)
                if (left is not None and left < 1) or (rest is not None and rest <= 0):
                    self.left_out["agent keys that are expired or spent"] += 1
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
                self.left_out["inboxes of the test kit, which end with their server"] += 1
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
        return next(iter(self._details[transfer.from_].policy.categories or ()), None)

    def _ends_alike(self, transfer: Transfer) -> bool:
        """Tell whether the present policy and balance decide the same, whatever else was spent."""
        account = self._details[transfer.from_]
        to = self._details.get(transfer.to)
        spend = Spend(
            amount_micro=to_micro(transfer.amount_usdc),
            to=transfer.to,
            recipient=Recipient(
                account_id=None if to is None else to.account_id,
                token_account=transfer.to if to is None else to.usdc_token_account,
                owner=transfer.to if to is None else to.chain_address,
            ),
            memo=transfer.memo,
            category=self._category(transfer),
        )
        means = Means(spent_micro=0, available_micro=to_micro(account.balance_usdc or Decimal(0)))
        is_refused = spending_refusal(account.policy, spend, means) is not None
        if transfer.status == "rejected":
            return account.policy.paused or is_refused
        return not is_refused and needs_approval(account.policy, spend.amount_micro)

    def _history(self) -> Iterator[str]:
        """What settled or is open by its time, then what waits for approval, then what was rejected."""
        found: list[tuple[tuple[int, datetime, int], dict[str, Any]]] = []
        ranks = {"settled": 0, "pending_approval": 1, "rejected": 2}
        for number, transfer in enumerate(reversed(list(self._server.transfers.list(limit=_LIMIT)))):
            rank = ranks.get(transfer.status)
            if rank is None or (rank and not self._ends_alike(transfer)):
                reason = "" if rank is None else ", which the present policy and balance would not repeat"
                self.left_out[f"transfers that are {transfer.status}{reason}"] += 1
                continue
            step: dict[str, Any] = {
                "from": self._names[transfer.from_],
                "to": self._payee(transfer.to),
                "amount": str(transfer.amount_usdc),
                "memo": transfer.memo or None,
                "category": self._category(transfer) if rank else None,
                "status": str(transfer.status) if rank else None,
            }
            at = transfer.settled_at or datetime.max.replace(tzinfo=UTC)
            found.append(((rank, at, number), step))
        for number, session in enumerate(reversed(list(self._server.sessions.list(limit=_LIMIT)))):
            is_open = session.status == "open"
            if session.opened_at is None or not (is_open or session.status == "settled"):
                self.left_out[f"sessions that are {session.status}"] += 1
                continue
            step = {"from": self._names[session.account_id], "to": self._payee(session.to)}
            if session.protocol == "escrow" or is_open:
                charged = session.running_total_usdc if is_open else session.settled_usdc
                step |= {"cap_usdc": str(session.cap_usdc), "charged_usdc": str(charged) if charged else None}
                step |= {"category": session.category, "status": "open" if is_open else None}
            elif session.settled_usdc:
                # The seller of the vouchers is not in the scene: what they moved is a transfer.
                step |= {"amount": str(session.settled_usdc), "category": session.category}
            else:
                continue
            if is_open and session.protocol != "escrow":
                self.left_out["sellers of open sessions, which are sessions of the service in the scene"] += 1
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
