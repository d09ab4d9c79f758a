"""One key, one transfer: replays, conflicts, retries, expiry, and many at once.

See interface I1 to I9; P4 to P7.
"""

import asyncio
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import money
import pytest
from attrs import frozen
from sellers import ORIGIN, Seller
from server_world import Funded, raw_client, refused

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.ext.sessions import Session
from agentpay.contract.fields import format_timestamp
from agentpay.contract.transfers import Transfer
from agentpay.errors import AgentPayError, InsufficientBalanceError, PolicyViolationError
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

DAY_SECONDS = 24 * 3600


@frozen
class Pair:
    payer: Account
    payee: Account
    other: Account

    def order(self, **changed: Any) -> dict[str, Any]:
        body = money.order(self.payer, self.payee.account_id, "25", memo="memo", category="data")
        body.update(changed)
        return {name: value for name, value in body.items() if value is not ...}


@pytest.fixture
def pair(funded: Funded) -> Pair:
    return Pair(funded("100"), funded("1", name="Payee"), funded("100", name="Other"))


def transactions_of(server: AgentPayServer, account: Account) -> list[str]:
    """Return the types of an account's history entries, newest first, its funding left out."""
    return [entry["type"] for entry in money.entries(server, account.account_id)][:-1]


def test_a_replay_returns_the_same_response_and_moves_nothing(
    server: AgentPayServer, http: httpx.Client, pair: Pair
) -> None:
    first = money.post(http, pair.order())
    server.sandbox.clock.advance(3600)
    again = money.post(http, pair.order())
    assert (again.status_code, again.content) == (200, first.content)
    assert money.held(server, pair.payee.usdc_token_account) == 26_000_000
    assert len(money.events(server)) == 2
    assert transactions_of(server, pair.payer) == ["transfer"]


def test_another_spelling_of_the_amount_is_the_same_request(http: httpx.Client, pair: Pair) -> None:
    first = money.post(http, pair.order())
    for amount in ("25.00", "25.000000", "025", "25.0"):
        assert money.post(http, pair.order(amount=amount)).content == first.content, amount


@pytest.mark.parametrize("first", [None, "", ...], ids=["null", "empty", "absent"])
def test_a_missing_null_and_empty_memo_are_the_same_request(
    http: httpx.Client, pair: Pair, first: Any
) -> None:
    answer = money.post(http, pair.order(memo=first))
    assert (answer.status_code, answer.json()["memo"]) == (200, None)
    for again in (None, "", ...):
        assert money.post(http, pair.order(memo=again)).content == answer.content


CHANGES: dict[str, Callable[[Pair], dict[str, Any]]] = {
    "from": lambda pair: {"from": pair.other.account_id},
    "to": lambda pair: {"to": pair.other.account_id},
    "to by another name": lambda pair: {"to": pair.payee.usdc_token_account},
    "amount": lambda pair: {"amount": "25.000001"},
    "memo": lambda pair: {"memo": "another"},
    "memo with a blank": lambda pair: {"memo": "memo "},
    "no memo": lambda pair: {"memo": ...},
    "category": lambda pair: {"category": "search"},
    "no category": lambda pair: {"category": ...},
}


@pytest.mark.parametrize("outcome", ["settled", "rejected", "insufficient", "pending"])
def test_a_changed_parameter_is_a_conflict_and_sends_nothing(
    server: AgentPayServer,
    http: httpx.Client,
    pair: Pair,
    outcome: str,
) -> None:
    policy = {"rejected": {"paused": True}, "pending": {"escalation_threshold": 1}}.get(outcome, {})
    money.put_policy(http, pair.payer, **policy)
    if outcome == "insufficient":
        drained = money.post(http, money.order(pair.payer, pair.other.account_id, "99", key="drain"))
        assert drained.status_code == 200
    first = money.post(http, pair.order())
    before = (money.events(server), len(money.rows(server, "transfers")))

    for name, change in CHANGES.items():
        response = money.post(http, pair.order(**change(pair)))
        assert (response.status_code, response.json()["error"]) == (409, "idempotency_conflict"), name
        assert set(response.json()) == {"error", "message", "request_id"}
        assert (money.events(server), len(money.rows(server, "transfers"))) == before
    # The key still refers to the same transfer.
    again = money.post(http, pair.order())
    assert (again.status_code, again.json()["status"]) == (first.status_code, first.json()["status"])


