"""One key, one transfer: replays, conflicts, retries, expiry, and many at once.

See interface I1 to I9; P4 to P7.
"""

import asyncio
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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


def test_a_request_that_stores_nothing_does_not_use_its_key(
    server: AgentPayServer, http: httpx.Client, pair: Pair
) -> None:
    for wrong in ({"to": "nobody"}, {"amount": "0"}, {"memo": "x" * 201}, {"from": "acct_1"}):
        assert money.post(http, pair.order(**wrong)).status_code in (400, 404, 422)
    assert money.rows(server, "transfers") == []
    assert money.post(http, pair.order()).status_code == 200


class TestExpiry:
    def test_a_key_is_replayed_until_a_millisecond_before_24_hours(
        self, server: AgentPayServer, http: httpx.Client, pair: Pair
    ) -> None:
        first = money.post(http, pair.order())
        server.sandbox.clock.advance(DAY_SECONDS - 0.001)
        assert money.post(http, pair.order()).content == first.content
        assert money.post(http, pair.order(amount="1")).status_code == 409
        assert money.held(server, pair.payee.usdc_token_account) == 26_000_000

    def test_a_key_is_free_at_24_hours(self, server: AgentPayServer, http: httpx.Client, pair: Pair) -> None:
        first = money.post(http, pair.order())
        server.sandbox.clock.advance(DAY_SECONDS)
        again = money.post(http, pair.order())
        assert again.status_code == 200
        assert again.json()["transfer_id"] != first.json()["transfer_id"]
        assert money.held(server, pair.payee.usdc_token_account) == 51_000_000
        # Both can be read, and the key refers to the newer one.
        assert http.get(f"/v1/transfers/{first.json()['transfer_id']}").json() == first.json()
        assert money.post(http, pair.order()).content == again.content

    def test_a_free_key_may_be_used_for_something_else(
        self, server: AgentPayServer, http: httpx.Client, pair: Pair
    ) -> None:
        money.post(http, pair.order())
        server.sandbox.clock.advance(DAY_SECONDS)
        assert money.post(http, pair.order(amount="1", to=pair.other.account_id)).status_code == 200

    def test_a_rejection_holds_its_key_for_24_hours_too(
        self, server: AgentPayServer, http: httpx.Client, pair: Pair
    ) -> None:
        money.put_policy(http, pair.payer, paused=True)
        first = money.post(http, pair.order())
        money.put_policy(http, pair.payer, paused=False)
        server.sandbox.clock.advance(DAY_SECONDS - 0.001)
        assert money.post(http, pair.order()).content == first.content
        server.sandbox.clock.advance(0.001)
        assert money.post(http, pair.order()).status_code == 200

    def test_a_replay_does_not_prolong_a_key(
        self, server: AgentPayServer, http: httpx.Client, pair: Pair
    ) -> None:
        first = money.post(http, pair.order())
        for _ in range(24):
            assert money.post(http, pair.order()).content == first.content
            server.sandbox.clock.advance(3600)
        assert money.post(http, pair.order()).json()["transfer_id"] != first.json()["transfer_id"]


