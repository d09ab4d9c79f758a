"""The fees that an agent can cause: each account's budget, and what the treasury keeps.

See interface F1 to F5.
"""

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import chain_facts
import fee_books
import httpx
import money
import pytest
import validators
from payees import RENT, Payee
from sellers import ORIGIN, Seller
from server_world import START, raw_client
from session_desk import Desk
from session_sellers import GRACE_SECONDS, SessionSeller

import agentpay
from agentpay_server import AgentPayServer, Settings

TRANSFER = 10_000
OPENING, CLOSE = 15_000, 10_000
CYCLE = OPENING + CLOSE
DAY_SECONDS = 24 * 3600


def desk_with(server: AgentPayServer, http: Any) -> Desk:
    client = server.client()
    payer, payee = (client.accounts.create(name=name) for name in ("Payer", "Payee"))
    server.sandbox.fund(payer.account_id, 100)
    return Desk(server, http, payer, payee)


def budgeted(lamports: int, **settings: Any) -> AgentPayServer:
    return AgentPayServer(
        clock=START, settings=Settings(fee_budget_sol=f"{lamports / 10**9:.9f}", **settings)
    )


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A payer whose account may cost the treasury four cycles of a session without a charge."""
    with budgeted(4 * CYCLE) as server, raw_client(server) as http:
        yield desk_with(server, http)


def counted(desk: Desk, *, by_operator: bool = True) -> tuple[int, int]:
    """Return the lamports of the payer that are burned, and those that unfinished work may burn."""
    account_id = desk.payer.account_id
    return money.on_owner(
        desk.server, lambda context: fee_books.counted(context, account_id, by_operator=by_operator)
    )


def agent_of(desk: Desk) -> httpx.Client:
    """Return an HTTP client with an agent's key of the payer."""
    return raw_client(desk.server, desk.server.agent_keys.create(desk.payer.account_id).key)


def order(desk: Desk, key: str, amount: str = "1") -> dict[str, str]:
    body = {"from": desk.payer.account_id, "to": desk.payee.account_id, "amount": amount}
    return {**body, "idempotency_key": key}


def cycle(desk: Desk, key: str) -> int:
    """Open and close a session without a charge; return the status of a refused opening, else 200."""
    opened = desk.ask(idempotency_key=key, cap_usdc="0.01")
    if opened.status_code != 201:
        return opened.status_code
    return desk.close(opened.json()["session_id"]).status_code


def refused(response: Any) -> int:
    """Assert that a request is over the budget, and return for how many seconds to wait."""
    body = response.json()
    assert (response.status_code, body["error"]) == (429, "fee_budget_exceeded"), body
    assert set(body) == {"error", "message", "request_id"}
    return int(response.headers["retry-after"])


# --- The attack


def test_sessions_opened_and_closed_without_a_charge_end_at_the_budget(desk: Desk) -> None:
    """An agent with 0.02 USDC made a treasury pay 25,000 lamports, as often as it liked."""
    server, client = desk.server, desk.server.client()
    other = client.accounts.create(name="Other")
    server.sandbox.fund(other.account_id, 10)
    before = money.lamports(server, money.treasury(server))
    with agent_of(desk) as http:
        agent = Desk(server, http, desk.payer, desk.payee)
        answers = [cycle(agent, f"attack {number}") for number in range(10)]
        assert answers == [200] * 4 + [429] * 6
        assert before - money.lamports(server, money.treasury(server)) == 4 * CYCLE
        assert refused(agent.ask(idempotency_key="attack 11")) == DAY_SECONDS
    # Nothing is stored, and the attack of one account stops no other.
    assert len(money.rows(server, "sessions")) == 4
    paid = client.transfers.create(from_=other.account_id, to=desk.payee.account_id, amount=1)
    assert paid.status == "settled"


