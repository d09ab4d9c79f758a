"""Faults that the sandbox arms: over HTTP, through the SDK, and what each does to the service."""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import bounds
import httpx
import pytest
import stores
from attrs import frozen
from server_world import START, UNKNOWN_ACCOUNT, Funded, faults, raw_client, refused, state_of

from agentpay import (
    AgentPay,
    InvalidRequestError,
    OutcomeUnknownError,
    RateLimitError,
    TransferOutcomeUnknownError,
)
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer, Settings
from agentpay_server.contract.sandbox import Fault

FAULTS = "/ext/v1/sandbox/faults"
CHAIN_FAULTS = ["chain_down", "chain_reply_lost", "chain_never_lands", "chain_slow"]


@frozen
class Hasty:
    """A server that responds before a faulty chain can recover, an account with 100 USDC, and one without."""

    server: AgentPayServer
    client: AgentPay
    http: httpx.Client
    source: Account
    to: Account

    def paid(self) -> httpx.Response:
        return paid(self.http, self.source, self.to)

    def unknown(self) -> dict[str, Any]:
        """Pay, and not learn the outcome."""
        unknown = refused(self.paid(), "chain_unavailable")
        assert unknown["status"] == "submitted"
        return unknown

    def settled(self) -> dict[str, Any]:
        """Send the key again until the outcome is known; each time the server waits a little for it."""
        for _ in range(200):
            answer = self.paid()
            if answer.status_code != 503:
                assert answer.status_code == 200, answer.text
                assert self.client.accounts.balance(self.to.account_id).balance_usdc == 7
                return dict(answer.json())
        raise AssertionError("the transfer did not settle")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hasty]:
    bounds.shorten(monkeypatch, look_ups_until_a_faulty_chain_recovers=7)  # Two seconds of a driver's pauses.
    # Longer than what goes well takes on a busy machine; what does not go well never ends within it.
    wait_seconds = 0.5 if stores.run.kind == "memory" else 1.0
    with AgentPayServer(clock=START, settings=Settings(settlement_wait_seconds=wait_seconds)) as server:
        client = server.client()
        source, to = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        server.sandbox.fund(source.account_id, 100)
        with raw_client(server) as http:
            yield Hasty(server, client, http, source, to)


def paid(http: httpx.Client, source: Account, to: Account, key: str = "key") -> httpx.Response:
    body = {"from": source.account_id, "to": to.account_id, "amount": "7", "idempotency_key": key}
    return http.post("/v1/transfers", json=body)


def armed(http: httpx.Client) -> list[dict[str, Any]]:
    body = http.get(FAULTS).json()
    assert (body["cursor"], body["has_more"]) == ("", False)
    return list(body["data"])


def fault(name: str, times: int | None) -> dict[str, Any]:
    return {"name": name, "times": times, "effect": None, "delay_ms": None}


# --- Arming and disarming ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAIN_FAULTS)
def test_a_fault_is_armed_listed_and_deleted(http: httpx.Client, name: str) -> None:
    answer = http.put(f"{FAULTS}/{name}", json={"times": 3})
    assert (answer.status_code, answer.json()) == (200, fault(name, 3))
    assert http.put(f"{FAULTS}/{name}").json() == fault(name, None)
    assert armed(http) == [fault(name, None)]
    assert http.delete(f"{FAULTS}/{name}").status_code == 204
    assert http.delete(f"{FAULTS}/{name}").status_code == 204
    assert armed(http) == []


def test_all_are_listed_in_pages_newest_first_and_cleared_at_once(http: httpx.Client) -> None:
    for name in CHAIN_FAULTS:
        assert http.put(f"{FAULTS}/{name}", json={"times": None}).status_code == 200
    first = http.get(FAULTS, params={"limit": 3}).json()
    second = http.get(FAULTS, params={"limit": 3, "cursor": first["cursor"]}).json()
    assert first["has_more"]
    assert not second["has_more"]
    assert [item["name"] for page in (first, second) for item in page["data"]] == CHAIN_FAULTS[::-1]
    for _ in range(2):
        assert http.delete(FAULTS).status_code == 204
        assert armed(http) == []


