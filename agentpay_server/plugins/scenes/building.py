"""Builds a scene on a running server, by the operations of its clients: nothing is written around them."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from agentpay._sync.client import AgentPay
from agentpay.contract.errors import FieldError
from agentpay.contract.ext.console import NewAgentKey
from agentpay.contract.ext.sessions import Session
from agentpay.contract.policies import POLICY_FIELDS
from agentpay.contract.requests import UNSET
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import from_micro, to_micro
from agentpay.errors import AgentPayError, APIError, OutcomeUnknownError, TransferRejectedError
from agentpay_server.clients import Sandbox
from agentpay_server.plugins.scenes.document import (
    INBOX,
    MAX_FAULTS,
    OUTSIDE,
    Scene,
    SceneError,
    SceneKey,
    SceneSeller,
    SceneStep,
    SceneWebhook,
    StepStatus,
)
from agentpay_server.testkit.embedded.inbox import WebhookInbox

_DEFERRED: Final = ("max_daily_spend", "paused")

if TYPE_CHECKING:
    from agentpay_server.assembly.config import ServerConfig
    from agentpay_server.plugins.paywall.paywall import Paywall

Inbox = Callable[[SceneWebhook, list[str]], WebhookInbox]
"""Registers an inbox for a webhook of these accounts, and returns it."""

Opener = Callable[[SceneSeller, str | None], "Paywall"]
"""Opens a local seller that pays to an address, None for its own."""

_NOT_EMPTY: Final = (
    "the data is not empty, and a scene is built only on empty data, and never continued: use another data "
    "directory or database, or omit the scene"
)


@frozen(kw_only=True)
class BuiltScene:
    """A scene on a server, with the secrets that were created for it. Its `repr` does not show them.

    Attributes:
        accounts: the `account_id` of each account, by its name in the file.
        agent_keys: the agent keys of each account, by its name in the file, in the file's order.
        webhook_secrets: the secret of each webhook, in the file's order.
        webhook_ids: the identifier of each webhook, in the file's order.
        sellers: the URL that each local seller sells, by its name in the file.
        steps: what the history made, in the file's order: transfers, sessions, None for anything else.
        inboxes: the inboxes of the embedded server, in the file's order.
        paywalls: the local sellers, by their names in the file, to see what they sold.
    """

    accounts: Mapping[str, str]
    agent_keys: Mapping[str, tuple[str, ...]] = field(repr=False)
    webhook_secrets: tuple[str, ...] = field(repr=False)
    webhook_ids: tuple[str, ...] = ()
    sellers: Mapping[str, str] = field(factory=dict)
    steps: tuple[Transfer | Session | None, ...] = ()
    inboxes: tuple[WebhookInbox, ...] = field(default=(), repr=False)
    paywalls: Mapping[str, "Paywall"] = field(factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return accounts, keys, secrets and URLs of sellers as JSON values, as `serve` prints them."""
        return {
            "accounts": dict(self.accounts),
            "agent_keys": {name: list(keys) for name, keys in self.agent_keys.items()},
            "webhook_secrets": list(self.webhook_secrets),
            "sellers": dict(self.sellers),
        }


def build(
    server: AgentPay,
    scene: Scene,
    *,
    inbox: Inbox | None = None,
    opener: Opener | None = None,
    existing: Mapping[str, str] | None = None,
) -> BuiltScene:
    """Build a scene: add its accounts to the existing ones.

    Accounts, money, keys, sellers and webhooks first, then the history in its order. The policies take effect
    before the first step that they must judge, or at the end. If it fails, its keys and webhooks are removed;
    its accounts and their history remain.

    Args:
        server: a client of a server on a test chain, with an operator key.
        scene: the scene.
        inbox: registers an inbox; None if the server has none.
        opener: opens a local seller; None if the server is elsewhere.
        existing: the `account_id` of accounts of the scene that exist already, by their names in it. They
            keep their names and policies, and get the money that they lack.

    Raises:
        SceneError: a step has another outcome than the scene says, or the server refuses one: then its
            `__cause__` is the server's error.
    """
    require_hosted(scene, has_inboxes=inbox is not None, has_sellers=opener is not None)
    return _Builder(server, scene, inbox=inbox, opener=opener, existing=existing or {}).built()


