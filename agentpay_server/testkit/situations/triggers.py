"""Causes each type of event on a test chain, by the operations that it reports.

Creates money, payees and a webhook where needed. Never changes the account's policy, which may refuse.
Afterwards it closes a session, which returns the rest of its cap, and deletes a webhook.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from typing import Final

from attrs import frozen

from agentpay import AgentPay
from agentpay.contract import identifiers
from agentpay.contract.choices import EventType
from agentpay.contract.console import AccountDetails
from agentpay.contract.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import from_micro, to_micro
from agentpay.errors import TransferRejectedError
from agentpay_server.clients import Sandbox

USUAL_USDC: Final = Decimal(1)
"""Default amount, if the policy allows it."""

LEAST_USDC: Final = from_micro(1)
"""Smallest possible amount."""

_NOWHERE: Final = "http://127.0.0.1:9/"
"""The discard port: the URL of a webhook that exists only for its threshold."""


class CannotHappenError(Exception):
    """The message says what to do."""


@frozen(kw_only=True)
class Trace:
    """A field of the event's data, and its value, which identify the event."""

    field: str
    value: str


class Stage:
    """A server, and the account to cause events for.

    `amount_usdc` is the amount to move or request; None for 1 USDC, or less if the policy allows less.
    """

    def __init__(
        self,
        server: AgentPay,
        account_id: str,
        amount_usdc: Decimal | None,
        say: Callable[[str], None],
    ) -> None:
        self._server = server
        self._say = say
        self.amount_usdc = amount_usdc
        self.account_id = account_id
        self.account: AccountDetails = server.accounts.details(account_id)

    def pay(self, amount_usdc: Decimal) -> Transfer:
        """Transfer to a permitted payee, whatever the balance is."""
        to = self._payee()
        self._say(f"Paying {amount_usdc} USDC")
        return self._server.transfers.create(
            from_=self.account_id,
            to=to,
            amount=amount_usdc,
            memo="agentpay-server trigger",
            category=self._category(),
        )

    def open_session(self, cap_usdc: Decimal, cleaning: ExitStack) -> Session:
        """Close the session when `cleaning` ends."""
        to = self._payee()
        self._say(f"Opening a session with a cap of {cap_usdc} USDC")
        session = self._server.sessions.open(
            account_id=self.account_id, to=to, cap_usdc=cap_usdc, category=self._category()
        )
        # Closing a closed session has no effect.
        cleaning.callback(self.close, session)
        return session

    def charge(self, session: Session, micro: int) -> None:
        self._say(f"Charging {from_micro(micro)} USDC")
        self._server.sessions.charge(session.session_id, amount=from_micro(micro))

    def close(self, session: Session) -> None:
        self._say("Closing the session")
        self._server.sessions.close(session.session_id)

    def hold(self, amount_usdc: Decimal) -> Decimal:
        """Fund the account if needed, and return its balance."""
        held = self._server.accounts.balance(self.account_id).balance_usdc
        if held >= amount_usdc:
            return held
        self._say(f"Funding {self.account_id} with {amount_usdc - held} USDC")
        return Sandbox(self._server).fund(self.account_id, amount_usdc - held).balance_usdc

    def allowed_usdc(self) -> Decimal:
        """Return the given amount, or what the policy allows without approval."""
        if self.amount_usdc is not None:
            return self.amount_usdc
        policy = self.account.policy
        limits = [USUAL_USDC, policy.max_single_transfer, self.account.remaining_usdc]
        if policy.escalation_threshold is not None:
            limits.append(policy.escalation_threshold - LEAST_USDC)
        # If the policy allows nothing, request the smallest amount, and let the server explain the refusal.
        return max(min(limit for limit in limits if limit is not None), LEAST_USDC)

    def thresholds(self) -> list[Decimal]:
        """In ascending order."""
        return sorted(
            webhook.low_balance_threshold_usdc
            for webhook in self._server.webhooks.list(limit=100)
            if webhook.low_balance_threshold_usdc
            and "balance.low_threshold" in webhook.events
            and (not webhook.account_ids or self.account_id in webhook.account_ids)
        )

    def add_threshold(self, threshold_usdc: Decimal, cleaning: ExitStack) -> None:
        """Delete the webhook when `cleaning` ends."""
        self._say(f"Registering a webhook with a threshold of {threshold_usdc} USDC")
        webhook = self._server.webhooks.create(
            url=_NOWHERE,
            events=["balance.low_threshold"],
            account_ids=[self.account_id],
            low_balance_threshold_usdc=threshold_usdc,
        )
        cleaning.callback(self._server.webhooks.delete, webhook.webhook_id or "")

    def _payee(self) -> str:
        """Return one from the policy, or a new outside token account."""
        allowed = self.account.policy.allowed_counterparties
        if allowed is None:
            self._say("Creating a recipient")
            return Sandbox(self._server).create_token_account().usdc_token_account
        own = (self.account_id, self.account.chain_address, self.account.usdc_token_account)
        # Prefer accounts: an address may be a wallet, which may have no token account to pay.
        others = sorted(
            (payee for payee in allowed if payee not in own),
            key=lambda payee: not payee.startswith(identifiers.ACCOUNT),
        )
        if not others:
            raise CannotHappenError(f"allowed_counterparties of {self.account_id} names no payee; add one")
        return others[0]

    def _category(self) -> str | None:
        categories = self.account.policy.categories
        return categories[0] if categories else None