@pytest.mark.parametrize(
    ("policy", "lifted", "error"),
    [
        ({"max_single_transfer": 1}, {"max_single_transfer": None}, "policy_violation"),
        ({"max_daily_spend": 1}, {"max_daily_spend": None}, "policy_violation"),
        ({"categories": []}, {"categories": None}, "policy_violation"),
        ({"paused": True}, {"paused": False}, "account_paused"),
    ],
)
def test_a_policy_rejection_is_replayed_as_it_was(
    server: AgentPayServer,
    http: httpx.Client,
    pair: Pair,
    policy: dict[str, Any],
    lifted: dict[str, Any],
    error: str,
) -> None:
    money.put_policy(http, pair.payer, **policy)
    first = money.post(http, pair.order())
    assert (first.status_code, first.json()["error"]) == (402, error)
    assert "idempotency-replayed" not in first.headers
    # The obstacle is gone, and the response is still the original one, but says when it was decided.
    decided_at = server.sandbox.clock.now()
    server.sandbox.clock.advance(minutes=90)
    money.put_policy(http, pair.payer, **lifted)
    again = money.post(http, pair.order())
    assert (again.status_code, again.content) == (402, first.content)
    assert again.headers["idempotency-replayed"] == format_timestamp(decided_at)
    assert len(money.events(server)) == 1
    assert transactions_of(server, pair.payer) == ["rejection"]
    assert money.post(http, pair.order(idempotency_key="another")).status_code == 200


def test_the_error_of_a_repeated_refusal_says_when_it_was_decided(
    server: AgentPayServer, client: AgentPay, pair: Pair
) -> None:
    """By a person, hours after the request: what counts is when it became final."""
    client.policies.update(pair.payer.account_id, escalation_threshold="1")
    order = {
        "from_": pair.payer.account_id,
        "to": pair.payee.account_id,
        "amount": "1",
        "idempotency_key": "k",
    }
    waiting = client.transfers.create(**order)
    server.sandbox.clock.advance(hours=3)
    decided_at = server.sandbox.clock.now()
    server.approvals.reject(waiting.transfer_id)
    server.sandbox.clock.advance(hours=3)
    with pytest.raises(PolicyViolationError) as raised:
        client.transfers.create(**order)
    assert raised.value.decided_at == decided_at
    words = f"Decided at {format_timestamp(decided_at)} and repeated for its idempotency key"
    assert words in str(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).decided_at == decided_at
    client.policies.update(pair.payer.account_id, max_single_transfer="0", escalation_threshold=None)
    with pytest.raises(PolicyViolationError) as raised:
        client.transfers.create(**{**order, "idempotency_key": "k2"})
    assert raised.value.decided_at is None
    assert "repeated" not in str(raised.value)


def test_retrying_after_insufficient_balance_creates_a_new_transfer(
    server: AgentPayServer, http: httpx.Client, pair: Pair
) -> None:
    body = pair.order(amount="150")
    first, second = money.post(http, body).json(), money.post(http, body).json()
    assert first["error"] == second["error"] == "insufficient_balance"
    assert first["transfer_id"] != second["transfer_id"]
    server.sandbox.fund(pair.payer.account_id, "50")
    third = money.post(http, body)
    assert third.status_code == 200
    assert third.json()["transfer_id"] not in (first["transfer_id"], second["transfer_id"])
    assert money.post(http, body).content == third.content
    assert money.held(server, pair.payee.usdc_token_account) == 151_000_000
    types = [event["type"] for event in money.events(server)]
    assert types == ["transfer.rejected", "transfer.rejected", "transfer.initiated", "transfer.settled"]
    # Each attempt keeps its own record.
    assert http.get(f"/v1/transfers/{first['transfer_id']}").json()["status"] == "rejected"


