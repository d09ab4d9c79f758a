"""`agentpay-server demo`: sample data that is the same for the same seed, and a clean end."""

import json
import signal
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from command_line import WAIT_SECONDS, next_json, processing
from demo import DemoStep, DemoWorld
from receivers import eventually
from server_world import made_key

from agentpay import AgentPay
from agentpay.tools import AgentTools
from agentpay_server import AgentPayServer
from agentpay_server.cli import main


def demo(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["demo", "--port", "0", "--interval", "0", *arguments])
    assert "Traceback" not in result.output
    return result


def story(*arguments: str) -> list[dict[str, Any]]:
    """Return what is printed as JSON, line by line."""
    result = demo("--json", *arguments)
    assert result.exit_code == 0
    assert ("anyone who knows --seed" in result.stderr) == ("--seed" in arguments)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_seed_determines_the_demo_and_its_key() -> None:
    def told(seed: str) -> tuple[str, list[tuple[str, ...]]]:
        announced, *steps = story("--seed", seed, "--steps", "25")
        # Exactly the requested steps.
        assert [line["step"]["number"] for line in steps] == list(range(1, 26))
        names = ("actor", "action", "status")
        return announced["demo"]["operator_key"], [tuple(line["step"][n] for n in names) for line in steps]

    key, first = told("5")
    assert told("5") == (key, first)
    other_key, second = told("2")
    assert other_key != key
    assert second != first
    statuses = {status for _, _, status in [*first, *second]}
    assert {"settled", "refused", "pending_approval", "open"} <= statuses


def test_the_terminal_shows_the_address_and_the_events() -> None:
    result = demo("--seed", "5", "--steps", "25")
    assert result.exit_code == 0
    for words in (
        "export AGENTPAY_BASE_URL=http://127.0.0.1:",
        "export AGENTPAY_API_KEY=ap_operator_",
        "--seed 5 runs the same story again",
        "Travel desk",
        "max_single_transfer is 5.000000",
    ):
        assert words in result.stdout
    assert "mcpServers" not in result.stdout
    assert "can compute all keys of this server" in result.stderr
    # Without the option, the seed is random, and does not determine the key.
    (first, *_) = story("--for", "0")
    with AgentPayServer(clock="system", seed=first["demo"]["seed"]) as server:
        assert server.operator_key != first["demo"]["operator_key"]


def test_the_mcp_option_prints_tools_of_a_limited_account() -> None:
    # It does not wait after its last step.
    first, *steps = story("--steps", "0", "--mcp", "--interval", "3600")
    assert steps == []
    (configured,) = first["demo"]["mcpServers"].values()
    shown = demo("--steps", "0", "--mcp").stdout
    text = shown[shown.index("{") : shown.rindex("}") + 1]
    assert json.loads(text)["mcpServers"]["agentpay"].keys() == configured.keys()
    with AgentPayServer() as server:
        world = DemoWorld(server, 1, lambda step: None)
        server.listen()
        (configured,) = world.tools()["mcpServers"].values()
        assert configured["env"]["AGENTPAY_BASE_URL"] == server.base_url
        key = configured["env"]["AGENTPAY_API_KEY"]
        assert key.startswith("ap_agent_")
        budget = AgentTools(server.client(api_key=key)).get_budget()
    limits = (budget.max_single_transfer, budget.max_daily_spend, budget.escalation_threshold)
    assert (budget.available_usdc, *limits) == (100, 5, 20, 3)


# --- Its keys


def test_a_given_key_is_used_and_not_printed() -> None:
    key = made_key()
    options = ("--json", "--operator-key", key, "--allowed-host", "pay.example")
    with processing("demo", "--port", "0", *options) as process:
        announced = next_json(process)["demo"]
        assert announced["operator_key"] is None
        with AgentPay(base_url=announced["base_url"], api_key=key) as server:
            assert len(list(server.accounts.list())) == 7
        health = f"{announced['base_url']}/healthz"
        for host, status in (("localhost", 200), ("pay.example:443", 200), ("evil.example", 421)):
            assert httpx.get(health, headers={"Host": host}).status_code == status
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_SECONDS)
        assert (process.returncode, err) == (0, "")
        assert key not in out
    told = demo("--operator-key", key, "--steps", "0", "--seed", "7").output
    assert key not in told
    assert "set AGENTPAY_API_KEY to the operator key that you passed" in told