class TestScope:
    def test_operators_do_not_share_keys(
        self, server: AgentPayServer, http: httpx.Client, pair: Pair
    ) -> None:
        money.post(http, pair.order())
        other = server.client(api_key=server.sandbox.create_operator("Other").key)
        account = other.accounts.create(name="Theirs")
        with pytest.raises(AgentPayError, match="insufficient_balance"):
            other.transfers.create(
                from_=account.account_id, to=pair.payee.account_id, amount="1", idempotency_key="key-1"
            )

    def pay(self, by: AgentPay, source: Account, pair: Pair) -> Transfer:
        return by.transfers.create(
            from_=source.account_id, to=pair.payee.account_id, amount="1", idempotency_key="shared"
        )

    def test_an_operator_s_retry_returns_its_agent_s_payment(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
    ) -> None:
        transfer = self.pay(server.agent_client(pair.payer.account_id), pair.payer, pair)
        assert self.pay(client, pair.payer, pair) == transfer
        assert money.held(server, pair.payee.usdc_token_account) == 2_000_000

    def test_an_agent_s_retry_returns_its_operator_s_payment(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
    ) -> None:
        transfer = self.pay(client, pair.payer, pair)
        assert self.pay(server.agent_client(pair.payer.account_id), pair.payer, pair) == transfer
        assert money.held(server, pair.payee.usdc_token_account) == 2_000_000

    @pytest.mark.parametrize("first", ["agent", "operator"])
    def test_an_agent_neither_blocks_nor_probes_another(
        self, server: AgentPayServer, client: AgentPay, pair: Pair, first: str
    ) -> None:
        payer = server.agent_client(pair.payer.account_id) if first == "agent" else client
        taken = self.pay(payer, pair.payer, pair)
        other = self.pay(server.agent_client(pair.other.account_id), pair.other, pair)
        assert (taken.status, other.status) == ("settled", "settled")
        assert taken.transfer_id != other.transfer_id
        assert money.held(server, pair.payee.usdc_token_account) == 3_000_000

    def test_an_operator_reusing_a_key_for_another_account_conflicts(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
    ) -> None:
        self.pay(client, pair.payer, pair)
        with pytest.raises(AgentPayError, match="idempotency_conflict"):
            self.pay(client, pair.other, pair)
        assert money.held(server, pair.payee.usdc_token_account) == 2_000_000

    @pytest.mark.parametrize("outcome", ["settled", "policy_violation"])
    def test_an_agent_blocks_no_transfer_of_its_operator_from_another_account(
        self, server: AgentPayServer, client: AgentPay, pair: Pair, outcome: str
    ) -> None:
        client.policies.update(pair.payer.account_id, max_single_transfer=1 if outcome == "settled" else 0)
        with nullcontext() if outcome == "settled" else pytest.raises(AgentPayError, match=outcome):
            self.pay(server.agent_client(pair.payer.account_id), pair.payer, pair)
        transfer = self.pay(client, pair.other, pair)
        assert (transfer.status, transfer.from_) == ("settled", pair.other.account_id)

    def test_an_agent_blocks_no_session_of_its_operator_from_another_account(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
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
        self, server: AgentPayServer, http: httpx.Client, pair: Pair
    ) -> None:
        seller = Seller.at(server).open()
        challenge = {"origin": ORIGIN, "idempotency_key": "shared", **seller.ask()}
        with raw_client(server, server.agent_keys.create(pair.payer.account_id).key) as agent:
            bought = agent.post("/ext/v1/payments", json={**challenge, "account_id": pair.payer.account_id})
        again = http.post("/ext/v1/payments", json={**challenge, "account_id": pair.other.account_id})
        assert (bought.status_code, again.status_code) == (201, 201)
        third = http.post("/ext/v1/payments", json={**challenge, "account_id": pair.payee.account_id})
        refused(third, "idempotency_conflict")

    def test_an_agent_s_retry_of_an_operator_s_failed_payment_keeps_the_operator_s_claim(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
    ) -> None:
        poor = client.accounts.create(name="Poor")
        with pytest.raises(AgentPayError, match="insufficient_balance"):
            self.pay(client, poor, pair)
        server.sandbox.fund(poor.account_id, 1)
        retried = self.pay(server.agent_client(poor.account_id), poor, pair)
        assert self.pay(client, poor, pair) == retried
        with pytest.raises(AgentPayError, match="idempotency_conflict"):
            self.pay(client, pair.other, pair)
        assert money.held(server, pair.payee.usdc_token_account) == 2_000_000

    def test_an_operator_finds_the_key_of_from_before_that_of_another_account(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
    ) -> None:
        of_payer = self.pay(client, pair.payer, pair)
        of_other = self.pay(server.agent_client(pair.other.account_id), pair.other, pair)
        assert self.pay(client, pair.payer, pair) == of_payer
        assert self.pay(client, pair.other, pair) == of_other
        assert money.held(server, pair.payee.usdc_token_account) == 3_000_000

    def test_a_key_of_another_account_is_free_for_an_operator_after_24_hours(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
    ) -> None:
        self.pay(client, pair.payer, pair)
        server.sandbox.clock.advance(DAY_SECONDS - 0.001)
        with pytest.raises(AgentPayError, match="idempotency_conflict"):
            self.pay(client, pair.other, pair)
        server.sandbox.clock.advance(0.001)
        assert self.pay(client, pair.other, pair).status == "settled"
        # The operator's claim has gone over to the newer transfer.
        with pytest.raises(AgentPayError, match="idempotency_conflict"):
            self.pay(client, pair.payer, pair)
        assert money.held(server, pair.payee.usdc_token_account) == 3_000_000

    def test_an_operator_can_retry_an_agent_s_failed_payment(
        self, server: AgentPayServer, client: AgentPay, pair: Pair
    ) -> None:
        poor = client.accounts.create(name="Poor")
        self.pay(client, pair.payer, pair)
        with pytest.raises(AgentPayError, match="insufficient_balance"):
            self.pay(server.agent_client(poor.account_id), poor, pair)
        server.sandbox.fund(poor.account_id, 1)
        retried = self.pay(client, poor, pair)
        assert retried.status == "settled"
        assert self.pay(server.agent_client(poor.account_id), poor, pair) == retried
        assert self.pay(client, pair.payer, pair).status == "settled"
        with pytest.raises(AgentPayError, match="idempotency_conflict"):
            self.pay(client, pair.other, pair)
        assert money.held(server, pair.payee.usdc_token_account) == 3_000_000


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