def require_empty(server: AgentPay | None) -> None:
    """Raise `SceneError` if the operator has accounts; None is one of an earlier start."""
    if server is None or server.accounts.list(limit=1).data:
        raise SceneError(_NOT_EMPTY)


def incomplete(error: SceneError, config: "ServerConfig") -> SceneError:
    """Return the error of a start whose scene cannot be built, with the data that has a part of it."""
    data = config.data_dir or (config.database_url and f"the schema {config.database_schema} of the database")
    if not data or not error.is_partly_built:
        return error
    left = f"A part of the scene is in {data}: delete it before the next start"
    return SceneError(f"{error}. {left}", faults=error.faults)


def require_hosted(scene: Scene, *, has_inboxes: bool, has_sellers: bool) -> None:
    """Raise `SceneError` if the scene needs an inbox or a local seller, and the server has none."""
    faults = [
        FieldError(
            field=f"webhooks[{place}].url",
            message=f'"{INBOX}" needs AgentPayServer(scene=…); allowed here: the URL of a receiver',
        )
        for place, webhook in enumerate(scene.webhooks)
        if webhook.url == INBOX and not has_inboxes
    ]
    faults += [
        FieldError(
            field=f"sellers[{place}]",
            message="is a local seller, which needs serve --scene or AgentPayServer(scene=…); allowed here: "
            "an origin",
        )
        for place, seller in enumerate(scene.sellers)
        if seller.origin is None and not has_sellers
    ]
    if faults:
        raise SceneError.at(*faults[:MAX_FAULTS])


