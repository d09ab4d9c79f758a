"""Faults of requests: what goes wrong with one operation, and that the SDK pays once all the same."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import httpx
import money
import pytest
import validators
from server_world import Funded, faults, raw_client, refused

from agentpay import (
    AgentPay,
    APIConnectionError,
    AsyncAgentPay,
    InvalidRequestError,
    ServerError,
    TransferOutcomeUnknownError,
)
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer, Sandbox
from agentpay_server.contract.sandbox import Fault, HttpEffect

TRANSFERS = "http:POST /v1/transfers"
EFFECTS: dict[str, dict[str, Any]] = {
    "delay": {"effect": "delay", "delay_ms": 20},
    "internal_error": {"effect": "internal_error"},
    "reset": {"effect": "reset"},
    "reply_lost": {"effect": "reply_lost"},
}
PROCESSED = {"delay": 1, "internal_error": 0, "reset": 0, "reply_lost": 1}
"""How many transfers there are after a single request that suffers."""

Pay = Callable[..., Any]


def paid(client: AgentPay, order: dict[str, Any], **options: Any) -> Any:
    return client.transfers.create(**order, **options)


def paid_async(client: AsyncAgentPay, order: dict[str, Any], **options: Any) -> Any:
    async def pay() -> Any:
        return await client.transfers.create(**order, **options)

    return anyio.run(pay)


@pytest.fixture(params=["in process", "in process, async", "port", "port, async"])
def pay(request: pytest.FixtureRequest, server: AgentPayServer) -> Iterator[Pay]:
    """Makes a transfer with the SDK, in each way that it reaches a server."""
    if request.param == "in process":
        yield lambda order, **options: paid(server.client(), order, **options)
    elif request.param == "in process, async":
        yield lambda order, **options: paid_async(server.async_client(), order, **options)
    elif request.param == "port":
        with AgentPay(api_key=server.operator_key, base_url=server.listen()) as client:
            yield lambda order, **options: paid(client, order, **options)
    else:
        base_url = server.listen()

        def pay_once(order: dict[str, Any], **options: Any) -> Any:
            async def pay() -> Any:
                async with AsyncAgentPay(api_key=server.operator_key, base_url=base_url) as client:
                    return await client.transfers.create(**order, **options)

            return anyio.run(pay)

        yield pay_once


def order(payer: Account, payee: Account, key: str = "order-7") -> dict[str, Any]:
    return {"from_": payer.account_id, "to": payee.account_id, "amount": "7", "idempotency_key": key}


def test_the_sdk_pays_once_whatever_fault_hits_its_first_request(
    server: AgentPayServer, funded: Funded, pay: Pay
):
    payer = funded()
    for count, effect in enumerate(("delay", "reset", "reply_lost"), start=1):
        payee = funded("1")
        with server.sandbox.fault(TRANSFERS, times=1, **EFFECTS[effect]):
            transfer = pay(order(payer, payee, effect))
            assert list(server.sandbox.faults()) == []
        assert (transfer.status, transfer.idempotency_key) == ("settled", effect)
        keys = [row["idempotency_key"] for row in money.rows(server, "transfers")]
        assert (len(keys), keys.count(effect)) == (count, 1)
        assert money.held(server, payee.usdc_token_account) == 8_000_000


def test_an_unknown_outcome_is_resolved_with_the_same_key(server: AgentPayServer, funded: Funded, pay: Pay):
    payer = funded()
    for before, effect in enumerate(EFFECTS):
        payee = funded("1")
        with server.sandbox.fault(TRANSFERS, **EFFECTS[effect]):
            if effect == "delay":
                assert pay(order(payer, payee, effect), max_retries=0).status == "settled"
            else:
                with pytest.raises(TransferOutcomeUnknownError) as caught:
                    pay(order(payer, payee, effect), max_retries=0)
                assert caught.value.idempotency_key == effect
                assert isinstance(
                    caught.value.__cause__, ServerError if effect == "internal_error" else APIConnectionError
                )
        assert len(money.rows(server, "transfers")) == before + PROCESSED[effect]
        assert pay(order(payer, payee, effect)).status == "settled"
        assert len(money.rows(server, "transfers")) == before + 1
        assert money.held(server, payee.usdc_token_account) == 8_000_000


def test_a_delay_longer_than_the_client_waits_is_a_timeout(server: AgentPayServer, funded: Funded, pay: Pay):
    payer, payee = funded(), funded("1")
    with (
        server.sandbox.fault(TRANSFERS, effect="delay", delay_ms=3_000),
        pytest.raises(TransferOutcomeUnknownError),
    ):
        pay(order(payer, payee), timeout=0.2, max_retries=0)
    assert pay(order(payer, payee)).status == "settled"
    assert money.held(server, payee.usdc_token_account) == 8_000_000


def test_a_fault_affects_its_operation_alone_also_where_it_would_be_refused(
    server: AgentPayServer, http: httpx.Client
):
    server.sandbox.set_fault("http:GET /v1/accounts/{account_id}", effect="internal_error")
    answer = http.get("/v1/accounts/acct_x")
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    server.sandbox.set_fault("http:GET /v1/accounts/{account_id}", effect="reply_lost")
    with pytest.raises(httpx.RemoteProtocolError):
        http.get("/v1/accounts/acct_x")
    assert http.post("/v1/accounts", json={"name": "a"}).status_code == 201
    assert http.get("/v1/accounts").status_code == 200
    server.sandbox.clear_faults()
    refused(http.get("/v1/accounts/acct_x"), "not_found")


def test_the_scope_is_checked_first(server: AgentPayServer, funded: Funded):
    """Without a key for the operation, a request neither reveals nor uses up a fault."""
    account = funded()
    server.sandbox.set_fault("http:GET /v1/accounts", 1, effect="reset")
    with raw_client(server, "") as nobody:
        refused(nobody.get("/v1/accounts"), "unauthorized")
    with raw_client(server, server.agent_keys.create(account.account_id).key) as agent:
        refused(agent.get("/v1/accounts"), "forbidden")
    assert [fault.times for fault in server.sandbox.faults()] == [1]


@pytest.mark.in_memory("nothing else can be brought back")
def test_a_delayed_request_is_not_processed_after_a_restore(server: AgentPayServer, http: httpx.Client):
    validators.embedded_only("no other chain can be brought back")
    snapshot = server.sandbox.snapshot()
    server.sandbox.set_fault("http:POST /v1/accounts", effect="delay", delay_ms=2_000)

    def restored() -> None:
        while not money.on_owner(server, _delayed):
            pass
        server.sandbox.restore(snapshot)

    restorer = threading.Thread(target=restored)
    restorer.start()
    with pytest.raises(httpx.RemoteProtocolError):
        http.post("/v1/accounts", json={"name": "Late"})
    restorer.join()
    assert money.rows(server, "accounts") == []


async def _delayed(_: Any) -> bool:
    return any("_fail" in _names(task) for task in asyncio.all_tasks())


def _names(task: Any) -> list[str]:
    names, awaited = [], task.get_coro()
    while awaited is not None:
        names.append(getattr(awaited, "__name__", ""))
        awaited = getattr(awaited, "cr_await", None)
    return names


# --- Arming -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "http:POST%20/v1/transfers",
        "http%3APOST%20%2Fv1%2Ftransfers",
        "http%3aPOST%20%2fv1%2ftransfers",
    ],
)
def test_the_slashes_in_a_fault_name_may_be_encoded_over_a_port(server: AgentPayServer, path: str):
    headers = {"Authorization": f"Bearer {server.operator_key}"}
    with httpx.Client(base_url=server.listen(), headers=headers) as http:
        url = f"/ext/v1/sandbox/faults/{path}"
        answer = http.put(url, json={"times": 2, "effect": "delay", "delay_ms": 5})
        told = {"name": TRANSFERS, "times": 2, "effect": "delay", "delay_ms": 5}
        assert (answer.status_code, answer.json()) == (200, told)
        assert http.get("/ext/v1/sandbox/faults").json()["data"] == [told]
        assert http.delete(url).status_code == 204
        assert http.get("/ext/v1/sandbox/faults").json()["data"] == []


def test_a_sandbox_client_over_a_port_arms_a_fault(server: AgentPayServer):
    name = "http:GET /v1/accounts/{account_id}/balance"
    with AgentPay(api_key=server.operator_key, base_url=server.listen()) as client:
        with Sandbox(client).fault(name, effect=HttpEffect.RESET) as fault:
            assert fault == Fault(name=name, times=None, effect=HttpEffect.RESET)
            assert list(Sandbox(client).faults()) == [fault]
            entry = next(iter(server.console.audit_log.list()))
            assert (entry.action, entry.subject) == ("sandbox.faults.set", name)
            assert entry.after == {"times": None, "effect": "reset"}
        assert list(Sandbox(client).faults()) == []


def test_an_encoded_slash_is_refused_everywhere_else(http: httpx.Client):
    refused(http.get("/v1/accounts/acct%2Fx"), "not_found")
    refused(http.post("/ext/v1/sandbox/snapshots/snap%2Fx/restore"), "not_found")
    refused(http.delete("/ext/v1/sandbox%2Ffaults/chain_down"), "not_found")


@pytest.mark.parametrize(
    ("name", "body", "wrong"),
    [
        (TRANSFERS, {}, {"effect"}),
        (TRANSFERS, {"effect": "fire"}, {"effect"}),
        (TRANSFERS, {"effect": None}, {"effect"}),
        (TRANSFERS, {"effect": "delay"}, {"delay_ms"}),
        (TRANSFERS, {"effect": "delay", "delay_ms": 0}, {"delay_ms"}),
        (TRANSFERS, {"effect": "delay", "delay_ms": 60_001}, {"delay_ms"}),
        (TRANSFERS, {"effect": "reset", "delay_ms": 5}, {"delay_ms"}),
        ("chain_down", {"effect": "reset", "delay_ms": 5}, {"effect", "delay_ms"}),
        ("http:POST /v1/unknown", {"effect": "reset"}, {"name"}),
        ("http:PUT /v1/transfers", {"effect": "reset"}, {"name"}),
        ("http:GET /v1/accounts/acct_1", {"effect": "reset"}, {"name"}),
        ("http:DELETE /ext/v1/sandbox/faults", {"effect": "reset"}, {"name"}),
        ("http:", {"effect": "reset"}, {"name"}),
        ("", {"effect": "reset"}, {"name"}),
    ],
)
def test_an_unknown_fault_is_refused(
    shared_http: httpx.Client, name: str, body: dict[str, Any], wrong: set[str]
):
    answer = shared_http.put(f"/ext/v1/sandbox/faults/{name}", json=body)
    assert set(faults(answer)) == wrong


def test_the_sdk_refuses_an_unknown_effect(server: AgentPayServer):
    with pytest.raises(ValueError, match="unknown effect 'slow'; available: delay, internal_error, reset"):
        server.sandbox.set_fault(TRANSFERS, effect="slow")
    with pytest.raises(InvalidRequestError):
        server.sandbox.set_fault(TRANSFERS)
    for name in ("http:GET /v1/../accounts", "", "a//b"):
        with pytest.raises(ValueError, match="identifier"):
            server.sandbox.set_fault(name, effect="reset")
