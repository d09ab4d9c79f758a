"""Agent keys for one run: they expire, and spend no more than their total (interface K11)."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import httpx
import pytest
from sellers import ORIGIN, Seller
from server_world import START, Funded, raw_client, refused

from agentpay import (
    AgentPay,
    AuthenticationError,
    ChainUnavailableError,
    PolicyViolationError,
    RateLimitError,
    TransferOutcomeUnknownError,
)
from agentpay.contract.ext.console import NewAgentKey
from agentpay.contract.transfers import Transfer
from agentpay_server import AgentPayServer, Settings

UNIT = Decimal("0.000001")

NewKey = Callable[..., NewAgentKey]


@pytest.fixture
def payee(client: AgentPay) -> str:
    return client.accounts.create(name="Payee").account_id


@pytest.fixture
def payer(funded: Funded) -> str:
    return funded("100").account_id


@pytest.fixture
def new_key(client: AgentPay, payer: str) -> NewKey:
    def new(**limits: object) -> NewAgentKey:
        return client.agent_keys.create(payer, **limits)  # type: ignore[arg-type]

    return new


def pay(agent: AgentPay, payer: str, payee: str, amount: Decimal | int | str) -> None:
    agent.transfers.create(from_=payer, to=payee, amount=amount)


# --- Expiry


def test_a_key_works_until_it_expires(
    server: AgentPayServer, new_key: NewKey, payer: str, payee: str
) -> None:
    key = new_key(expires_in=600)
    assert key.expires_at == START + timedelta(seconds=600)
    agent = server.client(api_key=key.key)
    assert agent.whoami().expires_at == key.expires_at
    server.sandbox.clock.advance(seconds=599)
    pay(agent, payer, payee, 1)
    server.sandbox.clock.advance(seconds=1)
    with pytest.raises(AuthenticationError):
        pay(agent, payer, payee, 1)
    assert list(server.agent_keys.list()) == []


def test_an_invalid_limit_is_refused_by_name(server: AgentPayServer, payer: str) -> None:
    wrong: dict[str, list[object]] = {
        "expires_in": [0, -1, 365 * 86_400 + 1, "60", 1.5, True],
        "max_total_usdc": ["0", "-1", 5, "0.0000001"],
    }
    with raw_client(server) as http:
        for field, value in ((field, value) for field, values in wrong.items() for value in values):
            response = http.post("/ext/v1/console/agent-keys", json={"account_id": payer, field: value})
            assert response.status_code == 400
            assert [each["field"] for each in response.json()["details"]] == [field]


# --- The total


def test_a_key_spends_exactly_its_total_and_no_more(
    server: AgentPayServer, client: AgentPay, new_key: NewKey, payer: str, payee: str
) -> None:
    agent = server.client(api_key=new_key(max_total_usdc="2.5").key)
    pay(agent, payer, payee, 1)
    with pytest.raises(PolicyViolationError, match="max_total_usdc of the agent key is 2") as raised:
        pay(agent, payer, payee, "1.500001")
    assert raised.value.status_code == 402
    pay(agent, payer, payee, "1.5")
    with pytest.raises(PolicyViolationError, match="max_total_usdc"):
        pay(agent, payer, payee, UNIT)
    # Neither the operator nor another key is limited by it, and a day later it is still used up.
    pay(client, payer, payee, 1)
    pay(server.client(api_key=new_key().key), payer, payee, 1)
    server.sandbox.clock.advance(hours=25)
    with pytest.raises(PolicyViolationError, match="max_total_usdc"):
        pay(agent, payer, payee, UNIT)


def test_the_policy_still_binds(
    server: AgentPayServer, client: AgentPay, new_key: NewKey, payer: str, payee: str
) -> None:
    client.policies.update(payer, max_daily_spend=1)
    agent = server.client(api_key=new_key(max_total_usdc=50).key)
    with pytest.raises(PolicyViolationError, match="max_daily_spend"):
        pay(agent, payer, payee, 2)
    assert agent.accounts.budget(payer).remaining_usdc == 1


def test_whoami_the_budget_and_the_list_show_what_is_left(
    server: AgentPayServer, new_key: NewKey, payer: str, payee: str
) -> None:
    made = new_key(max_total_usdc="5", expires_in=60, name="run 1")
    agent = server.client(api_key=made.key)
    pay(agent, payer, payee, 2)
    me, budget = agent.whoami(), agent.accounts.budget(payer)
    (listed,) = server.agent_keys.list()
    assert (me.max_total_usdc, me.spent_total_usdc) == (5, 2)
    assert (budget.max_total_usdc, budget.spent_total_usdc, budget.remaining_total_usdc) == (5, 2, 3)
    assert (budget.remaining_usdc, budget.expires_at) == (3, made.expires_at)
    assert (listed.name, listed.expires_at) == ("run 1", made.expires_at)
    assert (listed.max_total_usdc, listed.spent_total_usdc) == (5, 2)
    # To the operator, the account has no such limit.
    assert server.client().accounts.budget(payer).max_total_usdc is None
    with raw_client(server, made.key) as http:
        assert http.get("/ext/v1/whoami").json()["max_total_usdc"] == "5.000000"


def test_a_check_predicts_the_refusal_and_what_would_be_left(
    server: AgentPayServer, new_key: NewKey, payer: str, payee: str
) -> None:
    agent = server.client(api_key=new_key(max_total_usdc=3).key)
    allowed = agent.transfers.check(from_=payer, to=payee, amount=2)
    refused = agent.transfers.check(from_=payer, to=payee, amount=4)
    assert (allowed.decision, allowed.remaining_usdc) == ("settle", 1)
    assert (refused.decision, refused.error, refused.remaining_usdc) == ("reject", "policy_violation", 3)
    assert "max_total_usdc" in (refused.message or "")


def test_an_unsettled_session_counts_with_its_whole_cap(
    server: AgentPayServer, new_key: NewKey, payer: str, payee: str
) -> None:
    agent = server.client(api_key=new_key(max_total_usdc=10).key)
    session = agent.sessions.open(account_id=payer, to=payee, cap_usdc=8)
    agent.sessions.charge(session.session_id, amount=3)
    assert agent.whoami().spent_total_usdc == 8
    with pytest.raises(PolicyViolationError, match="max_total_usdc"):
        pay(agent, payer, payee, "2.000001")
    with pytest.raises(PolicyViolationError, match="max_total_usdc"):
        agent.sessions.open(account_id=payer, to=payee, cap_usdc="2.000001")
    agent.sessions.close(session.session_id)
    assert agent.whoami().spent_total_usdc == 3
    pay(agent, payer, payee, 7)
    assert agent.whoami().spent_total_usdc == 10


def test_a_session_of_another_key_is_not_charged_with_a_limited_key(
    server: AgentPayServer, client: AgentPay, new_key: NewKey, payer: str, payee: str
) -> None:
    session = client.sessions.open(account_id=payer, to=payee, cap_usdc=50)
    limited, other = (server.client(api_key=new_key(max_total_usdc=each).key) for each in (1, None))
    with pytest.raises(PolicyViolationError, match=r"max_total_usdc of the agent key is 1\.000000 USDC"):
        limited.sessions.charge(session.session_id, amount="0.5")
    assert other.sessions.charge(session.session_id, amount=3).running_total_usdc == 3
    assert limited.whoami().spent_total_usdc == 0


def test_an_approved_transfer_counts_to_the_key_that_asked(
    server: AgentPayServer, client: AgentPay, new_key: NewKey, payer: str, payee: str
) -> None:
    client.policies.update(payer, escalation_threshold=4)
    agent = server.client(api_key=new_key(max_total_usdc=9).key)
    check = agent.transfers.check(from_=payer, to=payee, amount=4)
    assert (check.decision, check.remaining_usdc) == ("escalate", 5)
    first, second = (agent.transfers.create(from_=payer, to=payee, amount=4) for _ in range(2))
    assert agent.whoami().spent_total_usdc == 8
    # Nor may it ask for more than its total.
    with pytest.raises(PolicyViolationError, match=r"of which 8\.000000 USDC is spent or reserved"):
        agent.transfers.create(from_=payer, to=payee, amount=4)
    with pytest.raises(PolicyViolationError, match="max_total_usdc"):
        pay(agent, payer, payee, "1.000001")
    pay(agent, payer, payee, 1)
    # A waiting transfer does not count against itself when it is judged again.
    assert server.approvals.approve(first.transfer_id).status == "settled"
    assert agent.whoami().spent_total_usdc == 9
    server.approvals.reject(second.transfer_id)
    assert agent.whoami().spent_total_usdc == 5
    expiring = agent.transfers.create(from_=payer, to=payee, amount=4)
    server.sandbox.clock.advance(hours=24)
    assert client.transfers.get(expiring.transfer_id).status == "rejected"
    assert agent.whoami().spent_total_usdc == 5


def authorizing(server: AgentPayServer, key: str, payer: str) -> Callable[[str], httpx.Response]:
    """Return a function that asks, with a key, for the payment of a purchase."""
    seller = Seller.at(server).open()

    def authorize(purchase: str) -> httpx.Response:
        body = {"account_id": payer, "idempotency_key": purchase, "origin": ORIGIN, **seller.ask()}
        with raw_client(server, key) as http:
            return http.post("/ext/v1/payments", json=body)

    return authorize


def test_an_approved_payment_counts_until_it_is_signed_or_ends(
    server: AgentPayServer, client: AgentPay, new_key: NewKey, payer: str, payee: str
) -> None:
    client.policies.update(payer, escalation_threshold="0.001")
    key = new_key(max_total_usdc="0.0015").key
    authorize = authorizing(server, key, payer)
    agent = server.client(api_key=key)
    waiting = authorize("first").json()
    refused(authorize("second"), "policy_violation")
    assert server.approvals.approve(waiting["transfer_id"]).status == "approved"
    assert agent.whoami().spent_total_usdc == Decimal("0.001")
    with pytest.raises(PolicyViolationError, match="max_total_usdc"):
        pay(agent, payer, payee, "0.0006")
    signed = authorize("first")
    assert (signed.status_code, signed.json()["transfer_id"]) == (201, waiting["transfer_id"])
    assert agent.whoami().spent_total_usdc == Decimal("0.001")


def test_at_most_20_transfers_of_an_agents_key_are_pending(
    server: AgentPayServer, client: AgentPay, new_key: NewKey, payer: str, payee: str
) -> None:
    client.policies.update(payer, escalation_threshold=1)
    key = new_key().key
    agent = server.client(api_key=key)

    def ask(by: AgentPay, purchase: str) -> Transfer:
        return by.transfers.create(from_=payer, to=payee, amount=1, idempotency_key=purchase)

    waiting = [ask(agent, f"{number}") for number in range(20)]
    with pytest.raises(RateLimitError, match="20 transfers of this agent key are pending approval") as raised:
        ask(agent, "one more")
    assert (raised.value.code, raised.value.retry_after) == ("rate_limited", 60)
    with pytest.raises(RateLimitError):
        agent.transfers.check(from_=payer, to=payee, amount=1)
    # A retry finds its transfer, and what needs no approval, or another key requests, goes on.
    assert ask(agent, "7").transfer_id == waiting[7].transfer_id
    pay(agent, payer, payee, "0.5")
    assert ask(client, "operator's").status == "pending_approval"
    assert ask(server.client(api_key=new_key().key), "another's").status == "pending_approval"
    # The refused key is free: nothing was stored.
    server.approvals.reject(waiting[0].transfer_id)
    assert ask(agent, "one more").status == "pending_approval"
    with pytest.raises(RateLimitError):
        ask(agent, "yet another")


def test_a_replay_counts_once(server: AgentPayServer, new_key: NewKey, payer: str, payee: str) -> None:
    agent = server.client(api_key=new_key(max_total_usdc=3).key)
    for _ in range(3):
        agent.transfers.create(from_=payer, to=payee, amount=2, idempotency_key="one")
    assert agent.whoami().spent_total_usdc == 2


def test_a_transfer_in_flight_counts_in_full() -> None:
    with AgentPayServer(clock=START, settings=Settings(settlement_wait_seconds=0)) as server:
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, 100)
        key = client.agent_keys.create(payer, max_total_usdc=5).key
        agent = server.client(api_key=key)
        with server.sandbox.fault("chain_never_lands"):
            with pytest.raises((TransferOutcomeUnknownError, ChainUnavailableError)):
                pay(agent, payer, payee, 4)
            assert agent.whoami().spent_total_usdc == 4
            assert agent.accounts.budget(payer).remaining_total_usdc == 1
            assert agent.transfers.check(from_=payer, to=payee, amount=2).decision == "reject"


def test_a_payment_counts_from_its_authorization(server: AgentPayServer, new_key: NewKey, payer: str) -> None:
    key = new_key(max_total_usdc="0.0015").key
    authorize = authorizing(server, key, payer)
    agent = server.client(api_key=key)
    assert authorize("first").status_code == 201
    assert agent.whoami().spent_total_usdc == Decimal("0.001")
    refusal = refused(authorize("second"), "policy_violation")
    assert "max_total_usdc" in refusal["message"]
