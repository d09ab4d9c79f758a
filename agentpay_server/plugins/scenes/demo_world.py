"""The sample data of `agentpay-server demo`: agents with policies, shops that they pay, and an operator.

Uses only the public clients, and a separate key for each agent. Equal seeds give equal stories except for
identifiers that contain the time. The user may interfere; failures that result are shown as steps.
"""

import random
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import httpx
from attrs import frozen

from agentpay import AgentPay, errors
from agentpay.contract.ext.sessions import Session
from agentpay.contract.transfers import TransferStatus
from agentpay.payments import PaymentAuth
from agentpay_server.plugins.paywall.paywall import Paywall
from agentpay_server.plugins.scenes.document import bundled_scene
from agentpay_server.testkit.embedded.server import AgentPayServer

RESEARCH: Final = "Research bot"
TRAVEL: Final = "Travel desk"
BUYER: Final = "Data buyer"
INTERN: Final = "Intern bot"
MODEL: Final = "Model"
DATASETS: Final = "Dataset shop"
INFERENCE: Final = "Inference house"
AIRLINE: Final = "Airline"

_MODEL_POLICY: Final[Mapping[str, Any]] = {
    "max_single_transfer": 5,
    "max_daily_spend": 20,
    "escalation_threshold": 3,
}
_CAP_USDC: Final = Decimal(3)
_PRICE_USDC: Final = Decimal("0.35")
_CALL_USDC: Final = Decimal("0.05")
_PAID_PATH: Final = "/complete"
_LOW_USDC: Final = 20
_LEFT_USDC: Final = 80
"""Minimum balance for the transfers that wait for the user, of at most 40 USDC each."""
_LEFT: Final = 2
"""How many transfers are left to the user to decide."""
_BOOKED_AGAIN: Final = 0.5
_WAITING_MAX: Final = 4
"""How many transfers at most wait for the demo's operator."""


@frozen(kw_only=True)
class DemoStep:
    """One step of the demo.

    Attributes:
        number: from 1.
        actor: an agent's name, `Operator`, `Server` or `Webhook receiver`.
        status: that of a transfer or a session, or `refused`, `funded`, `failed`.
    """

    number: int
    actor: str
    action: str
    status: str
    message: str | None = None
    transfer_id: str | None = None
    session_id: str | None = None


