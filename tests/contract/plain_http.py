"""What a stranger has: a base address, an operator key and an HTTP client; and a receiver of webhooks.

The tests of the specification (`test_v1_*.py`) use only this. Where the published interface does not say how
to do a thing (funding, time, faults, sessions, agent-scoped keys), they use the extensions, also by HTTP.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import httpx
from attrs import field, frozen
from receivers import Post, Receiver

from agentpay_server import AgentPayServer

POLICY_DEFAULTS: dict[str, Any] = {
    "max_single_transfer": None,
    "max_daily_spend": None,
    "allowed_counterparties": None,
    "categories": None,
    "require_memo": False,
    "escalation_threshold": None,
    "paused": False,
}
TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
USDC = r"\d+\.\d{6}"
ADDRESS = r"[1-9A-HJ-NP-Za-km-z]{32,44}"

_KEYS = count(1)


@frozen
class Webhook:
    """A registered endpoint: what the registration returned, and what arrived."""

    created: dict[str, Any]
    receiver: Receiver = field(repr=False)

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(post.body) for post in self.receiver.posts]

    def is_signed(self, post: Post) -> bool:
        """Return whether a delivery has the signature that Authentication 5 describes."""
        expected = hmac.new(self.created["secret"].encode(), post.body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, post.headers["x-service-signature"])


@frozen
class Service:
    """A running service, as its operator reaches it."""

    http: httpx.Client

    def account(self, funds: str | None = None, **policy: Any) -> dict[str, Any]:
        """Create an account with some USDC and a policy, and return it as it was created."""
        created = self.http.post("/v1/accounts", json={"name": "Bot"})
        assert created.status_code == 201, created.text
        account: dict[str, Any] = created.json()
        if funds is not None:
            path = f"/ext/v1/sandbox/accounts/{account['account_id']}/fund"
            assert self.http.post(path, json={"amount": funds}).status_code == 200
        if policy:
            self.policy(account, **policy)
        return account

    def policy(self, account: dict[str, Any], **fields: Any) -> httpx.Response:
        response = self.http.put(f"/v1/accounts/{account['account_id']}/policy", json=fields)
        assert response.status_code == 200, response.text
        return response

    def pay(
        self, source: dict[str, Any], to: dict[str, Any] | str, amount: str = "1", **more: Any
    ) -> httpx.Response:
        """Send a transfer, under a new idempotency key unless one is given."""
        body = {
            "from": source["account_id"],
            "to": to if isinstance(to, str) else to["account_id"],
            "amount": amount,
            "idempotency_key": f"key {next(_KEYS)}",
        }
        return self.http.post("/v1/transfers", json=body | more)

    def balance(self, account: dict[str, Any]) -> str:
        shown = self.http.get(f"/v1/accounts/{account['account_id']}/balance")
        assert shown.status_code == 200
        return str(shown.json()["balance_usdc"])

    def history(self, account: dict[str, Any], **query: Any) -> dict[str, Any]:
        response = self.http.get(f"/v1/accounts/{account['account_id']}/transactions", params=query)
        assert response.status_code == 200, response.text
        page: dict[str, Any] = response.json()
        return page

    def advance(self, seconds: float) -> None:
        """Let time pass on the service's clock; returns when the work due within it is done."""
        path = "/ext/v1/sandbox/clock/advance"
        assert self.http.post(path, json={"seconds": seconds}, timeout=300).status_code == 200

    def now(self) -> str:
        return str(self.http.get("/ext/v1/sandbox/clock").json()["now"])

    def with_key(self, key: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.http.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=120
        )

    @contextmanager
    def agent(self, account: dict[str, Any]) -> Iterator[httpx.Client]:
        """A client with an agent-scoped key of an account."""
        made = self.http.post("/ext/v1/console/agent-keys", json={"account_id": account["account_id"]})
        with self.with_key(made.json()["key"]) as client:
            yield client

    @contextmanager
    def webhook(self, *events: str, **options: Any) -> Iterator[Webhook]:
        """A receiver that is registered for some types of events."""
        with Receiver() as receiver:
            body = {"url": receiver.url, "events": list(events), **options}
            created = self.http.post("/v1/webhooks", json=body)
            assert created.status_code == 201, created.text
            yield Webhook(created.json(), receiver)


@contextmanager
def running() -> Iterator[Service]:
    """An embedded server on a loopback port, whose clock stands still until a test advances it."""
    with (
        AgentPayServer() as server,
        httpx.Client(
            base_url=server.listen(),
            headers={"Authorization": f"Bearer {server.operator_key}"},
            timeout=120,  # For a busy machine; no test depends on it.
        ) as http,
    ):
        yield Service(http)
