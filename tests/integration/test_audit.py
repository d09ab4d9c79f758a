"""The audit trail: who changed what, before, after and when, in the commit that makes the change."""

from typing import Any

import books
import httpx
import key_checks
import money
import pytest
from attrs import frozen
from money import rows
from sellers import ORIGIN, Seller
from server_world import START, Funded, made_key, raw_client, refused, state_of
from session_desk import Desk
from watched_database import refuse

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.endpoints import Endpoint, Scope
from agentpay.contract.ext.console import PAUSE_ALL, AuditEntry
from agentpay_server import AgentPayServer, Settings
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

pytestmark = pytest.mark.unmeasured

DAY = 24 * 3600


def entries(server: AgentPayServer, subject: str) -> list[AuditEntry]:
    """Return what the trail says of one subject, oldest first."""
    return [entry for entry in server.console.audit_log.list(limit=100) if entry.subject == subject][::-1]


def told(server: AgentPayServer, subject: str) -> list[tuple[str, Any, Any]]:
    return [(entry.action, entry.before, entry.after) for entry in entries(server, subject)]


# --- Transfers --------------------------------------------------------------------------------------------


@frozen
class Paying:
    """Two accounts, and a transfer between them that any test may ask for."""

    http: httpx.Client
    payer: Account
    payee: Account

    def order(self, amount: str, **more: str) -> dict[str, str]:
        return {
            "from": self.payer.account_id,
            "to": self.payee.account_id,
            "amount": amount,
            "idempotency_key": "order-7",
            **more,
        }

    def pay(self, amount: str, **more: str) -> dict[str, Any]:
        return dict(self.http.post("/v1/transfers", json=self.order(amount, **more)).json())

    def asked(self, amount: str, **more: str) -> dict[str, str]:
        """The audit entries of the requests."""
        return {
            "account_id": self.payer.account_id,
            "to": self.payee.account_id,
            "amount_usdc": amount,
            "idempotency_key": "order-7",
            **more,
        }


@pytest.fixture
def paying(http: httpx.Client, funded: Funded) -> Paying:
    return Paying(http, funded("100"), funded("1", name="Payee"))


def test_a_transfer_has_amount_recipient_and_outcome(server: AgentPayServer, paying: Paying) -> None:
    """Once, however often it is asked for, with the key that asked first."""
    order = paying.order("2.5", memo="dataset 7", category="data")
    key = server.agent_keys.create(paying.payer.account_id)
    with raw_client(server, key.key) as agent:
        answer = agent.post("/v1/transfers", json=order)
    transfer = answer.json()
    assert paying.http.post("/v1/transfers", json=order).json() == transfer
    (entry,) = entries(server, transfer["transfer_id"])
    assert entry.action == "transfers.create"
    assert entry.key_id == key.key_id
    assert entry.request_id == answer.headers["x-request-id"]
    assert entry.created_at == START
    assert entry.before is None
    assert entry.after == {
        **paying.asked("2.500000", memo="dataset 7", category="data"),
        "status": "submitted",
        "tx_signature": transfer["tx_signature"],
    }


def test_a_refused_transfer_is_audited_with_the_reason(
    server: AgentPayServer, client: AgentPay, paying: Paying
) -> None:
    client.policies.update(paying.payer.account_id, max_single_transfer=2)
    refused = paying.pay("3")
    assert told(server, refused["transfer_id"]) == [
        (
            "transfers.create",
            None,
            {
                **paying.asked("3.000000"),
                "status": "rejected",
                "error": "policy_violation",
                "message": refused["message"],
            },
        )
    ]


# --- Approvals --------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(client: AgentPay, paying: Paying) -> str:
    """A transfer of 25 USDC that waits for approval."""
    client.policies.update(paying.payer.account_id, escalation_threshold=20)
    transfer = paying.pay("25")
    assert transfer["status"] == "pending_approval"
    return str(transfer["transfer_id"])


def test_an_escalation_and_its_approval_are_two_entries(
    server: AgentPayServer, paying: Paying, waiting: str
) -> None:
    approved = server.approvals.approve(waiting)
    pending = {"status": "pending_approval"}
    assert told(server, waiting) == [
        ("transfers.create", None, {**paying.asked("25.000000"), **pending}),
        (
            "approvals.approve",
            pending,
            {**paying.asked("25.000000"), "status": "submitted", "tx_signature": approved.tx_signature},
        ),
    ]