class _Builder:
    def __init__(
        self,
        server: AgentPay,
        scene: Scene,
        *,
        inbox: Inbox | None,
        opener: Opener | None,
        existing: Mapping[str, str],
    ) -> None:
        self._server = server
        self._scene = scene
        self._inbox = inbox
        self._opener = opener
        self._existing = existing
        self._accounts: dict[str, str] = {}
        self._keys: list[NewAgentKey] = []
        self._webhooks: list[str] = []
        self._paywalls: dict[str, Paywall] = {}
        self._outside: dict[str, str] = {}
        self._with_policy: set[str] = set()
        self._place = ""

    @cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox(self._server)

    def built(self) -> BuiltScene:
        try:
            return self._build()
        except AgentPayError as error:
            message = f"the server refuses it: {_reason(error)}"
            fault = FieldError(field=self._place, message=message)
            self._withdraw()
            partly = bool(self._accounts)
            raise SceneError(f"{self._place}: {message}", faults=[fault], is_partly_built=partly) from error
        except SceneError as error:
            self._withdraw()
            error.is_partly_built = bool(self._accounts)
            raise

    def _withdraw(self) -> None:
        """Remove keys that the caller never learns, and webhooks that the next attempt would repeat."""
        for key in self._keys:
            with suppress(AgentPayError):
                self._server.agent_keys.revoke(key.key_id)
        for webhook_id in self._webhooks:
            with suppress(AgentPayError):
                self._server.webhooks.delete(webhook_id)
        for paywall in self._paywalls.values():
            paywall.close()

    def _build(self) -> BuiltScene:
        scene = self._scene
        held = {
            name: to_micro(self._server.accounts.balance(account_id).balance_usdc)
            for name, account_id in self._existing.items()
        }
        funds = _deposits(scene, held)
        for name, account in scene.accounts.items():
            self._place = f"accounts.{name}"
            if name in self._existing:
                self._accounts[name] = self._existing[name]
                continue
            created = self._server.accounts.create(name=account.name, metadata=account.metadata)
            self._accounts[name] = created.account_id
        keys: dict[str, tuple[str, ...]] = {}
        for name, account in scene.accounts.items():
            self._place = f"accounts.{name}"
            if funds[name]:
                self._sandbox.fund(self._accounts[name], from_micro(funds[name]))
            keys[name] = tuple(self._key(name, number, key) for number, key in enumerate(account.keys))
        urls: dict[str, str] = {}
        for place, seller in enumerate(scene.sellers):
            self._place = f"sellers[{place}]"
            origin = seller.origin or self._open(seller).base_url
            if seller.name is not None:
                urls[seller.name] = origin + seller.path
            if not seller.has_pin:
                continue
            self._server.sellers.put(
                origin,
                category=seller.category,
                recipients=seller.recipients,
                max_amount=seller.max_amount,
                blocked=seller.blocked,
                sponsor_fees=seller.sponsor_fees,
            )
        secrets, inboxes = self._register_webhooks()
        steps = [self._step(place, step) for place, step in enumerate(scene.history)]
        self._set_policies(len(scene.history))
        return BuiltScene(
            accounts=self._accounts,
            agent_keys=keys,
            webhook_secrets=tuple(secrets),
            webhook_ids=tuple(self._webhooks),
            sellers=urls,
            steps=tuple(steps),
            inboxes=tuple(inboxes),
            paywalls=self._paywalls,
        )

    def _key(self, name: str, number: int, key: SceneKey) -> str:
        self._place = f"accounts.{name}.keys[{number}]"
        created = self._server.agent_keys.create(
            self._accounts[name],
            name=key.name,
            expires_in=key.expires_in,
            max_total_usdc=key.max_total_usdc,
        )
        self._keys.append(created)
        return created.key

    def _register_webhooks(self) -> tuple[list[str], list[WebhookInbox]]:
        secrets: list[str] = []
        inboxes: list[WebhookInbox] = []
        for place, webhook in enumerate(self._scene.webhooks):
            self._place = f"webhooks[{place}]"
            account_ids = [self._accounts[name] for name in webhook.accounts]
            if webhook.url == INBOX and self._inbox is not None:
                inboxes.append(self._inbox(webhook, account_ids))
                self._webhooks.append(inboxes[-1].webhook_id or "")
                secrets.append(inboxes[-1].secret)
                continue
            created = self._server.webhooks.create(
                url=webhook.url,
                events=webhook.events,
                account_ids=account_ids,
                low_balance_threshold_usdc=webhook.low_balance_threshold_usdc,
            )
            self._webhooks.append(created.webhook_id or "")
            secrets.append(created.secret)
        return secrets, inboxes

    def _open(self, seller: SceneSeller) -> "Paywall":
        assert self._opener is not None  # noqa: S101 - the scene was checked
        pay_to = seller.pay_to
        if pay_to in self._accounts:
            pay_to = self._server.accounts.get(self._accounts[pay_to]).chain_address
        paywall = self._opener(seller, pay_to)
        self._paywalls[seller.name or ""] = paywall
        return paywall

    def _payee(self, name: str) -> str:
        if name in self._accounts:
            return self._accounts[name]
        if not name.startswith(OUTSIDE):
            return name
        if name not in self._outside:
            self._outside[name] = self._sandbox.create_token_account().usdc_token_account
        return self._outside[name]

    def _set_policies(self, place: int) -> None:
        """Set the policies for the step at `place`, or for the end.

        An account of which a later step must wait for approval gets its daily limit and its pause after that
        step: what waits does not count toward the limit.
        """
        history = self._scene.history[place:]
        waiting = {each.from_ for each in history if each.status is StepStatus.PENDING_APPROVAL}
        for name, account in self._scene.accounts.items():
            if name in self._existing or name in self._with_policy:
                continue
            self._place = f"accounts.{name}.policy"
            change = {each: getattr(account.policy, each) for each in POLICY_FIELDS}
            change = {each: value for each, value in change.items() if value is not UNSET}
            if name in waiting:
                change = {each: value for each, value in change.items() if each not in _DEFERRED}
            else:
                self._with_policy.add(name)
            if change.get("allowed_counterparties") is not None:
                change["allowed_counterparties"] = [
                    self._payee(to) for to in change["allowed_counterparties"]
                ]
            if change:
                self._server.policies.update(self._accounts[name], **change)

    # --- History

    def _step(self, place: int, step: SceneStep) -> Transfer | Session | None:
        if step.is_judged:
            self._set_policies(place)
        self._place = f"history[{place}]"
        if step.advance_seconds is not None:
            self._sandbox.clock.advance(step.advance_seconds)
            return None
        from_, to = self._accounts[step.from_ or ""], self._payee(step.to or "")
        # A random key would differ between runs with equal seeds, but an account may have the fixed one.
        key = None if self._existing else f"scene {from_} {place}"
        if step.amount is not None:
            return self._transfer(step, from_, to, step.amount, key)
        return self._session(step, from_, to, key)

    def _session(self, step: SceneStep, from_: str, to: str, key: str | None) -> Session:
        assert step.cap_usdc is not None  # noqa: S101 - the document was checked
        sessions = self._server.sessions
        session = sessions.open(
            account_id=from_, to=to, cap_usdc=step.cap_usdc, category=step.category, idempotency_key=key
        )
        try:
            if step.charged_usdc:
                session = sessions.charge(session.session_id, amount=step.charged_usdc, idempotency_key=key)
        finally:
            if step.status is StepStatus.SETTLED:
                session = sessions.close(session.session_id)
        return session

    def _transfer(self, step: SceneStep, from_: str, to: str, amount: Decimal, key: str | None) -> Transfer:
        try:
            transfer = self._server.transfers.create(
                from_=from_, to=to, amount=amount, memo=step.memo, category=step.category, idempotency_key=key
            )
        except TransferRejectedError as refusal:
            if step.status is StepStatus.REJECTED:
                return self._server.transfers.get(refusal.transfer_id or "")
            raise
        if transfer.status != step.status:
            message = (
                f"is {step.status}, but the transfer is {transfer.status}: change the status, or the policy "
                f"of {step.from_}"
            )
            raise SceneError.at(FieldError(field=f"{self._place}.status", message=message))
        return transfer