class DemoWorld:
    """`seed` decides every step."""

    def __init__(self, server: AgentPayServer, seed: int, show: Callable[[DemoStep], None]) -> None:
        self._server = server
        self._operator = server.client()
        self._random = random.Random(seed)  # noqa: S311 - no secret depends on it
        self._show = show
        self._steps = 0
        self._has_begun = False
        self._agents: dict[str, AgentPay] = {}
        self._session: Session | None = None
        self._waiting: list[str] = []
        self._calls = 0
        self._left: list[str] = []
        self.accounts: dict[str, str] = {}
        self.paid_api_url: str = ""

    def begin(self, say: Callable[[str], None]) -> None:
        """Create the agents and shops, and perform one step of each kind without showing it."""
        say("Creating the accounts")
        built = self._server.build_scene(bundled_scene("demo"))
        for alias, account_id in built.accounts.items():
            name = self._operator.accounts.get(account_id).name
            self.accounts[name] = account_id
            for key in built.agent_keys[alias]:
                self._agents[name] = self._server.client(api_key=key)
        (self._inbox,) = built.inboxes
        self._sessions = self._server.agent_client(self.accounts[RESEARCH]).sessions
        self.paid_api_url = built.sellers["demo"]
        self._call_by(built.paywalls["demo"])
        acts = (self._buy, self._buy_too_much, self._meter, self._meter, self._pay_stranger)
        for act in (*acts, self._call_paid_api):
            self._do(act)
        for _ in range(_LEFT):
            self._do(self._book)
        self._has_begun = True

    def tools(self) -> dict[str, Any]:
        """Create an account for a model, and return the configuration of an MCP server with its tools."""
        account_id = self._operator.accounts.create(name=MODEL).account_id
        self._server.sandbox.fund(account_id, 100)
        self._operator.policies.update(account_id, **_MODEL_POLICY)
        key = self._server.agent_keys.create(account_id, name="MCP").key
        env = {"AGENTPAY_BASE_URL": self._server.base_url, "AGENTPAY_API_KEY": key}
        # The interpreter rather than `agentpay-mcp`, which may not be on the host's path.
        started = {"command": sys.executable, "args": ["-m", "agentpay.mcp"], "env": env}
        return {"mcpServers": {"agentpay": started}}

    def step(self) -> None:
        self._do(self._next)

    def _next(self) -> None:
        # Not at every step, so that the others continue while the travel desk is paused.
        if self._leaves_too_few() and self._random.random() < _BOOKED_AGAIN:
            self._book()
            return
        for name in (RESEARCH, TRAVEL, BUYER):
            least_usdc = _LEFT_USDC if name == TRAVEL else _LOW_USDC
            if self._operator.accounts.balance(self.accounts[name]).balance_usdc < least_usdc:
                self._fund(name, 100)
                self._record("Operator", f"funds {name} with 100 USDC", "funded")
                return
        remaining = self._operator.accounts.budget(self.accounts[BUYER]).remaining_usdc
        if remaining is not None and remaining < _LOW_USDC:
            self._raise_limit()
            return
        acts = [self._buy, self._meter, self._book, self._buy_too_much, self._pay_stranger]
        acts += [self._work_while_paused, self._decide, self._break_receiver, self._call_paid_api]
        self._random.choices(acts, weights=[40, 25, 8, 8, 6, 4, 8, 3, 15])[0]()

    def _do(self, act: Callable[[], None]) -> None:
        try:
            act()
        except errors.AgentPayError as error:
            if self._is_gone():
                self._begin_again()
            else:
                self._record("Server", "fails a request", "failed", message=str(error))

    def _is_gone(self) -> bool:
        """Return whether the sandbox was reset, or restored to a state before the demo."""
        if not self._has_begun:
            return False
        try:
            self._operator.accounts.get(self.accounts[AIRLINE])
        except errors.NotFoundError:
            return True
        except errors.AgentPayError:
            # Another failure, perhaps a fault that the user has armed.
            return False
        return False

    def _begin_again(self) -> None:
        self._record("Operator", "starts again, since the sandbox was reset", "settled")
        self._has_begun = False
        self._session = None
        self._waiting.clear()
        self._left.clear()
        try:
            self.begin(lambda _: None)
        finally:
            self._has_begun = True

    def _leaves_too_few(self) -> bool:
        """Return whether the user has decided a transfer that was left to them."""
        waiting = {each.transfer_id for each in self._operator.approvals.list(limit=100)}
        self._left = [transfer_id for transfer_id in self._left if transfer_id in waiting]
        return len(self._left) < _LEFT

    def _raise_limit(self) -> None:
        """Raise the data buyer's limit: its payments would be refused until tomorrow."""
        limit = (self._operator.policies.get(self.accounts[BUYER]).max_daily_spend or 0) + 100
        self._operator.policies.update(self.accounts[BUYER], max_daily_spend=limit)
        self._record("Operator", f"raises the daily limit of {BUYER} to {limit} USDC", "active")

    def _buy(self) -> None:
        name = self._random.choice([RESEARCH, BUYER])
        shop, category = self._random.choice([(DATASETS, "data"), (INFERENCE, "inference")])
        self._pay(name, shop, self._amount(20, 500), category=category)

    def _buy_too_much(self) -> None:
        self._pay(RESEARCH, DATASETS, self._amount(501, 2000), category="data")

    def _pay_stranger(self) -> None:
        self._pay(BUYER, AIRLINE, self._amount(100, 900))

    def _work_while_paused(self) -> None:
        self._pay(INTERN, INFERENCE, self._amount(10, 90))

    def _book(self) -> None:
        """Request a transfer that needs approval, or decide one if several already wait."""
        if len(self._waiting) == _WAITING_MAX:
            self._decide()
            return
        number = self._random.randint(100, 999)
        self._pay(TRAVEL, AIRLINE, self._amount(2000, 4000), memo=f"flight AP{number}")

    def _decide(self) -> None:
        """Decide a transfer that does not wait for the user."""
        if not self._waiting:
            self._book()
            return
        transfer_id = self._waiting.pop(0)
        try:
            if self._random.random() < 0.7:
                status = str(self._server.approvals.approve(transfer_id).status)
                self._record("Operator", "approves a transfer", status, transfer_id=transfer_id)
            else:
                self._server.approvals.reject(transfer_id, reason="Take the train")
                self._record("Operator", "rejects a transfer", "rejected", transfer_id=transfer_id)
        except errors.ConflictError:
            self._record("Operator", "was too late to decide", "refused", transfer_id=transfer_id)
        except errors.TransferRejectedError as refusal:
            if refusal.transfer_status == TransferStatus.PENDING_APPROVAL:
                self._waiting.append(transfer_id)
            self._refused("Operator", "approves a transfer", refusal)

    def _meter(self) -> None:
        session = self._session
        if session is None:
            session = self._sessions.open(
                account_id=self.accounts[RESEARCH],
                to=self.accounts[INFERENCE],
                cap_usdc=_CAP_USDC,
                category="inference",
            )
            action = f"opens a session of {_CAP_USDC} USDC with {INFERENCE}"
        elif session.cap_usdc - session.running_total_usdc < _PRICE_USDC:
            session = self._sessions.close(session.session_id)
            action = f"closes it: {session.settled_usdc} USDC paid, {session.returned_usdc} back"
        else:
            try:
                session = self._sessions.charge(session.session_id, amount=_PRICE_USDC)
            except (errors.NotFoundError, errors.SessionClosedError):
                # The user closed it: a later step opens the next one.
                self._session = None
                raise
            action = f"is charged {_PRICE_USDC} USDC: {session.running_total_usdc} of {session.cap_usdc}"
        self._session = None if session.is_final else session
        self._record(RESEARCH, action, str(session.status), session_id=session.session_id)

    def _call_by(self, paywall: Paywall) -> None:
        auth = PaymentAuth(self._agents[RESEARCH], account_id=self.accounts[RESEARCH])
        self._http = httpx.Client(
            transport=paywall.transport(), base_url=paywall.base_url, auth=auth, trust_env=False
        )

    def _call_paid_api(self) -> None:
        self._calls += 1
        response = self._http.get(_PAID_PATH, extensions={"payment_key": f"demo-call-{self._calls}"})
        transfer_id: str = response.extensions["payment"].transfer_id
        # The status comes from the chain, not from the seller's receipt.
        settled = self._agents[RESEARCH].payments.get(transfer_id)
        action = f"pays {_CALL_USDC} USDC for a call of {INFERENCE}"
        self._record(RESEARCH, action, settled.status, transfer_id=transfer_id)

    def _break_receiver(self) -> None:
        """Fail once. The delivery is retried after 30 seconds."""
        self._inbox.fail_next(503)
        self._record("Webhook receiver", "responds 503 to the next delivery", "retrying")

    def _fund(self, name: str, amount: int) -> None:
        self._server.sandbox.fund(self.accounts[name], amount)

    def _pay(
        self,
        name: str,
        shop: str,
        amount_usdc: Decimal,
        *,
        memo: str | None = None,
        category: str | None = None,
    ) -> None:
        action = f"pays {amount_usdc} USDC to {shop}"
        try:
            transfer = self._agents[name].transfers.create(
                from_=self.accounts[name],
                to=self.accounts[shop],
                amount=amount_usdc,
                memo=memo,
                category=category,
            )
        except errors.TransferRejectedError as refusal:
            self._refused(name, action, refusal)
            return
        if transfer.status == "pending_approval":
            # The first ones are left to the user.
            (self._left if len(self._left) < _LEFT else self._waiting).append(transfer.transfer_id)
        self._record(name, action, transfer.status, transfer_id=transfer.transfer_id)

    def _amount(self, least_cents: int, most_cents: int) -> Decimal:
        return Decimal(self._random.randint(least_cents, most_cents)) / 100

    def _refused(self, actor: str, action: str, refusal: errors.TransferRejectedError) -> None:
        self._record(actor, action, "refused", message=refusal.message, transfer_id=refusal.transfer_id)

    def _record(self, actor: str, action: str, status: str, **details: str | None) -> None:
        if not self._has_begun:
            return
        self._steps += 1
        self._show(DemoStep(number=self._steps, actor=actor, action=action, status=status, **details))
