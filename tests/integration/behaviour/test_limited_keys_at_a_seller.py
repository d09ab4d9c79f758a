"""Keys with a limited total at a seller of sessions: each has a session of its own, and counts only that."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import httpx
import pytest
from attrs import frozen
from server_world import raw_client, refused
from session_sellers import ORIGIN, SessionSeller

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.embedded_chain("the program of channels is on its chain")

KEYS = {"first": "3", "second": "2", "unlimited": None}
"""Agent keys of one account, with their totals."""

CALLS = 4


@frozen
class World:
    """An account with 10 USDC, its agent keys, and one seller, that keeps the channel of each apart."""

    client: AgentPay
    account: Account
    sellers: dict[str, SessionSeller]
    agents: dict[str, httpx.Client]

    def ask(self, name: str, challenge: dict[str, Any], key: str, cap: str = "1") -> httpx.Response:
        body = {"account_id": self.account.account_id, "idempotency_key": key, "origin": ORIGIN, **challenge}
        return self.agents[name].post("/ext/v1/payments", json={**body, "session_cap": cap})

    def step(self, name: str, key: str, cap: str = "1") -> dict[str, Any]:
        response = self.ask(name, self.sellers[name].ask_session(), key, cap)
        assert response.status_code == 201, response.json()
        return dict(response.json())

    def serve(self, name: str, voucher: dict[str, Any]) -> None:
        self.sellers[name].take_voucher(voucher["header"])
        self.client.payments.report_outcome(voucher["charge_id"], status_code=200)

    def spent(self, name: str) -> str | None:
        total: str | None = self.agents[name].get("/ext/v1/whoami").json()["spent_total_usdc"]
        return total

    @property
    def budget(self) -> tuple[Decimal, Decimal]:
        """What is reserved, and what is spent."""
        budget = self.client.accounts.budget(self.account.account_id)
        return budget.reserved_usdc, budget.spent_usdc


@pytest.fixture
def world(server: AgentPayServer, client: AgentPay, account: Account) -> Iterator[World]:
    sellers = {name: SessionSeller.at(server) for name in KEYS}
    sellers["first"].open()
    with ExitStack() as stack:
        agents = {"operator": stack.enter_context(raw_client(server))}
        for name, total in KEYS.items():
            key = client.agent_keys.create(account_id=account.account_id, max_total_usdc=total).key
            agents[name] = stack.enter_context(raw_client(server, key))
        yield World(client, account, sellers, agents)


def test_each_limited_key_opens_a_session_of_its_own(world: World, server: AgentPayServer) -> None:
    sessions = {}
    for name, seller in world.sellers.items():
        opening = world.step(name, f"{name}-1")
        assert (opening["step"], opening["is_replay"]) == ("open", False)
        sessions[name] = opening["session_id"]
        assert seller.accept_opening(opening["header"]).failure is None
    assert len(set(sessions.values())) == len(KEYS)
    # The operator's key is not limited: it shares the session of the other one.
    challenge = world.sellers["unlimited"].ask_session()
    shared = world.ask("operator", challenge, "operator-1").json()
    assert shared["session_id"] == sessions["unlimited"]
    world.serve("unlimited", shared)
    for number in range(1, CALLS + 1):
        for name in KEYS:
            voucher = world.step(name, f"{name}-{number}")
            assert (voucher["step"], voucher["session_id"]) == ("voucher", sessions[name])
            world.serve(name, voucher)
    assert [world.spent(name) for name in KEYS] == ["1.000000", "1.000000", None]
    assert world.budget == (3, 3)

    for name, seller in world.sellers.items():
        world.client.sessions.close(sessions[name])
        assert seller.close().failure is None
    server.sandbox.clock.advance(1)
    assert [world.spent(name) for name in KEYS] == ["0.004000", "0.004000", None]
    assert world.budget == (0, Decimal("0.013"))
    assert world.client.accounts.balance(world.account.account_id).balance_usdc == Decimal("9.987")
    assert world.sellers["first"].received == 13_000


def test_a_limited_key_opens_no_session_above_its_total_or_under_the_key_of_another(world: World) -> None:
    assert world.step("unlimited", "one", "5")["step"] == "open"
    for name in ("first", "second"):
        answer = world.ask(name, world.sellers[name].ask_session(), "one")
        assert "another key" in refused(answer, "idempotency_conflict")["message"]
    answer = world.ask("second", world.sellers["second"].ask_session(), "second-1", "2.000001")
    assert "max_total_usdc" in refused(answer, "policy_violation")["message"]
    assert world.step("second", "second-1", "2")["step"] == "open"
    assert world.spent("second") == "2.000000"


def test_racing_keys_open_one_session_each_and_keep_their_totals(world: World) -> None:
    world.client.policies.update(world.account.account_id, max_daily_spend=3)
    calls = [(name, f"{name}-{number}") for number in range(CALLS) for name in KEYS]
    with ThreadPoolExecutor(len(calls)) as threads:
        challenges = [world.sellers[name].ask_session() for name, _ in calls]
        names, keys = zip(*calls, strict=True)
        answers = list(threads.map(world.ask, names, challenges, keys))
    by_key: dict[str, list[dict[str, Any]]] = {name: [] for name in KEYS}
    for name, answer in zip(names, answers, strict=True):
        assert answer.status_code == 201, answer.json()
        by_key[name].append(answer.json())
    for name, steps in by_key.items():
        assert {step["step"] for step in steps} == {"open"}
        assert len({step["header"]["value"] for step in steps}) == 1
        assert [step["is_replay"] for step in steps].count(False) == 1
        assert world.sellers[name].accept_opening(steps[0]["header"]).failure is None
    assert len({steps[0]["session_id"] for steps in by_key.values()}) == len(KEYS)
    assert [world.spent(name) for name in KEYS] == ["1.000000", "1.000000", None]
    assert world.budget[0] == 3
    for name, steps in by_key.items():
        (session,) = {step["session_id"] for step in steps}
        voucher = world.step(name, f"{name}-0")
        assert (voucher["session_id"], voucher["running_total_usdc"]) == (session, "0.001000")