def test_an_invalid_key_is_refused_and_not_printed() -> None:
    result = demo("--operator-key", "hunter2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--operator-key" in result.stderr
    assert "hunter2" not in result.stderr


def test_the_sample_data_is_complete_at_the_start_and_ctrl_c_ends_the_demo() -> None:
    with processing("demo", "--port", "0", "--json", is_fresh=True) as process:
        announced = next_json(process)["demo"]
        with AgentPay(base_url=announced["base_url"], api_key=announced["operator_key"]) as server:
            names = {account.name for account in server.accounts.list()}
            assert {"Research bot", "Travel desk", "Data buyer", "Intern bot"} <= names
            assert [session.status for session in server.sessions.list()] == ["open"]
            assert server.approvals.list().data
            assert server.events.list(type="transfer.rejected").data
            assert len(server.agent_keys.list().data) >= 4
            eventually(lambda: bool(server.deliveries.list(status="delivered").data), WAIT_SECONDS)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SECONDS)
        assert (process.returncode, err) == (0, "")


# --- The world


class World:
    """A world, and what it has told."""

    def __init__(self, server: AgentPayServer) -> None:
        self.steps: list[DemoStep] = []
        self.server = server
        self.client: AgentPay = server.client()
        self.world = DemoWorld(server, 1, self.steps.append)
        self.world.begin(lambda _: None)

    def lives(self, steps: int) -> list[DemoStep]:
        before = len(self.steps)
        for _ in range(steps):
            self.world.step()
        return self.steps[before:]

    def lives_until(self, *words: str, steps: int = 60) -> None:
        """Live until each of the words was the action, the message or the status of a step."""
        before, missing = len(self.steps), set(words)
        while missing:
            assert len(self.steps) < before + steps, missing
            for step in self.lives(1):
                told = f"{step.action}\n{step.message}\n{step.status}"
                missing = {each for each in missing if each not in told}


@pytest.fixture
def world(server: AgentPayServer) -> World:
    return World(server)


@pytest.mark.unmeasured
def test_the_demo_runs_without_a_failure_and_leaves_pending_approvals_to_the_user(world: World) -> None:
    left = {each.transfer_id for each in world.server.approvals.list()}
    assert len(left) == 2
    steps = world.lives(100)
    assert [step.number for step in world.steps] == list(range(1, len(world.steps) + 1))
    assert not [step for step in steps if step.status == "failed"]
    told = " ".join(f"{step.actor} {step.action} {step.status}" for step in steps)
    for words in (
        "Operator approves a transfer settled",
        "Operator rejects a transfer rejected",
        "Operator funds",
        "closes it",
        "opens a session",
        "Webhook receiver responds 503 to the next delivery",
    ):
        assert words in told, words
    # The demo's operator decides none of the transfers that wait for the user.
    waiting = {each.transfer_id for each in world.server.approvals.list()}
    assert left <= waiting
    assert 2 <= len(waiting) <= 6
    for transfer_id in left:
        world.server.approvals.approve(transfer_id)
    world.lives(30)
    assert len(list(world.server.approvals.list())) >= 2


@pytest.mark.in_memory("nothing else can be reset")
def test_the_demo_starts_again_after_a_sandbox_reset(world: World) -> None:
    before = set(world.world.accounts.values())
    world.server.sandbox.reset()
    steps = world.lives(60)
    (again,) = (step for step in steps if "starts again" in step.action)
    assert again.number <= steps[0].number + 1
    assert not before & set(world.world.accounts.values())
    assert len(list(world.server.client().accounts.list())) == len(before)
    assert not [step for step in steps if step.status == "failed"]
    assert "settled" in {step.status for step in steps[1:]}


def test_the_demo_continues_after_actions_of_its_user(world: World) -> None:
    world.lives(40)
    for transfer in list(world.server.approvals.list()):
        world.server.approvals.reject(transfer.transfer_id)
    for session in list(world.server.sessions.list()):
        world.server.sessions.close(session.session_id)
    travel = next(a.account_id for a in world.client.accounts.list() if a.name == "Travel desk")
    world.lives_until("was too late to decide", "session_closed")
    for _ in range(3):
        world.world._do(world.world._book)
    world.client.policies.pause(travel)
    world.lives_until("paused is true")
    while world.world._waiting:
        world.world._do(world.world._decide)
    assert ("approves a transfer", "refused") in {(step.action, step.status) for step in world.steps}
    world.server.sandbox.set_fault("chain_down")
    failed = [step for step in world.lives(1) if step.status == "failed"]
    assert any("chain_unavailable" in (step.message or "") for step in failed)
    world.server.sandbox.clear_faults()
    world.lives_until("settled")