def new_account(server: AgentPay, event_type: EventType, amount_usdc: Decimal | None) -> str:
    """Create an account whose policy allows the event; return its id."""
    account_id = server.accounts.create(name="Trigger").account_id
    if event_type == "escalation.required":
        server.policies.update(account_id, escalation_threshold=amount_usdc or USUAL_USDC)
    return account_id


@contextmanager
def caused(event_type: EventType, stage: Stage) -> Iterator[Trace]:
    """Clean up when the block ends."""
    with ExitStack() as cleaning:
        yield _CAUSES[event_type](stage, cleaning)


def _settled_transfer(stage: Stage, _: ExitStack) -> Trace:
    amount_usdc = stage.allowed_usdc()
    stage.hold(amount_usdc)
    transfer = stage.pay(amount_usdc)
    if transfer.status != "settled":
        raise CannotHappenError(
            f"transfer {transfer.transfer_id} is {transfer.status}: the policy of {stage.account_id} "
            "requires approval; pass a smaller --amount, or omit it"
        )
    return Trace(field="transfer_id", value=transfer.transfer_id)


def _rejected_transfer(stage: Stage, _: ExitStack) -> Trace:
    # More than the balance, so that the transfer is rejected even if the policy allows it.
    amount_usdc = stage.account.balance_usdc + (stage.amount_usdc or USUAL_USDC)
    try:
        transfer = stage.pay(amount_usdc)
    except TransferRejectedError as refusal:
        return Trace(field="transfer_id", value=refusal.transfer_id or "")
    raise CannotHappenError(f"transfer {transfer.transfer_id} was not rejected; it is {transfer.status}")


def _escalation(stage: Stage, _: ExitStack) -> Trace:
    threshold = stage.account.policy.escalation_threshold
    if threshold is None:
        raise CannotHappenError(
            f"the policy of {stage.account_id} has no escalation_threshold; set one, or omit --account to "
            "use a new account"
        )
    amount_usdc = stage.amount_usdc or max(threshold, LEAST_USDC)
    if amount_usdc < threshold:
        raise CannotHappenError(
            f"escalation_threshold of {stage.account_id} is {threshold} USDC; pass at least that as "
            "--amount, or omit it"
        )
    stage.hold(amount_usdc)
    return Trace(field="transfer_id", value=stage.pay(amount_usdc).transfer_id)


def _low_balance(stage: Stage, cleaning: ExitStack) -> Trace:
    thresholds = stage.thresholds()
    if thresholds:
        # The highest threshold at or below the balance. If the balance is below all, fund it first.
        reached = [threshold for threshold in thresholds if threshold <= stage.account.balance_usdc]
        threshold = reached[-1] if reached else thresholds[0]
        amount_usdc = stage.hold(threshold) - threshold + LEAST_USDC
    else:
        amount_usdc = stage.allowed_usdc()
        stage.add_threshold(stage.hold(amount_usdc), cleaning)
    stage.pay(amount_usdc)
    return Trace(field="account_id", value=stage.account_id)


def _opened_session(stage: Stage, cleaning: ExitStack) -> Trace:
    return _charged_session(stage, cleaning, lambda _: 0)


def _warned_session(stage: Stage, cleaning: ExitStack) -> Trace:
    return _charged_session(stage, cleaning, lambda cap_micro: cap_micro * 9 // 10 + 1)


def _exhausted_session(stage: Stage, cleaning: ExitStack) -> Trace:
    return _charged_session(stage, cleaning, lambda cap_micro: cap_micro)


def _settled_session(stage: Stage, _: ExitStack) -> Trace:
    # Close the session before waiting for the event, since closing causes it.
    with ExitStack() as at_once:
        return _charged_session(stage, at_once, lambda cap_micro: cap_micro // 2)


def _charged_session(stage: Stage, cleaning: ExitStack, charge: Callable[[int], int]) -> Trace:
    cap_usdc = stage.allowed_usdc()
    stage.hold(cap_usdc)
    session = stage.open_session(cap_usdc, cleaning)
    if micro := charge(to_micro(cap_usdc)):
        stage.charge(session, micro)
    return Trace(field="session_id", value=session.session_id)


_CAUSES: Final[Mapping[EventType, Callable[[Stage, ExitStack], Trace]]] = {
    # A transfer that settles was initiated.
    "transfer.initiated": _settled_transfer,
    "transfer.settled": _settled_transfer,
    "transfer.rejected": _rejected_transfer,
    "session.opened": _opened_session,
    "session.cap_warning": _warned_session,
    "session.cap_reached": _exhausted_session,
    "session.settled": _settled_session,
    "balance.low_threshold": _low_balance,
    "escalation.required": _escalation,
}