def test_agents_do_not_use_up_what_operators_request_or_approve_nor_the_reverse(desk: Desk) -> None:
    """An agent's forced closes stopped the operator's transfers for a day, with the money in the account."""
    desk.server.client().policies.update(desk.payer.account_id, escalation_threshold=5)
    with agent_of(desk) as http:
        agent = Desk(desk.server, http, desk.payer, desk.payee)
        waiting = http.post("/v1/transfers", json=order(desk, "waits", "5")).json()["transfer_id"]
        assert [cycle(agent, f"agent's {number}") for number in range(5)] == [200] * 4 + [429]
        refused(http.post("/v1/transfers", json=order(desk, "agent's")))
        terms = {name: value for name, value in order(desk, "").items() if name != "idempotency_key"}
        refused(http.post("/ext/v1/transfers/check", json=terms))
        assert (counted(desk, by_operator=False), counted(desk)) == ((4 * CYCLE, 0), (0, 0))
        # What an operator approves of an agent's is the operator's.
        approved = desk.http.post(f"/ext/v1/console/approvals/{waiting}/approve").json()
        assert approved["status"] == "settled"
        assert desk.http.post("/v1/transfers", json=order(desk, "operator's")).json()["status"] == "settled"
        assert [cycle(desk, f"operator's {number}") for number in range(5)] == [200] * 4 + [429]
        message = desk.http.post("/v1/transfers", json=order(desk, "too much")).json()["message"]
        assert f"of {desk.payer.account_id} for operator keys is 0.0001 SOL in 24 hours" in message
        assert (counted(desk, by_operator=False), counted(desk)) == ((4 * CYCLE, 0), (4 * CYCLE, 0))
        desk.server.sandbox.clock.advance(DAY_SECONDS)
        assert [cycle(agent, "agent's again"), cycle(desk, "operator's again")] == [200, 200]


@pytest.mark.parametrize("who", ["agent", "operator"])
def test_forced_closes_of_channels_count_for_who_has_opened_them(who: str) -> None:
    validators.embedded_only("the program of channels is on its chain")
    with AgentPayServer(clock=START) as server, raw_client(server) as http:
        desk, seller = desk_with(server, http), SessionSeller.at(server).open()
        with agent_of(desk) as agent:
            asking = agent if who == "agent" else http
            terms = {"account_id": desk.payer.account_id, "origin": ORIGIN, "session_cap": "1"}
            body = {**terms, "idempotency_key": "call", **seller.ask_session()}
            opening = asking.post("/ext/v1/payments", json=body).json()
            assert seller.accept_opening(opening["header"]).failure is None  # type: ignore[union-attr]
            reserved = counted(desk, by_operator=who == "operator")[1]
            # The other closes it.
            closing = agent if who == "operator" else http
            assert closing.post(f"/ext/v1/sessions/{opening['session_id']}/close").is_success
        server.sandbox.clock.advance(GRACE_SECONDS + 5)
        server.sandbox.clock.advance(60)
        assert counted(desk, by_operator=who == "operator") == (reserved, 0)
        assert counted(desk, by_operator=who != "operator") == (0, 0)


def test_a_payment_that_an_operator_has_approved_is_the_operators_when_its_agent_gets_it() -> None:
    with budgeted(CYCLE) as server, raw_client(server) as http:
        desk, seller = desk_with(server, http), Seller.at(server).open()
        server.client().policies.update(desk.payer.account_id, escalation_threshold="0.001")
        with agent_of(desk) as agent:

            def pay() -> Any:
                terms = {"account_id": desk.payer.account_id, "origin": ORIGIN, "idempotency_key": "p"}
                challenge = seller.ask("mpp", 1_000, is_sponsored=False)
                return agent.post("/ext/v1/payments", json={**terms, **challenge})

            waiting = pay().json()
            server.client().policies.update(desk.payer.account_id, escalation_threshold=5)
            assert cycle(Desk(server, agent, desk.payer, desk.payee), "burns it") == 200
            assert http.post(f"/ext/v1/console/approvals/{waiting['transfer_id']}/approve").is_success
            assert pay().status_code == 201
            assert counted(desk) == (0, TRANSFER + 1)
            assert counted(desk, by_operator=False) == (CYCLE, 0)