def _reason(error: AgentPayError) -> str:
    """Return what a server says of an operation, without the request, which the caller did not send."""
    cause = error.__cause__ if isinstance(error, OutcomeUnknownError) else error
    if not isinstance(cause, APIError):
        return str(error)
    return "; ".join([cause.summary, *(f"{fault.field} {fault.message}" for fault in cause.details)])


def _deposits(scene: Scene, held: Mapping[str, int]) -> dict[str, int]:
    """Return the micro-USDC that each account needs first, so that it holds its balance after the history.

    An account that exists, and holds what `held` says, may hold more at the end.

    Raises:
        SceneError: no deposit can do that.
    """
    change, least = dict.fromkeys(scene.accounts, 0), dict.fromkeys(scene.accounts, 0)
    for step in scene.history:
        if step.advance_seconds is not None or step.is_judged:
            continue
        taken = paid = step.amount or Decimal(0)
        if step.cap_usdc is not None:
            taken = step.cap_usdc
            paid = (step.charged_usdc or Decimal(0)) if step.status is StepStatus.SETTLED else Decimal(0)
        payer = step.from_ or ""
        change[payer] -= to_micro(taken)
        least[payer] = min(least[payer], change[payer])
        if step.cap_usdc is not None and step.status is StepStatus.SETTLED:
            change[payer] += to_micro(taken - paid)
        if step.to in change:
            change[step.to] += to_micro(paid)
    deposits = {name: to_micro(scene.accounts[name].balance_usdc) - change[name] for name in scene.accounts}
    for name, held_micro in held.items():
        deposits[name] = max(max(deposits[name], -least[name]) - held_micro, 0)
    for name, deposit in deposits.items():
        if name not in held and deposit + least[name] < 0:
            missing = from_micro(-(deposit + least[name]))
            message = (
                f"is {scene.accounts[name].balance_usdc}, too little for its history: allowed are "
                f"{scene.accounts[name].balance_usdc + missing} and more"
            )
            raise SceneError.at(FieldError(field=f"accounts.{name}.balance_usdc", message=message))
    return deposits