@pytest.mark.parametrize("times", [0, -1, 1001, 1.5, "2", True, [1]])
def test_times_must_be_a_count(shared_http: httpx.Client, times: object) -> None:
    assert set(faults(shared_http.put(f"{FAULTS}/chain_down", json={"times": times}))) == {"times"}
    assert armed(shared_http) == []


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, CHAIN_FAULTS) for name in ("x", "CHAIN_DOWN", "%F0%9F%A4%96", "crash_at")),
        *((name, ["transfer.sent", "chain.written"]) for name in ("crash_at:", "crash_at:transfer")),
        ("crash_at:transfer.sent", ["shares", "agentpay-server serve"]),
    ],
)
def test_a_fault_that_this_server_does_not_have_is_400_and_says_which_there_are(
    shared_http: httpx.Client, method: str, name: str, expected: list[str]
) -> None:
    message = faults(shared_http.request(method, f"{FAULTS}/{name}"))["name"]
    assert all(known in message for known in expected)
    assert armed(shared_http) == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/chain_down"), ("DELETE", "/chain_down"), ("GET", ""), ("DELETE", "")],
)
def test_agent_keys_cannot_use_faults(shared_agent_http: httpx.Client, method: str, path: str) -> None:
    refused(shared_agent_http.request(method, f"{FAULTS}{path}"), "forbidden")


def test_arming_a_fault_is_audited(http: httpx.Client) -> None:
    http.delete(FAULTS)
    http.put(f"{FAULTS}/chain_slow", json={"times": 2})
    http.put(f"{FAULTS}/chain_down")
    http.delete(f"{FAULTS}/chain_reply_lost")
    http.delete(f"{FAULTS}/chain_slow")
    http.delete(FAULTS)
    *entries, _ = http.get("/ext/v1/console/audit").json()["data"]
    told = [(entry["action"], entry["subject"], entry["before"], entry["after"]) for entry in entries]
    assert told == [
        ("sandbox.faults.clear", "chain_down", {"chain_down": {"times": None}}, None),
        ("sandbox.faults.delete", "chain_slow", {"times": 2}, None),
        ("sandbox.faults.set", "chain_down", None, {"times": None}),
        ("sandbox.faults.set", "chain_slow", None, {"times": 2}),
    ]


def test_the_sdk_arms_faults_for_a_block(server: AgentPayServer, http: httpx.Client) -> None:
    sandbox = server.sandbox
    assert sandbox.set_fault("chain_slow", 2) == Fault(name="chain_slow", times=2)
    with sandbox.fault("chain_down") as fault:
        assert fault == Fault(name="chain_down", times=None)
        assert list(sandbox.faults()) == [fault, Fault(name="chain_slow", times=2)]
        with pytest.raises(ZeroDivisionError), sandbox.fault("chain_reply_lost", times=5):
            raise ZeroDivisionError
        assert len(armed(http)) == 2
    assert [fault.name for fault in sandbox.faults()] == ["chain_slow"]
    sandbox.clear_faults()
    assert list(sandbox.faults()) == []
    with pytest.raises(InvalidRequestError, match="chain_reply_lost"):
        sandbox.set_fault("chain_up")


@pytest.mark.anyio
async def test_the_async_sdk_arms_faults_for_a_block(server: AgentPayServer) -> None:
    sandbox = server.async_sandbox
    async with sandbox.fault("chain_down", times=4) as fault:
        assert [found async for found in sandbox.faults()] == [fault]
        assert fault.times == 4
    assert (await sandbox.faults()).data == ()
    await sandbox.set_fault("chain_down")
    await sandbox.clear_faults()
    assert (await sandbox.faults()).data == ()


# --- The whole service ------------------------------------------------------------------------------------


REFUSALS = [
    ("unavailable", "service_unavailable", TransferOutcomeUnknownError),
    ("rate_limited", "rate_limited", RateLimitError),
]
"""An effect, the code of its response, and what a transfer raises."""