def test_the_budget_is_free_again_when_retry_after_has_passed(desk: Desk) -> None:
    clock = desk.server.sandbox.clock
    for number in range(4):
        assert cycle(desk, f"first {number}") == 200
        clock.advance(hours=1)
    wait_seconds = refused(desk.ask(idempotency_key="again"))
    assert wait_seconds == DAY_SECONDS - 4 * 3600
    clock.advance(wait_seconds - 1)
    assert refused(desk.ask(idempotency_key="again")) == 1
    clock.advance(1)
    # One cycle has left the window, and the refused key is free.
    assert [cycle(desk, key) for key in ("again", "once more")] == [200, 429]


# --- What counts


def test_a_session_that_pays_costs_nothing_of_the_budget(desk: Desk) -> None:
    for number in range(6):
        session_id = desk.open(idempotency_key=f"{number}", cap_usdc="1")
        assert counted(desk) == (0, CYCLE)
        assert desk.charge(session_id, "0.1").status_code == 200
        assert desk.close(session_id).status_code == 200
        assert counted(desk) == (0, 0)


def test_open_sessions_reserve_the_fees_of_their_close(desk: Desk) -> None:
    opened = [desk.open(idempotency_key=f"{number}", cap_usdc="1") for number in range(4)]
    assert counted(desk) == (0, 4 * CYCLE)
    # No time frees what sessions reserve: the message says what does.
    response = desk.ask(idempotency_key="more")
    assert refused(response) == 60
    assert "unfinished work reserves 0.0001 SOL" in response.json()["message"]
    body = {"from": desk.payer.account_id, "to": desk.payee.account_id, "amount": "1"}
    refused(desk.http.post("/v1/transfers", json={**body, "idempotency_key": "t"}))
    # Closes are never refused.
    assert desk.charge(opened[0], "0.5").status_code == 200
    assert [desk.close(session_id).status_code for session_id in opened] == [200] * 4
    assert counted(desk) == (3 * CYCLE, 0)
    assert [cycle(desk, key) for key in ("more", "yet more")] == [200, 429]


def test_a_budget_of_one_lamport_less_refuses_a_transfer_and_its_check() -> None:
    with budgeted(TRANSFER - 1) as server, raw_client(server) as http:
        desk = desk_with(server, http)
        body = {"from": desk.payer.account_id, "to": desk.payee.account_id, "amount": "1"}
        # It can never be allowed, and the longest wait is a day.
        assert refused(http.post("/v1/transfers", json={**body, "idempotency_key": "t"})) == DAY_SECONDS
        refused(http.post("/ext/v1/transfers/check", json=body))
        assert money.rows(server, "transfers") == []
        # What the policy refuses costs nothing: its reason comes first.
        server.client().policies.update(desk.payer.account_id, max_single_transfer="0.5")
        assert http.post("/v1/transfers", json={**body, "idempotency_key": "t"}).status_code == 402


def test_an_approval_over_the_budget_leaves_the_transfer_pending() -> None:
    with budgeted(CYCLE) as server, raw_client(server) as http:
        desk, client = desk_with(server, http), server.client()
        client.policies.update(desk.payer.account_id, escalation_threshold=5)
        waiting = client.transfers.create(from_=desk.payer.account_id, to=desk.payee.account_id, amount=5)
        assert cycle(desk, "burns it") == 200
        refused(http.post(f"/ext/v1/console/approvals/{waiting.transfer_id}/approve"))
        assert client.transfers.get(waiting.transfer_id).status == "pending_approval"
        server.sandbox.clock.advance(DAY_SECONDS - 1)
        assert http.post(f"/ext/v1/console/approvals/{waiting.transfer_id}/approve").status_code == 429


