"""Accounts and balances: the contract's fields, live balances, two operators apart.

See interface A1 to A10, E9.
"""

import re
from typing import Any

import httpx
import money
import pytest
from server_world import UNKNOWN, UNKNOWN_ACCOUNT, Funded, path_of, raw_client, refused
from solders.pubkey import Pubkey

from agentpay import AgentPay
from agentpay_server import AgentPayServer
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS


def test_an_account_exists_on_chain_with_its_associated_token_account(
    server: AgentPayServer, client: AgentPay
):
    account = client.accounts.create(name="a")

    authority, token_account, usdc = _on_chain(server, account)
    assert authority is not None, "the authority address holds rent exemption (interface A10)"
    assert token_account is not None
    assert token_account.owner == account.chain_address
    expected, _ = Pubkey.find_program_address(
        [
            bytes(Pubkey.from_string(account.chain_address)),
            bytes(Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")),
            bytes(Pubkey.from_string(usdc)),
        ],
        Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL"),
    )
    assert account.usdc_token_account == str(expected)
    assert usdc == "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"


METADATA: dict[str, Any] = {
    "team": "ü\U0001f600",
    "n": [1, 2.5, None, True, {"deep": "\u2028"}],
    "": 0,
    "big": 10**30,
}


def test_metadata_is_never_returned_by_v1_but_by_the_console(http: httpx.Client):
    marked = {**METADATA, "secret": "PLANTED"}
    created = http.post("/v1/accounts", json={"name": "a", "metadata": marked})
    account_id = created.json()["account_id"]

    for answer in (
        created,
        http.get(f"/v1/accounts/{account_id}"),
        http.get("/v1/accounts"),
        http.get(f"/v1/accounts/{account_id}/policy"),
        http.get(f"/v1/accounts/{account_id}/balance"),
        http.get(f"/v1/accounts/{account_id}/transactions"),
    ):
        assert answer.is_success
        assert "metadata" not in answer.text
        assert "PLANTED" not in answer.text
    assert http.get(f"/ext/v1/console/accounts/{account_id}").json()["metadata"] == marked


def test_numbers_in_metadata_are_kept_exactly(http: httpx.Client):
    body = (
        '{"name":"a","metadata":{"a":0.1,"b":1e400,"c":12345678901234567890.123456789012345678901,"d":-0.0}}'
    )
    account_id = http.post("/v1/accounts", content=body).json()["account_id"]

    text = http.get(f"/ext/v1/console/accounts/{account_id}").text

    assert '"a":0.1,' in text
    assert '"b":1E+400,' in text
    assert '"c":12345678901234567890.123456789012345678901,' in text


# --- Balances ---------------------------------------------------------------------------------------------


def test_a_balance_is_read_live_from_the_chain(server: AgentPayServer, funded: Funded, http: httpx.Client):
    account = funded("1")
    server.sandbox.clock.advance(1.5)
    money.mint(server, account.usdc_token_account, 250_000)

    path = f"/v1/accounts/{account.account_id}"
    assert http.get(f"{path}/balance").json() == {
        "account_id": account.account_id,
        "balance_usdc": "1.250000",
        "last_updated": "2026-01-01T00:00:01.500Z",
    }
    assert http.get(path).json()["balance_usdc"] == "1.250000"
    assert http.get("/v1/accounts").json()["data"][0]["balance_usdc"] == "1.250000"
    assert http.get(f"/ext/v1/console/accounts/{account.account_id}").json()["balance_usdc"] == "1.250000"


# --- Two operators ----------------------------------------------------------------------------------------


@pytest.fixture
def neighbour(server: AgentPayServer):
    """A second tenant of the same server, and its plain HTTP client."""
    operator = server.sandbox.create_operator("Neighbour")
    with raw_client(server, operator.key) as http:
        yield http


def without(message: str, *identifiers: str) -> str:
    """A message without the identifiers that the caller sent, which it repeats."""
    for identifier in identifiers:
        message = message.replace(identifier, "…")
    return message


def test_an_identifier_of_another_operator_is_treated_as_unknown(
    neighbour, server: AgentPayServer, funded: Funded, client: AgentPay, http: httpx.Client
):
    ours, payee = funded("5"), funded("1")
    transfer = client.transfers.create(from_=ours.account_id, to=payee.account_id, amount="1")
    key = server.agent_keys.create(ours.account_id)
    webhook = client.webhooks.create(url="https://example.com/hook", events=["transfer.settled"])
    event = http.get("/ext/v1/console/events").json()["data"][0]
    session = server.sessions.open(account_id=ours.account_id, to=payee.account_id, cap_usdc=1)
    known = {
        "session_id": session.session_id,
        "account_id": ours.account_id,
        "transfer_id": transfer.transfer_id,
        "key_id": key.key_id,
        "webhook_id": webhook.webhook_id,
        "event_id": event["id"],
    }
    bodies = {
        "payments.report_outcome": {"status_code": 200},
        "policies.put": {"paused": True},
        "sandbox.accounts.fund": {"amount": "1"},
        "sessions.charge": {"amount": "1", "idempotency_key": "k"},
    }

    def answer(endpoint, identifiers):
        path = path_of(endpoint, **identifiers)
        content = {"json": bodies.get(endpoint.name, {})} if endpoint.request else {}
        body = refused(neighbour.request(endpoint.method, path, **content), "not_found")
        return {**body, "message": without(body["message"], *identifiers.values()), "request_id": None}

    named = [(endpoint, re.findall(r"\{(\w+)\}", endpoint.path)) for endpoint in BOUND_ENDPOINTS]
    with_identifier = [(endpoint, names) for endpoint, names in named if names and {*names} <= {*known}]
    assert len(with_identifier) >= 9
    for endpoint, names in with_identifier:
        assert answer(endpoint, {name: known[name] for name in names}) == answer(
            endpoint, {name: UNKNOWN[name] for name in names}
        )


def test_an_account_of_another_operator_in_a_body_is_treated_as_unknown(neighbour, funded: Funded):
    ours = funded("5").account_id
    payee = neighbour.post("/v1/accounts", json={"name": "b"}).json()["account_id"]

    def answers(account_id):
        transfer = {"from": account_id, "to": payee, "amount": "1", "idempotency_key": "k"}
        session = {"account_id": account_id, "to": payee, "cap_usdc": "1", "idempotency_key": "k"}
        for path, body in (
            ("/v1/transfers", transfer),
            ("/ext/v1/console/agent-keys", {"account_id": account_id}),
            ("/ext/v1/sessions", session),
        ):
            refusal = refused(neighbour.post(path, json=body), "not_found")
            yield {**refusal, "message": without(refusal["message"], account_id), "request_id": None}

    assert list(answers(ours)) == list(answers(UNKNOWN_ACCOUNT))


def _on_chain(server, account):
    world = server._running
    chain = world.server.context.chain

    async def read():
        authority = await chain.account_size(account.chain_address)
        (token_account,) = await chain.token_accounts([account.usdc_token_account])
        return authority, token_account, chain.usdc_mint

    return world._owner.call(read())