@pytest.mark.parametrize("refusal", REFUSALS, ids=itemgetter(0))
def test_a_service_that_refuses_every_request_processes_none(
    server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded, refusal: Any
) -> None:
    effect, code, raised = refusal
    source, to = funded(), client.accounts.create(name="Payee")
    told = {"name": "http:*", "times": None, "effect": effect, "delay_ms": None}
    assert http.put(f"{FAULTS}/http:*", json={"effect": effect}).json() == told
    before = state_of(server)
    for answer in (paid(http, source, to), http.get("/v1/accounts"), http.get("/ext/v1/whoami")):
        refused(answer, code)
        assert answer.headers["retry-after"] == "1"
    with pytest.raises(raised):
        client.with_options(max_retries=0).transfers.create(
            from_=source.account_id, to=to.account_id, amount=7, idempotency_key="key"
        )
    assert state_of(server) == before
    assert armed(http) == [told]
    assert http.delete(f"{FAULTS}/http:*").status_code == 204
    assert paid(http, source, to).status_code == 200


def test_a_fault_of_an_operation_precedes_that_of_the_whole_service(
    server: AgentPayServer, http: httpx.Client
) -> None:
    server.sandbox.set_fault("http:*", 2, effect="unavailable")
    server.sandbox.set_fault("http:GET /v1/accounts", 1, effect="rate_limited")
    paths = ["/v1/accounts", "/v1/accounts", "/ext/v1/whoami", "/v1/accounts"]
    assert [http.get(path).status_code for path in paths] == [429, 503, 503, 200]


# --- chain_down -------------------------------------------------------------------------------------------


def test_while_the_chain_is_down_no_transfer_is_started(
    server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded
) -> None:
    source, to = funded(), client.accounts.create(name="Payee")
    server.sandbox.set_fault("chain_down")
    before = state_of(server)
    assert set(refused(paid(http, source, to), "chain_unavailable")) == {"error", "message", "request_id"}
    assert state_of(server) == before
    server.sandbox.clear_faults()
    assert paid(http, source, to).status_code == 200


def test_while_the_chain_is_down_no_account_is_created_read_or_funded(
    server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded
) -> None:
    account = f"/v1/accounts/{funded('5').account_id}"
    with server.sandbox.fault("chain_down"):
        for method, path, body in (
            ("POST", "/v1/accounts", {"name": "a"}),
            ("GET", "/v1/accounts", None),
            ("GET", account, None),
            ("GET", f"{account}/balance", None),
            ("POST", account.replace("/v1", "/ext/v1/sandbox") + "/fund", {"amount": "1"}),
            ("POST", "/ext/v1/sandbox/token-accounts", None),
        ):
            answer = http.request(method, path, json=body)
            refused(answer, "chain_unavailable")
            assert answer.headers["retry-after"] == "1"
        refused(http.get(f"/v1/accounts/{UNKNOWN_ACCOUNT}/balance"), "not_found")
    assert [each.balance_usdc for each in client.accounts.list()] == [5]
    assert http.post("/v1/accounts", json={"name": "a"}).status_code == 201


def test_while_the_chain_is_down_a_policy_takes_effect_and_its_record_follows(
    server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded
) -> None:
    source, to = funded(), client.accounts.create(name="Payee")
    with server.sandbox.fault("chain_down"):
        assert client.policies.update(source.account_id, paused=True).paused
        refused(paid(http, source, to), "account_paused")
    server.sandbox.clock.advance(seconds=10)
    detail = server.console.details(source.account_id)
    assert detail.policy_record is not None
    assert detail.policy_record.version == detail.policy_version


def test_a_fault_happens_the_requested_number_of_times(server: AgentPayServer, http: httpx.Client) -> None:
    path = f"/v1/accounts/{server.client().accounts.create(name='a').account_id}/balance"
    http.put(f"{FAULTS}/chain_down", json={"times": 2})
    assert http.get(path).status_code == 503
    assert armed(http) == [fault("chain_down", 1)]
    assert http.get(path).status_code == 503
    assert armed(http) == []
    assert http.get(path).status_code == 200