def test_the_rent_of_a_payees_new_token_account_counts() -> None:
    """Its owner can close it again, and keeps the rent."""
    with budgeted(RENT + CYCLE - 1) as server, raw_client(server) as http:
        desk = desk_with(server, http)
        payee = Payee(desk)
        session_id = desk.open(to=payee.token_account)
        assert desk.charge(session_id, "4").status_code == 200
        payee.closes()
        before = money.lamports(server, money.treasury(server))
        # The close is not refused, although nothing else fits afterwards.
        assert desk.close(session_id).status_code == 200
        assert counted(desk) == (RENT, 0)
        # The escrow's rent came back.
        assert before - money.lamports(server, money.treasury(server)) == CLOSE
        refused(desk.ask(idempotency_key="another"))


def test_a_payment_counts_until_its_seller_broadcasts_it_or_it_expires() -> None:
    validators.embedded_only("what is signed for a cluster expires in real time")
    with budgeted(TRANSFER + 1) as server, raw_client(server) as http:
        account = server.client().accounts.create(name="Buyer")
        server.sandbox.fund(account.account_id, 10)
        seller = Seller.at(server).open()

        def pay(key: str, *, is_sponsored: bool) -> Any:
            challenge = seller.ask("mpp", 1_000, is_sponsored=is_sponsored)
            body = {"account_id": account.account_id, "idempotency_key": key, "origin": ORIGIN, **challenge}
            return http.post("/ext/v1/payments", json=body)

        first = pay("first", is_sponsored=False)
        assert first.status_code == 201
        assert refused(pay("second", is_sponsored=False)) == 60
        # A seller that pays the fee costs the treasury nothing.
        assert pay("sponsored", is_sponsored=True).status_code == 201
        seller.settle(first.json()["header"])
        assert pay("second", is_sponsored=False).status_code == 201
        refused(pay("third", is_sponsored=False))
        server.sandbox.clock.advance(minutes=2)
        assert pay("third", is_sponsored=False).status_code == 201


# --- The treasury


@pytest.fixture
def poor() -> Iterator[Desk]:
    validators.embedded_only("what its treasury holds is set in the virtual machine")
    with AgentPayServer(clock=START) as server, raw_client(server) as http:
        yield desk_with(server, http)


RESERVE = 20_000_000


def unfunded(desk: Desk, response: Any) -> None:
    body = response.json()
    assert (response.status_code, body["error"]) == (503, "chain_unavailable"), body
    assert money.treasury(desk.server) in body["message"]
    assert "transfer_id" not in body
    assert response.headers["retry-after"]


def test_a_treasury_at_its_reserve_signs_no_new_work_and_closes_sessions(poor: Desk) -> None:
    """It signed and sent openings that failed, 15,000 lamports each, until nothing could be paid."""
    opened = [poor.open(idempotency_key=f"{number}", cap_usdc="1") for number in range(3)]
    assert poor.charge(opened[0], "0.5").status_code == 200
    signed = len(money.rows(poor.server, "chain_transactions"))
    money.give_treasury(poor.server, RESERVE + TRANSFER - 1)
    body = {"from": poor.payer.account_id, "to": poor.payee.account_id, "amount": "1"}
    unfunded(poor, poor.ask(idempotency_key="more"))
    unfunded(poor, poor.http.post("/v1/transfers", json={**body, "idempotency_key": "t"}))
    unfunded(poor, poor.http.post("/v1/accounts", json={"name": "Another"}))
    assert len(money.rows(poor.server, "chain_transactions")) == signed
    assert money.lamports(poor.server, money.treasury(poor.server)) == RESERVE + TRANSFER - 1
    # Closes may spend the reserve, and return the rent of their escrows.
    money.give_treasury(poor.server, 890_880 + CLOSE)
    assert [poor.close(session_id).status_code for session_id in opened] == [200] * 3