@pytest.mark.parametrize("is_paused", [False, True], ids=["settled", "rejected"])
def test_a_key_is_replayed_until_a_millisecond_before_24_hours_and_then_free(
    server: AgentPayServer, http: httpx.Client, pair: Pair, is_paused: bool
) -> None:
    money.put_policy(http, pair.payer, paused=is_paused)
    first = money.post(http, pair.order())
    money.put_policy(http, pair.payer, paused=False)
    for hour in range(24):
        assert money.post(http, pair.order()).content == first.content, "a replay does not prolong a key"
        server.sandbox.clock.advance(3600 if hour < 23 else 3599.999)
    assert money.post(http, pair.order()).content == first.content
    assert money.post(http, pair.order(amount="1")).status_code == 409
    held = 1_000_000 if is_paused else 26_000_000
    assert money.held(server, pair.payee.usdc_token_account) == held
    server.sandbox.clock.advance(0.001)
    again = money.post(http, pair.order())
    assert again.status_code == 200
    assert again.json()["transfer_id"] != first.json()["transfer_id"]
    assert money.held(server, pair.payee.usdc_token_account) == held + 25_000_000
    # Both can be read, and the key refers to the newer one.
    shown = http.get(f"/v1/transfers/{first.json()['transfer_id']}").json()
    assert shown["status"] == ("rejected" if is_paused else "settled")
    assert money.post(http, pair.order()).content == again.content
    # Free, it may be used for something else.
    server.sandbox.clock.advance(DAY_SECONDS)
    assert money.post(http, pair.order(amount="1", to=pair.other.account_id)).status_code == 200


# --- Whose key it is --------------------------------------------------------------------------------------

Step = tuple[str, str, str | int | float]
SCOPES: dict[str, list[Step]] = {
    "an operator's retry returns its agent's payment": [
        ("agent", "payer", "settled"),
        ("operator", "payer", 0),
    ],
    "an agent's retry returns its operator's payment": [
        ("operator", "payer", "settled"),
        ("agent", "payer", 0),
    ],
    "an agent neither blocks nor probes another": [
        ("agent", "payer", "settled"),
        ("agent", "other", "settled"),
    ],
    "an operator neither blocks nor is probed by an agent of another account": [
        ("operator", "payer", "settled"),
        ("agent", "other", "settled"),
        ("operator", "payer", 0),
        ("operator", "other", 1),
    ],
    "an operator that uses its key for another account conflicts": [
        ("operator", "payer", "settled"),
        ("operator", "other", "idempotency_conflict"),
    ],
    "an agent blocks no transfer of its operator from another account": [
        ("agent", "payer", "settled"),
        ("operator", "other", "settled"),
    ],
    "nor does what the policy refuses it": [
        ("agent", "barred", "policy_violation"),
        ("operator", "other", "settled"),
    ],
    "an agent's retry of an operator's failed payment keeps the operator's claim": [
        ("operator", "poor", "insufficient_balance"),
        ("fund", "poor", 1),
        ("agent", "poor", "settled"),
        ("operator", "poor", 1),
        ("operator", "other", "idempotency_conflict"),
    ],
    "a key of another account is free for an operator after 24 hours, and its claim goes over": [
        ("operator", "payer", "settled"),
        ("advance", "", DAY_SECONDS - 0.001),
        ("operator", "other", "idempotency_conflict"),
        ("advance", "", 0.001),
        ("operator", "other", "settled"),
        ("operator", "payer", "idempotency_conflict"),
    ],
    "an operator can retry an agent's failed payment": [
        ("operator", "payer", "settled"),
        ("agent", "poor", "insufficient_balance"),
        ("fund", "poor", 1),
        ("operator", "poor", "settled"),
        ("agent", "poor", 2),
        ("operator", "payer", "settled"),
        ("operator", "other", "idempotency_conflict"),
    ],
    "operators do not share keys": [
        ("operator", "payer", "settled"),
        ("stranger", "theirs", "insufficient_balance"),
    ],
}