def test_the_sdk_retries_and_hides_a_short_outage(server: AgentPayServer, funded: Funded) -> None:
    account = funded("5")
    with server.sandbox.fault("chain_down", times=1):
        assert server.client().accounts.balance(account.account_id).balance_usdc == 5
        assert list(server.sandbox.faults()) == []


# --- chain_reply_lost, chain_never_lands, chain_slow ------------------------------------------------------


def test_a_lost_reply_is_recovered_and_money_moves_once(
    server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded
) -> None:
    source, to = funded(), client.accounts.create(name="Payee")
    with server.sandbox.fault("chain_reply_lost"):
        answer = paid(http, source, to)
        assert (answer.status_code, answer.json()["status"]) == (200, "settled")
    assert paid(http, source, to).json() == answer.json()
    assert client.accounts.balance(to.account_id).balance_usdc == 7


def test_accounts_created_while_replies_are_lost_are_complete(
    server: AgentPayServer, client: AgentPay
) -> None:
    with server.sandbox.fault("chain_reply_lost"):
        account = client.accounts.create(name="a")
        assert server.sandbox.fund(account.account_id, 3).balance_usdc == 3
        outside = server.sandbox.create_token_account().usdc_token_account
        client.transfers.create(from_=account.account_id, to=outside, amount="1")
    assert client.accounts.balance(account.account_id).balance_usdc == 2


def test_a_transaction_that_never_lands_is_signed_again_under_the_same_transfer(hasty: Hasty) -> None:
    with hasty.server.sandbox.fault("chain_never_lands"):
        unknown = hasty.unknown()
        shown = hasty.client.transfers.get(unknown["transfer_id"])
        assert shown.status == "submitted"
        assert hasty.server.console.details(hasty.source.account_id).reserved_usdc == 7
    settled = hasty.settled()
    assert settled["transfer_id"] == unknown["transfer_id"]
    assert settled["tx_signature"] != shown.tx_signature


def test_a_transaction_lost_once_lands_at_the_second_attempt(
    server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded
) -> None:
    source, to = funded(), client.accounts.create(name="Payee")
    server.sandbox.set_fault("chain_never_lands", times=1)
    assert paid(http, source, to).status_code == 200
    assert client.accounts.balance(to.account_id).balance_usdc == 7
    assert armed(http) == []


def test_a_lost_transfer_of_an_account_paused_since_fails_unpaid(hasty: Hasty) -> None:
    with hasty.server.sandbox.fault("chain_never_lands"):
        unknown = hasty.unknown()
        hasty.client.policies.pause(hasty.source.account_id)
    for _ in range(20_000):
        answer = hasty.http.get(f"/v1/transfers/{unknown['transfer_id']}").json()
        if answer["status"] != "submitted":
            break
    assert (answer["status"], answer["error"]) == ("failed", "account_paused")
    assert hasty.client.accounts.balance(hasty.source.account_id).balance_usdc == 100


def test_a_slow_chain_gives_an_unknown_outcome_that_settles_once(hasty: Hasty) -> None:
    hasty.http.put(f"{FAULTS}/chain_slow", json={"times": 1})
    unknown = hasty.unknown()
    assert armed(hasty.http) == []
    assert hasty.settled()["transfer_id"] == unknown["transfer_id"]


def test_a_funding_on_a_slow_chain_is_not_repeated(hasty: Hasty) -> None:
    account_id = hasty.to.account_id
    with (
        hasty.server.sandbox.fault("chain_slow", times=1),
        pytest.raises(OutcomeUnknownError, match="still pending"),
    ):
        hasty.server.sandbox.fund(account_id, 10)
    assert hasty.client.accounts.balance(account_id).balance_usdc == 10
    assert hasty.server.sandbox.fund(account_id, 5).balance_usdc == 15
    history = hasty.client.accounts.transactions(account_id)
    assert [entry.amount_usdc for entry in history] == [5, 10]