def test_the_treasury_pays_for_new_work_down_to_its_reserve(poor: Desk) -> None:
    body = {"from": poor.payer.account_id, "to": poor.payee.account_id, "amount": "1"}
    money.give_treasury(poor.server, RESERVE + 2 * TRANSFER)
    answers = [poor.http.post("/v1/transfers", json={**body, "idempotency_key": f"{n}"}) for n in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    unfunded(poor, answers[2])
    assert money.lamports(poor.server, money.treasury(poor.server)) == RESERVE
    # An opening needs the rent of its escrow, and the fees of its close.
    needed = RESERVE + RENT + CYCLE
    money.give_treasury(poor.server, needed - 1)
    unfunded(poor, poor.ask(idempotency_key="opening"))
    money.give_treasury(poor.server, needed)
    assert poor.ask(idempotency_key="opening").status_code == 201


def test_a_policy_is_in_force_and_its_record_waits_while_the_treasury_is_empty(poor: Desk) -> None:
    money.give_treasury(poor.server, RESERVE)
    client = poor.server.client()
    assert client.policies.pause(poor.payer.account_id).paused
    assert money.rows(poor.server, "chain_transactions") == []
    money.give_treasury(poor.server, 10**9)
    poor.server.sandbox.clock.advance(minutes=10)
    assert client.console.details(poor.payer.account_id).policy_record is not None


# --- Accounts


def test_an_operator_creates_so_many_accounts_in_24_hours() -> None:
    with AgentPayServer(clock=START, settings=Settings(max_accounts_per_day=3)) as server:
        client = server.client()
        for number in range(3):
            client.accounts.create(name=f"{number}")
            server.sandbox.clock.advance(hours=1)
        with pytest.raises(agentpay.RateLimitError) as caught:
            client.accounts.create(name="one more")
        assert (caught.value.code, caught.value.retry_after) == ("rate_limited", DAY_SECONDS - 3 * 3600)
        assert "max_accounts_per_day" in caught.value.message
        assert len(list(client.accounts.list())) == 3
        # Another operator has a limit of its own.
        other = server.client(api_key=server.sandbox.create_operator("Other").key)
        assert other.accounts.create(name="First").status == "active"
        server.sandbox.clock.advance(hours=21)
        client.accounts.create(name="one more")
        with pytest.raises(agentpay.RateLimitError):
            client.accounts.create(name="too many")


# --- Settings


def test_a_budget_is_an_amount_of_sol_or_unlimited() -> None:
    assert Settings().fee_budget_sol is None
    assert Settings(fee_budget_sol=0).fee_budget_sol == 0
    assert Settings(fee_budget_sol=math.inf).fee_budget_sol == Decimal("Infinity")
    for wrong in ("-1", "NaN", "much", 0.5, True):
        with pytest.raises((TypeError, ValueError)):
            Settings(fee_budget_sol=wrong)  # type: ignore[arg-type]
    for wrong_count in (0, -1, 1.5, True, "3"):
        with pytest.raises(ValueError, match="at least 1"):
            Settings(max_accounts_per_day=wrong_count)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="at least 1"):
            Settings(rate_limit_per_minute=wrong_count)  # type: ignore[arg-type]


@pytest.mark.in_memory("the chain only says that it is public")
def test_a_public_cluster_limits_fees_and_requests_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    with AgentPayServer(clock=START) as prepared:
        assert not limited(prepared)
    chain_facts.state(monkeypatch, is_test_chain=False)
    with AgentPayServer(clock=START) as server:
        assert limited(server)
        assert money.on_owner(server, fee_books.budget) == 10_000_000


def limited(server: AgentPayServer) -> bool:
    """Return whether the 601st request of a key within a minute is refused."""
    with raw_client(server) as http:
        answers = [http.get("/ext/v1/console/audit?limit=1").status_code for _ in range(601)]
    assert set(answers[:600]) == {200}
    return answers[600] == 429