@pytest.mark.parametrize("steps", SCOPES.values(), ids=SCOPES)
def test_whose_key_it_is(server: AgentPayServer, client: AgentPay, pair: Pair, steps: list[Step]) -> None:
    """Each step pays 1 USDC under the same key; a number says which attempt before it answers."""
    stranger = server.client(api_key=server.sandbox.create_operator("Stranger").key)
    accounts = {
        "payer": pair.payer.account_id,
        "other": pair.other.account_id,
        "poor": client.accounts.create(name="Poor").account_id,
        "barred": client.accounts.create(name="Barred").account_id,
        "theirs": stranger.accounts.create(name="Theirs").account_id,
    }
    client.policies.update(accounts["barred"], max_single_transfer=0)
    attempts: list[Transfer | None] = []
    for who, whose, outcome in steps:
        if who == "advance":
            server.sandbox.clock.advance(float(outcome))
            continue
        if who == "fund":
            server.sandbox.fund(accounts[whose], 1)
            continue
        by = {"operator": client, "stranger": stranger}.get(who) or server.agent_client(accounts[whose])
        terms = {"from_": accounts[whose], "to": pair.payee.account_id, "idempotency_key": "shared"}
        if outcome in ("insufficient_balance", "policy_violation", "idempotency_conflict"):
            with pytest.raises(AgentPayError, match=str(outcome)):
                by.transfers.create(amount=1, **terms)
            attempts.append(None)
            continue
        transfer = by.transfers.create(amount=1, **terms)
        if isinstance(outcome, int):
            assert transfer == attempts[outcome]
        else:
            assert (transfer.status, transfer.from_) == (outcome, accounts[whose])
        attempts.append(transfer)
    made = {transfer.transfer_id for transfer in attempts if transfer}
    assert money.held(server, pair.payee.usdc_token_account) == (1 + len(made)) * 1_000_000


def test_an_agent_blocks_no_session_of_its_operator_from_another_account(
    server: AgentPayServer, client: AgentPay, pair: Pair
) -> None:
    def opened(by: AgentPay, source: Account) -> Session:
        to = pair.payee.account_id
        return by.sessions.open(account_id=source.account_id, to=to, cap_usdc=1, idempotency_key="shared")

    of_agent = opened(server.agent_client(pair.payer.account_id), pair.payer)
    of_operator = opened(client, pair.other)
    assert of_operator.account_id == pair.other.account_id
    assert of_operator.session_id != of_agent.session_id
    with pytest.raises(AgentPayError, match="idempotency_conflict"):
        opened(client, pair.payee)


def test_an_agent_blocks_no_purchase_of_its_operator_from_another_account(
    server: AgentPayServer, http: httpx.Client, pair: Pair
) -> None:
    seller = Seller.at(server).open()
    challenge = {"origin": ORIGIN, "idempotency_key": "shared", **seller.ask()}
    with raw_client(server, server.agent_keys.create(pair.payer.account_id).key) as agent:
        bought = agent.post("/ext/v1/payments", json={**challenge, "account_id": pair.payer.account_id})
    again = http.post("/ext/v1/payments", json={**challenge, "account_id": pair.other.account_id})
    assert (bought.status_code, again.status_code) == (201, 201)
    third = http.post("/ext/v1/payments", json={**challenge, "account_id": pair.payee.account_id})
    refused(third, "idempotency_conflict")