def test_an_expiry_is_audited_as_the_server(server: AgentPayServer, waiting: str) -> None:
    server.sandbox.clock.advance(DAY)
    *_, expired = entries(server, waiting)
    assert (expired.action, expired.key_id, expired.request_id) == ("approvals.expire", None, None)
    assert expired.before == {"status": "pending_approval"}
    assert (expired.after["status"], expired.after["error"]) == ("rejected", "escalation_expired")


# --- Sessions ---------------------------------------------------------------------------------------------


def test_a_session_is_audited_from_opening_to_close(desk: Desk) -> None:
    session_id = desk.open(category="data")
    desk.charge(session_id, "1.5", "call-1")
    desk.charge(session_id, "0.25", "call-2")
    desk.charge(session_id, "0.25", "call-2")
    desk.charge(session_id, "100")
    desk.open(category="data")
    signature = desk.server.sessions.get(session_id).tx_signature
    for _ in range(2):
        desk.close(session_id)
    assert told(desk.server, session_id) == [
        (
            "sessions.open",
            None,
            {
                "account_id": desk.payer.account_id,
                "to": desk.payee.account_id,
                "cap_usdc": "10.000000",
                "category": "data",
                "idempotency_key": "key-1",
                "status": "opening",
                "tx_signature": signature,
            },
        ),
        (
            "sessions.charge",
            {"running_total_usdc": "0.000000"},
            {"amount_usdc": "1.500000", "running_total_usdc": "1.500000", "idempotency_key": "call-1"},
        ),
        (
            "sessions.charge",
            {"running_total_usdc": "1.500000"},
            {"amount_usdc": "0.250000", "running_total_usdc": "1.750000", "idempotency_key": "call-2"},
        ),
        (
            "sessions.close",
            {"status": "open"},
            {
                "status": "closing",
                "cap_usdc": "10.000000",
                "settled_usdc": "1.750000",
                "returned_usdc": "8.250000",
            },
        ),
    ]
    assert {entry.key_id for entry in entries(desk.server, session_id)} == {
        desk.server._running.server.operator.key_id
    }


def test_an_automatic_close_is_audited_as_the_server() -> None:
    with AgentPayServer(clock=START, settings=Settings(session_idle_seconds=60)) as server:
        payer, payee = (server.client().accounts.create(name=name).account_id for name in ("a", "b"))
        server.sandbox.fund(payer, 10)
        session = server.sessions.open(account_id=payer, to=payee, cap_usdc=5)
        server.sandbox.clock.advance(60)
        assert server.sessions.get(session.session_id).status == "settled"
        *_, closed = entries(server, session.session_id)
    assert (closed.action, closed.key_id, closed.request_id) == ("sessions.close", None, None)
    assert closed.before == {"status": "open"}
    assert (closed.after["settled_usdc"], closed.after["returned_usdc"]) == ("0.000000", "5.000000")


# --- Everything else --------------------------------------------------------------------------------------


def test_each_operation_is_audited_with_what_it_changed(server: AgentPayServer, client: AgentPay) -> None:
    account = client.accounts.create(name="Research bot", metadata={"team": "search"})
    funding = server.sandbox.fund(account.account_id, "2.5")
    agent = server.agent_keys.create(account.account_id, name="laptop")
    server.agent_keys.revoke(agent.key_id)
    operator = server.operator_keys.create(name="ops")
    server.operator_keys.revoke(operator.key_id)
    webhook = client.webhooks.create(
        url="https://example.com/hooks",
        events=["transfer.settled", "balance.low_threshold"],
        account_ids=[account.account_id],
        low_balance_threshold_usdc="2.5",
    )
    server.webhooks.rotate_secret(str(webhook.webhook_id), overlap_seconds=60)
    server.webhooks.delete(str(webhook.webhook_id))
    outside = server.sandbox.create_token_account()
    tenant = server.sandbox.create_operator("second")
    server.sandbox.clock.advance(90)
    snapshot = server.sandbox.snapshot()
    server.sandbox.restore(snapshot)

    bound = {"account_id": account.account_id, "name": "laptop"}
    hook = {
        "url": "https://example.com/hooks",
        "events": ["transfer.settled", "balance.low_threshold"],
        "account_ids": [account.account_id],
        "low_balance_threshold_usdc": 2.5,
    }
    addresses = {"chain_address": account.chain_address, "usdc_token_account": account.usdc_token_account}
    minted = {"amount_usdc": "2.500000", "tx_signature": funding.tx_signature}
    now, then = "2026-01-01T00:01:30.000Z", "2026-01-01T00:00:00.000Z"
    for subject, said in (
        (
            account.account_id,
            [
                ("accounts.create", None, {"name": "Research bot", "handle": "@research-bot", **addresses}),
                ("sandbox.accounts.fund", None, minted),
            ],
        ),
        (agent.key_id, [("agent_keys.create", None, bound), ("agent_keys.revoke", bound, None)]),
        (
            operator.key_id,
            [
                ("operator_keys.create", None, {"name": "ops"}),
                ("operator_keys.revoke", {"name": "ops"}, None),
            ],
        ),
        (
            str(webhook.webhook_id),
            [
                ("webhooks.create", None, hook),
                ("webhooks.rotate_secret", None, {"overlap_seconds": 60}),
                ("webhooks.delete", hook, None),
            ],
        ),
        (outside.usdc_token_account, [("sandbox.token_accounts.create", None, {"owner": outside.owner})]),
        (tenant.operator_id, [("sandbox.operators.create", None, {"name": "second"})]),
        ("clock", [("sandbox.clock.advance", {"now": then}, {"now": now, "seconds": 90})]),
        (
            snapshot.snapshot_id,
            [
                ("sandbox.snapshots.create", None, None),
                ("sandbox.snapshots.restore", None, {"created_at": now}),
            ],
        ),
    ):
        assert told(server, subject) == said


