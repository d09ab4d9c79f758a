"""A payer and a payee, and the ways to open, charge and close sessions between them over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import money
from attrs import frozen
from server_world import START, raw_client

from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer, Settings


@frozen
class Desk:
    """A payer with 100 USDC, a payee with none, and the ways to open a session between them."""

    server: AgentPayServer
    http: httpx.Client
    payer: Account
    payee: Account

    def terms(self, **changed: Any) -> dict[str, Any]:
        body = {
            "account_id": self.payer.account_id,
            "to": self.payee.account_id,
            "cap_usdc": "10",
            "idempotency_key": "key-1",
            **changed,
        }
        return {name: value for name, value in body.items() if value is not ...}

    def ask(self, **changed: Any) -> httpx.Response:
        return self.http.post("/ext/v1/sessions", json=self.terms(**changed))

    def open(self, **changed: Any) -> str:
        response = self.ask(**changed)
        assert response.status_code == 201, response.text
        return str(response.json()["session_id"])

    def charge(self, session_id: str, amount: str, key: str | None = None) -> httpx.Response:
        body = {"amount": amount, "idempotency_key": key or f"charge {amount}"}
        return self.http.post(f"/ext/v1/sessions/{session_id}/charges", json=body)

    def close(self, session_id: str) -> httpx.Response:
        return self.http.post(f"/ext/v1/sessions/{session_id}/close")

    def held(self) -> tuple[int, int]:
        """The on-chain balances of payer and payee."""
        parties = (self.payer, self.payee)
        payer, payee = (money.held(self.server, party.usdc_token_account) for party in parties)
        return payer, payee

    def books(self, account: Account) -> dict[str, Any]:
        (row,) = money.rows(self.server, "accounts", account_id=account.account_id)
        return row

    def events(self, *types: str) -> list[dict[str, Any]]:
        return [event for event in money.events(self.server) if event["type"] in types]

    def detail(self) -> Any:
        return self.server.console.details(self.payer.account_id)


@contextmanager
def served(data_dir: Path | None = None, **settings: Any) -> Iterator[Desk]:
    """A server of its own with these settings, and the desk there."""
    with (
        AgentPayServer(clock=START, data_dir=data_dir, settings=Settings(**settings)) as server,
        raw_client(server) as http,
    ):
        client = server.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        server.sandbox.fund(payer.account_id, 100)
        yield Desk(server, http, payer, payee)


def refused(response: httpx.Response, error: str, status: str, session_id: str | None) -> str:
    """Assert that an answer is the 402 of a session; return its message."""
    body = response.json()
    assert response.status_code == 402, body
    assert set(body) - {"refusal"} == {"error", "message", "session_id", "status"}
    assert ("refusal" in body) == (error != "transfer_failed")
    assert (body["error"], body["status"], body["session_id"]) == (error, status, session_id)
    return str(body["message"])