class TestManyAtOnce:
    async def pay_at_once(self, server: AgentPayServer, count: int, make: Callable[[int], Any]) -> list[Any]:
        client = server.async_client()
        return await asyncio.gather(*(client.transfers.create(**make(number)) for number in range(count)))

    @pytest.mark.anyio
    async def test_200_tasks_with_one_key_make_one_transaction(
        self, server: AgentPayServer, pair: Pair
    ) -> None:
        terms = {"from_": pair.payer.account_id, "to": pair.payee.account_id, "amount": "0.5"}
        transfers = await self.pay_at_once(server, 200, lambda _: {**terms, "idempotency_key": "one"})
        assert all(transfer == transfers[0] for transfer in transfers)
        assert money.held(server, pair.payee.usdc_token_account) == 1_500_000
        assert transactions_of(server, pair.payer) == ["transfer"]
        assert len(money.events(server)) == 2

    def test_200_threads_with_one_key_make_one_transaction(self, server: AgentPayServer, pair: Pair) -> None:
        answers: list[bytes] = []
        ready = threading.Barrier(200)
        client = server.client()

        def pay() -> None:
            ready.wait()
            transfer = client.transfers.create(
                from_=pair.payer.account_id, to=pair.payee.account_id, amount="0.5", idempotency_key="one"
            )
            answers.append(repr(transfer).encode())

        threads = [threading.Thread(target=pay) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 200
        assert len(set(answers)) == 1
        assert money.held(server, pair.payee.usdc_token_account) == 1_500_000
        assert transactions_of(server, pair.payer) == ["transfer"]

    @pytest.mark.anyio
    async def test_200_keys_with_equal_terms_make_200_transactions(
        self, server: AgentPayServer, pair: Pair
    ) -> None:
        terms = {"from_": pair.payer.account_id, "to": pair.payee.account_id, "amount": "0.5"}
        transfers = await self.pay_at_once(
            server, 200, lambda number: {**terms, "idempotency_key": f"key-{number}"}
        )
        assert {transfer.status for transfer in transfers} == {"settled"}
        assert len({transfer.transfer_id for transfer in transfers}) == 200
        assert len({transfer.tx_signature for transfer in transfers}) == 200
        assert money.held(server, pair.payer.usdc_token_account) == 0
        assert money.held(server, pair.payee.usdc_token_account) == 101_000_000
        assert len(money.events(server)) == 400

    def test_concurrent_duplicates_refused_for_balance_share_an_outcome_or_retry(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
    ) -> None:
        def pay(_: int) -> str:
            with pytest.raises(InsufficientBalanceError) as refusal:
                client.transfers.create(
                    from_=pair.payer.account_id, to=pair.payee.account_id, amount=101, idempotency_key="k"
                )
            return refusal.value.transfer_id or ""

        with ThreadPoolExecutor(16) as pool:
            transfer_ids = set(pool.map(pay, range(64)))
        # Requests that found none in progress made a separate attempt: each is stored, with one entry.
        rejections = client.accounts.transactions(pair.payer.account_id, status="rejected", limit=100)
        assert sorted(entry.transfer_id or "" for entry in rejections) == sorted(transfer_ids)

    @pytest.mark.anyio
    async def test_one_key_used_concurrently_for_two_accounts_pays_from_one(
        self, server: AgentPayServer, pair: Pair
    ) -> None:
        client = server.async_client()
        outcomes = await asyncio.gather(
            *(
                client.transfers.create(
                    from_=source.account_id, to=pair.payee.account_id, amount="2", idempotency_key="raced"
                )
                for source in (pair.payer, pair.other) * 20
            ),
            return_exceptions=True,
        )
        paid = {outcome.from_ for outcome in outcomes if isinstance(outcome, Transfer)}
        refused = {outcome.code for outcome in outcomes if isinstance(outcome, AgentPayError)}
        assert len(paid) == 1
        assert refused == {"idempotency_conflict"}
        assert money.held(server, pair.payee.usdc_token_account) == 3_000_000