def test_revoking_the_key_of_a_run_is_audited(tmp_path: Any) -> None:
    with AgentPayServer(data_dir=tmp_path) as first:
        key = first.operator_key
    with AgentPayServer(data_dir=tmp_path) as second:
        lent = second._running.server.operator.key_id
    with AgentPayServer(data_dir=tmp_path, operator_key=key) as third:
        assert [(entry.action, entry.key_id) for entry in entries(third, lent)] == [
            ("operator_keys.create", lent),
            ("operator_keys.revoke", None),
        ]


# --- All of it --------------------------------------------------------------------------------------------


@frozen
class Stage:
    """A server with something for every operation to change."""

    server: AgentPayServer
    http: httpx.Client
    ids: dict[str, str]
    challenge: dict[str, Any]

    def request(self, endpoint: Endpoint[Any]) -> httpx.Response:
        ids, key = self.ids, endpoint.name
        order = {"from": ids["account_id"], "to": ids["payee_id"], "amount": "1", "idempotency_key": key}
        bodies: dict[str, object] = {
            "accounts.create": {"name": "New"},
            "policies.put": {"require_memo": True},
            "transfers.create": order,
            "webhooks.create": {"url": "http://127.0.0.1:9/x", "events": ["transfer.settled"]},
            "sessions.open": {
                "account_id": ids["account_id"],
                "to": ids["payee_id"],
                "cap_usdc": "1",
                "idempotency_key": key,
            },
            "sessions.charge": {"amount": "0.5", "idempotency_key": key},
            "payments.authorize": {**self.challenge, "account_id": ids["account_id"], "idempotency_key": key},
            "payments.report_outcome": {"status_code": 200},
            "sellers.put": {"category": "data"},
            "webhooks.update": {"account_ids": []},
            "agent_keys.create": {"account_id": ids["account_id"]},
            "operator_keys.create": {"name": "another"},
            "deliveries.replay": {"since": "2026-01-01T00:00:00Z"},
            "sandbox.accounts.fund": {"amount": "1"},
            "sandbox.operators.create": {"name": "another"},
            "sandbox.clock.advance": {"seconds": 1},
        }
        path_ids = {**ids, "name": "chain_slow"}
        if key == "operator_keys.revoke":
            path_ids["key_id"] = ids["operator_key_id"]
        if key == "payments.report_outcome":
            path_ids["transfer_id"] = ids["payment_id"]
        if key == "console.unblock":
            path_ids["account_id"] = ids["stopped_id"]
        if key == "approvals.reject":
            path_ids["transfer_id"] = ids["other_transfer_id"]
        path = endpoint.path.format(**path_ids)
        return self.http.request(endpoint.method, path, json=bodies.get(key))


