"""The console's overview: counts, the newest requests, the kept snapshots (CO16, CO17, SB9)."""

from contextlib import suppress

import attrs
import bounds
import money
import pytest
from server_world import START

from agentpay import AgentPay, AgentPayError, PermissionDeniedError
from agentpay.contract.ext.console import ConsoleSummary
from agentpay_server import AgentPayServer, Sandbox, Settings


def counted(server: AgentPayServer) -> dict[str, int]:
    summary = server.client().console.summary()
    assert isinstance(summary, ConsoleSummary)
    return {
        field.name: getattr(summary, field.name)
        for field in attrs.fields(ConsoleSummary)
        if field.type is int
    }


def test_the_summary_counts_open_work(server: AgentPayServer, client: AgentPay) -> None:
    assert set(counted(server).values()) == {0}
    payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
    server.sandbox.fund(payer, "100")
    client.policies.update(payer, escalation_threshold=20)
    client.policies.pause(payee)
    transfer = client.transfers.create(from_=payer, to=payee, amount="30")
    session = server.sessions.open(account_id=payer, to=payee, cap_usdc="2")
    assert counted(server) == {
        "accounts": 2,
        "paused_accounts": 1,
        "suspended_accounts": 0,
        "pending_approvals": 1,
        "undelivered_deliveries": 0,
        "retrying_deliveries": 0,
        "open_sessions": 1,
        "stuck_settlements": 0,
    }
    server.sessions.close(session.session_id)
    client.approvals.reject(transfer.transfer_id)
    server.scenario("undelivered_webhook")
    after = counted(server)
    assert (after["pending_approvals"], after["open_sessions"], after["undelivered_deliveries"]) == (0, 0, 1)


def test_the_summary_is_per_operator_and_not_for_agents(server: AgentPayServer, client: AgentPay) -> None:
    account_id = client.accounts.create(name="Mine").account_id
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    assert (other.console.summary().accounts, other.console.summary().operator_name) == (0, "Other")
    with pytest.raises(PermissionDeniedError):
        server.agent_client(account_id).console.summary()
    with pytest.raises(PermissionDeniedError):
        next(iter(server.agent_client(account_id).console.request_logs.list()))


def test_the_treasury_is_counted_in_lamports(client: AgentPay) -> None:
    held = client.console.summary().treasury_lamports
    assert held is not None
    client.accounts.create(name="Mine")
    left = client.console.summary().treasury_lamports
    assert left is not None
    assert 0 < left < held


def test_the_treasury_is_measured_and_lasts_so_many_days(server: AgentPayServer, client: AgentPay) -> None:
    def seen(lamports: int, **later: float) -> tuple[int | None, int | None, bool]:
        money.give_treasury(server, lamports)
        server.sandbox.clock.advance(**later)
        found = client.console.summary()
        assert found.treasury_lamports == lamports
        return (
            found.treasury_burn_lamports,
            found.treasury_days_left,
            "treasury" in found.needs_attention,
        )

    sol = 1_000_000_000
    # 0.02 SOL are left for the sessions that are open.
    assert seen(5 * sol) == (None, None, False)
    assert seen(5 * sol, seconds=3599) == (None, None, False)
    assert seen(5 * sol, seconds=1) == (0, None, False)
    assert seen(4 * sol, hours=11) == (2 * sol, 1, True)
    # SOL that somebody sends begins a new measurement.
    assert seen(80 * sol, seconds=1) == (None, None, False)
    assert seen(79 * sol, hours=12) == (2 * sol, 39, False)
    # Only the last 24 hours count.
    assert seen(79 * sol, hours=12) == (sol, 78, False)
    assert seen(79 * sol, hours=12) == (0, None, False)
    assert seen(0)[2]


def test_what_is_not_well_is_named() -> None:
    with AgentPayServer(clock=START, settings=Settings(settlement_wait_seconds=0.05)) as server:
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, "10")
        client.policies.update(payer, escalation_threshold=5)
        client.transfers.create(from_=payer, to=payee, amount=5)
        client.policies.pause(payee)
        # What an operator has asked for is no trouble.
        assert client.console.summary().needs_attention == ()
        server.scenario("undelivered_webhook")
        assert client.console.summary().needs_attention == ("undelivered_deliveries",)
        server.sandbox.set_fault("chain_never_lands")
        with suppress(AgentPayError):
            client.transfers.create(from_=payer, to=payee, amount=1, max_retries=0)
        assert client.console.summary().stuck_settlements == 0
        server.sandbox.set_fault("chain_down")
        server.sandbox.clock.advance(minutes=11)
        found = client.console.summary()
        assert (found.stuck_settlements, found.is_chain_reachable) == (1, False)
        assert found.needs_attention == ("chain", "undelivered_deliveries", "stuck_settlements")
        server.sandbox.clear_faults()


@pytest.mark.embedded_chain("an account's USDC leaves it without the service")
def test_a_suspended_account_is_counted(server: AgentPayServer, client: AgentPay) -> None:
    payer, payee = (client.accounts.create(name=name) for name in ("Payer", "Payee"))
    for account in (payer, payee):
        server.sandbox.fund(account.account_id, "10")
    money.suspend(server, payer, payee, 2_000_000)
    found = client.console.summary()
    assert (found.suspended_accounts, found.needs_attention) == (1, ("suspended_accounts",))


def test_requests_are_listed_without_their_content(server: AgentPayServer, client: AgentPay) -> None:
    account = client.accounts.create(name="A private name")
    client.accounts.get(account.account_id)
    requests = list(client.console.request_logs.list(limit=100))
    created = next(request for request in requests if request.method == "POST")
    assert (created.route, created.status) == ("/v1/accounts", 201)
    assert created.key_id.startswith("key_")
    assert created.request_id.startswith("req_")
    assert "/v1/accounts/{account_id}" in {request.route for request in requests}
    assert not any(text in repr(requests) for text in (account.account_id, account.name))


def test_requests_are_paged_newest_first_and_by_operator(server: AgentPayServer, client: AgentPay) -> None:
    for _ in range(5):
        client.whoami()
    client.accounts.create(name="Newest")
    requests = list(client.console.request_logs.list(limit=2))
    # The pages are requests too: they are listed after the requests of the first page.
    assert [request.route for request in requests] == ["/v1/accounts", *["/ext/v1/whoami"] * 5]
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    assert list(other.console.request_logs.list()) == []


def test_only_the_newest_requests_of_the_most_recent_operators_are_kept(
    server: AgentPayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds.shorten(monkeypatch, console_requests_kept=3, console_operators_kept=2)
    others = [server.client(api_key=server.sandbox.create_operator(name).key) for name in "abc"]
    for client in others:
        for number in range(5):
            client.accounts.create(name=f"{number}")
    # A list is a request too, so the oldest operator is asked about last.
    kept = [list(client.console.request_logs.list()) for client in reversed(others)]
    assert [len(requests) for requests in kept] == [3, 3, 0]


@pytest.mark.in_memory("snapshots are taken in memory")
def test_snapshots_are_listed_newest_first_by_operator(server: AgentPayServer) -> None:
    taken = [server.sandbox.snapshot() for _ in range(3)]
    assert list(server.sandbox.snapshots(limit=2)) == taken[::-1]
    server.sandbox.restore(taken[0])
    assert list(server.sandbox.snapshots()) == taken[::-1]
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    assert list(Sandbox(other).snapshots()) == []
