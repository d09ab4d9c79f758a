"""Keys with a limited total at a seller of sessions: each has a session of its own, and counts only that."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import httpx
import pytest
from server_world import raw_client, refused
from session_sellers import ORIGIN, SessionSeller

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.embedded_chain("the program of channels is on its chain")

KEYS = {"first": "3", "second": "2", "unlimited": None}
"""Agent keys of one account, with their totals."""

CALLS = 4


@pytest.fixture
def sellers(server: AgentPayServer) -> dict[str, SessionSeller]:
    """One seller, that keeps the channel of each key apart."""
    made = {name: SessionSeller.at(server) for name in KEYS}
    made["first"].open()
    return made


@pytest.fixture
def agents(server: AgentPayServer, client: AgentPay, account: Account) -> Iterator[dict[str, httpx.Client]]:
    with ExitStack() as stack:
        found = {}
        for name, total in KEYS.items():
            key = client.agent_keys.create(account_id=account.account_id, max_total_usdc=total).key
            found[name] = stack.enter_context(raw_client(server, key))
        yield found


@pytest.fixture
def ask(agents: dict[str, httpx.Client], account: Account) -> Callable[..., httpx.Response]:
    def call(name: str, challenge: dict[str, Any], key: str, cap: str = "1") -> httpx.Response:
        body = {"account_id": account.account_id, "idempotency_key": key, "origin": ORIGIN, **challenge}
        return agents[name].post("/ext/v1/payments", json={**body, "session_cap": cap})

    return call


def spent(agents: dict[str, httpx.Client], name: str) -> str | None:
    total: str | None = agents[name].get("/ext/v1/whoami").json()["spent_total_usdc"]
    return total


def test_each_limited_key_opens_a_session_of_its_own(
    sellers: dict[str, SessionSeller],
    agents: dict[str, httpx.Client],
    ask: Callable[..., httpx.Response],
    client: AgentPay,
    account: Account,
    server: AgentPayServer,
) -> None:
    sessions = {}
    for name, seller in sellers.items():
        opening = ask(name, seller.ask_session(), f"{name}-1").json()
        assert (opening["step"], opening["is_replay"]) == ("open", False)
        sessions[name] = opening["session_id"]
        assert seller.accept_opening(opening["header"]).failure is None
    assert len(set(sessions.values())) == len(KEYS)
    # The operator's key is not limited: it shares the session of the other one.
    body = {"account_id": account.account_id, "origin": ORIGIN, "session_cap": "1"}
    with raw_client(server) as operator:
        answer = operator.post(
            "/ext/v1/payments",
            json={**body, **sellers["unlimited"].ask_session(), "idempotency_key": "operator-1"},
        )
    assert answer.json()["session_id"] == sessions["unlimited"]
    sellers["unlimited"].take_voucher(answer.json()["header"])
    client.payments.report_outcome(answer.json()["charge_id"], status_code=200)
    for number in range(1, CALLS + 1):
        for name, seller in sellers.items():
            voucher = ask(name, seller.ask_session(), f"{name}-{number}").json()
            assert (voucher["step"], voucher["session_id"]) == ("voucher", sessions[name])
            seller.take_voucher(voucher["header"])
            client.payments.report_outcome(voucher["charge_id"], status_code=200)
    assert [spent(agents, name) for name in KEYS] == ["1.000000", "1.000000", None]
    budget = client.accounts.budget(account.account_id)
    assert (budget.reserved_usdc, budget.spent_usdc) == (3, 3)

    for name, seller in sellers.items():
        client.sessions.close(sessions[name])
        assert seller.close().failure is None
    server.sandbox.clock.advance(1)
    assert [spent(agents, name) for name in KEYS] == ["0.004000", "0.004000", None]
    budget = client.accounts.budget(account.account_id)
    assert (budget.reserved_usdc, budget.spent_usdc) == (0, Decimal("0.013"))
    assert client.accounts.balance(account.account_id).balance_usdc == Decimal("9.987")
    assert sellers["first"].received == 13_000


def test_a_limited_key_opens_no_session_above_its_total(
    sellers: dict[str, SessionSeller], ask: Callable[..., httpx.Response], agents: dict[str, httpx.Client]
) -> None:
    ask("unlimited", sellers["unlimited"].ask_session(), "unlimited-1", "5")
    answer = ask("second", sellers["second"].ask_session(), "second-1", "2.000001")
    assert "max_total_usdc" in refused(answer, "policy_violation")["message"]
    assert ask("second", sellers["second"].ask_session(), "second-1", "2").json()["step"] == "open"
    assert spent(agents, "second") == "2.000000"


def test_an_idempotency_key_of_one_key_opens_nothing_for_another(
    sellers: dict[str, SessionSeller], ask: Callable[..., httpx.Response]
) -> None:
    assert ask("first", sellers["first"].ask_session(), "one").json()["step"] == "open"
    for name in ("second", "unlimited"):
        answer = ask(name, sellers[name].ask_session(), "one")
        assert "another key" in refused(answer, "idempotency_conflict")["message"]


def test_racing_keys_open_one_session_each_and_keep_their_totals(
    sellers: dict[str, SessionSeller],
    agents: dict[str, httpx.Client],
    ask: Callable[..., httpx.Response],
    client: AgentPay,
    account: Account,
) -> None:
    client.policies.update(account.account_id, max_daily_spend=3)
    calls = [(name, f"{name}-{number}") for number in range(CALLS) for name in KEYS]
    with ThreadPoolExecutor(len(calls)) as threads:
        challenges = [sellers[name].ask_session() for name, _ in calls]
        names, keys = zip(*calls, strict=True)
        answers = list(threads.map(ask, names, challenges, keys))
    by_key: dict[str, list[dict[str, Any]]] = {name: [] for name in KEYS}
    for (name, _), answer in zip(calls, answers, strict=True):
        assert answer.status_code == 201, answer.json()
        by_key[name].append(answer.json())
    for name, steps in by_key.items():
        assert {step["step"] for step in steps} == {"open"}
        assert len({step["header"]["value"] for step in steps}) == 1
        assert [step["is_replay"] for step in steps].count(False) == 1
        assert sellers[name].accept_opening(steps[0]["header"]).failure is None
    assert len({steps[0]["session_id"] for steps in by_key.values()}) == len(KEYS)
    assert [spent(agents, name) for name in KEYS] == ["1.000000", "1.000000", None]
    assert client.accounts.budget(account.account_id).reserved_usdc == 3
    for name, steps in by_key.items():
        (session,) = {step["session_id"] for step in steps}
        voucher = ask(name, sellers[name].ask_session(), f"{name}-0").json()
        assert (voucher["session_id"], voucher["running_total_usdc"]) == (session, "0.001000")