@pytest.fixture
def stage(server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded) -> Stage:
    payer, payee = funded("100"), funded("1", name="Payee")
    client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=1)
    client.policies.update(payer.account_id, escalation_threshold=10)
    waiting = [
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=amount)
        for amount in (10, 11)
    ]
    seller = Seller.at(server).open()
    challenge = {"origin": ORIGIN, **seller.ask()}
    paid = {**challenge, "account_id": payer.account_id, "idempotency_key": "paid"}
    client.sellers.put(ORIGIN, category="data")
    session = server.sessions.open(account_id=payer.account_id, to=payee.account_id, cap_usdc=5)
    stopped = client.accounts.create(name="Stopped").account_id
    money.change(server, "accounts", {"suspended_us": 1}, account_id=stopped)
    idle = client.policies.pause(client.accounts.create(name="Idle").account_id).account_id
    money.change(server, "accounts", {"paused_with_all": True}, account_id=idle)
    webhook = client.webhooks.create(url="http://127.0.0.1:9/x", events=["transfer.settled"])
    server.sandbox.set_fault("chain_slow", 1)
    ids = {
        "account_id": payer.account_id,
        "payee_id": payee.account_id,
        "stopped_id": stopped,
        "transfer_id": waiting[0].transfer_id,
        "payment_id": http.post("/ext/v1/payments", json=paid).json()["transfer_id"],
        "origin": ORIGIN,
        "other_transfer_id": waiting[1].transfer_id,
        "session_id": session.session_id,
        "webhook_id": str(webhook.webhook_id),
        "event_id": next(iter(server.events.list())).id,
        "key_id": server.agent_keys.create(payer.account_id).key_id,
        "operator_key_id": server.operator_keys.create(name="second").key_id,
        "snapshot_id": server.sandbox.snapshot().snapshot_id,
    }
    return Stage(server, http, ids, challenge)


# A check is a POST for the sake of its body; test_transfer_checks.py shows that it changes nothing. A sign-in
# has no key that did it; test_sign_in.py shows its entry.
MUTATING = [
    endpoint
    for endpoint in BOUND_ENDPOINTS
    if endpoint.method != "GET" and endpoint.name != "transfers.check" and endpoint.scope is not Scope.NO_KEY
]


# Their effect is in memory or on chain before it is audited.
NOT_UNDONE = {
    "accounts.create",
    "sandbox.accounts.fund",
    "sandbox.token_accounts.create",
    "sandbox.clock.advance",
    "sandbox.snapshots.restore",
    "sandbox.reset",
}


@pytest.mark.parametrize("endpoint", MUTATING, ids=lambda endpoint: endpoint.name)
def test_every_mutating_operation_writes_one_entry_or_is_rolled_back_with_it(
    stage: Stage, endpoint: Endpoint[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if endpoint.name not in NOT_UNDONE:
        state = state_of(stage.server)

        with monkeypatch.context() as patch:
            refuse(patch, "INSERT audit", RuntimeError("no entry can be written"))
            assert stage.request(endpoint).status_code == 500
        assert state_of(stage.server) == state

    before = len(rows(stage.server, "audit"))
    answer = stage.request(endpoint)
    assert answer.status_code in endpoint.responses, answer.text
    assert answer.status_code < 400, answer.text
    if endpoint.name in ("sandbox.snapshots.restore", "sandbox.reset"):
        # Entries since the snapshot are gone, and the restore is audited.
        newest = rows(stage.server, "audit")[-1]
    else:
        *_, newest = made = rows(stage.server, "audit")[before:]
        # Of a pause, one for all, and one for each account.
        assert len(made) == 1 + (answer.json()["changed"] if endpoint is PAUSE_ALL else 0)
    assert newest["action"] == endpoint.name
    assert newest["key_id"] == stage.server._running.server.operator.key_id
    assert newest["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "endpoint",
    [each for each in MUTATING if each.name not in {*NOT_UNDONE, "sandbox.snapshots.create"}],
    ids=lambda endpoint: endpoint.name,
)
@pytest.mark.parametrize("end", ["revoked_us", "expires_us"])
def test_a_key_that_ends_after_its_check_changes_nothing(
    stage: Stage, endpoint: Endpoint[Any], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, state = stage.server._running, state_of(stage.server)
    context, key_id = running.server.context, running.server.operator.key_id

    async def set_end(at_us: int | None) -> None:
        await books.change(context.database, "api_keys", {end: at_us}, key_id=key_id)

    with monkeypatch.context() as patch:
        key_checks.after_each(patch, lambda _: set_end(context.clock.now_us()))
        refused(stage.request(endpoint), "unauthorized")
    running.call(set_end(None))
    assert state_of(stage.server) == state


def test_the_audit_trail_contains_no_secret() -> None:
    given = made_key()
    with AgentPayServer(operator_key=given) as server:
        client = server.client()
        account_id = client.accounts.create(name="a").account_id
        webhook = client.webhooks.create(url="http://127.0.0.1:9/x", events=["transfer.settled"])
        secrets = [
            given,
            webhook.secret,
            server.webhooks.rotate_secret(str(webhook.webhook_id)).secret,
            server.agent_keys.create(account_id).key,
            server.operator_keys.create(name="ops").key,
            server.sandbox.create_operator("second").key,
        ]
        trail = str(rows(server, "audit"))
    assert trail.count("'action': '") >= 7
    for secret in secrets:
        assert secret[-20:] not in trail
