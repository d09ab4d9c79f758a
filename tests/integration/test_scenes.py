"""Scenes: the state of a server in one file, built by real operations."""

import signal
import socket
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from command_line import next_json, processing
from server_world import START

from agentpay import AgentPay, PolicyViolationError
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.cli import main
from agentpay_server.plugins.cluster.settings import RpcSettings
from agentpay_server.plugins.scenes.building import build
from agentpay_server.plugins.scenes.document import SceneError, parse_scene

pytestmark = [pytest.mark.embedded_chain("a scene is built on it"), pytest.mark.plugin("scenes")]

SCENE = """
[accounts.research]
name = "Research bot"
balance_usdc = "41.5"
metadata = {team = "blue", level = 3}
policy = {max_single_transfer = 5, max_daily_spend = 20.5, allowed_counterparties = ["shop", "outside-1"], \
escalation_threshold = 3}
keys = [{name = "laptop"}, {name = "one run", max_total_usdc = "2", expires_in = 3600}]

[accounts.shop]
name = "Dataset \\"shop\\" é ✓"
balance_usdc = "12"

[accounts.intern]
name = "Intern"
policy = {paused = true, require_memo = true, categories = ["data"]}

[[webhooks]]
url = "http://127.0.0.1:9/hook"
events = ["transfer.settled", "balance.low_threshold"]
accounts = ["research"]
low_balance_threshold_usdc = 20

[[sellers]]
origin = "https://api.example.com"
category = "data"
max_amount = "0.5"

[[history]]
from = "research"
to = "shop"
amount = "8.5"
memo = "May"

[[history]]
from = "shop"
to = "intern"
amount = "0.25"

[[history]]
from = "intern"
to = "outside-1"
amount = "0.25"

[[history]]
from = "research"
to = "shop"
cap_usdc = "4"
charged_usdc = "1.5"

[[history]]
from = "research"
to = "shop"
cap_usdc = "6"
charged_usdc = "2"
status = "open"

[[history]]
from = "research"
to = "shop"
amount = "4"
status = "pending_approval"

[[history]]
from = "research"
to = "shop"
amount = "5.01"
status = "rejected"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "scene.toml"
    path.write_text(SCENE, "utf-8-sig")  # as some editors do
    return path


def test_a_scene_is_what_its_file_says(path: Path) -> None:
    with AgentPayServer(scene=path) as server:
        client, built = server.client(), server.scene
        research = client.console.details(built.accounts["research"])
        assert (research.name, research.balance_usdc) == ("Research bot", Decimal("41.5"))
        assert research.metadata == {"team": "blue", "level": 3}
        assert research.policy.max_daily_spend == Decimal("20.5")
        assert built.accounts["shop"] in (research.policy.allowed_counterparties or ())
        assert client.accounts.get(built.accounts["shop"]).balance_usdc == 12
        assert client.accounts.get(built.accounts["intern"]).status == "paused"
        (pending,) = client.approvals.list()
        assert (pending.amount_usdc, pending.memo) == (4, None)
        agent = server.client(api_key=built.agent_keys["research"][1])
        with pytest.raises(PolicyViolationError, match="max_total_usdc"):
            agent.transfers.create(
                from_=built.accounts["research"], to=built.accounts["shop"], amount="2.000001"
            )
        statuses = [None if step is None else step.status for step in built.steps]
        assert statuses == [*["settled"] * 4, "open", "pending_approval", "rejected"]
        for secret in (*built.webhook_secrets, *built.agent_keys["research"]):
            assert secret not in repr(built)


def test_serve_builds_a_scene_and_prints_its_keys(path: Path) -> None:
    with processing("serve", "--port", "0", "--scene", str(path)) as process:
        line = next_json(process)
        built = line["scene"]
        with AgentPay(api_key=line["operator_key"], base_url=line["base_url"]) as client:
            assert client.accounts.get(built["accounts"]["research"]).balance_usdc == Decimal("41.5")
            assert [hook.low_balance_threshold_usdc for hook in client.webhooks.list()] == [20]
            assert [each.origin for each in client.sellers.list()] == ["https://api.example.com"]
            assert sorted(each.status for each in client.sessions.list()) == ["open", "settled"]
        with AgentPay(api_key=built["agent_keys"]["research"][0], base_url=line["base_url"]) as agent:
            assert agent.whoami().account_id == built["accounts"]["research"]
        assert built["webhook_secrets"][0].startswith("whsec_")


def test_serve_refuses_a_scene_on_data_that_is_not_empty(path: Path, tmp_path: Path) -> None:
    arguments = ["serve", "--port", "0", "--data-dir", str(tmp_path / "data"), "--scene", str(path)]
    with processing(*arguments) as process:
        next_json(process)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "only on empty data" in " ".join(result.output.split())


def test_a_scene_that_cannot_be_built_names_the_data_to_delete(tmp_path: Path) -> None:
    path = tmp_path / "scene.toml"
    path.write_text(PAIR % "" + STEP + "amount = 1\n" + STEP + 'amount = 1\nstatus = "rejected"')
    told = "is rejected, but the transfer is settled: .* A part of the scene is in .*data: delete it"
    with pytest.raises(SceneError, match=told):
        AgentPayServer(scene=path, data_dir=tmp_path / "other-data").start()


KILLED = """
import os, signal, sys
from agentpay_server.plugins.cluster.settings import RpcSettings
from agentpay_server.cli import main
from agentpay_server.plugins.scenes import building

step, done = building._Builder._step, []

def killed(*arguments):
    done.append(1)
    if len(done) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*arguments)

building._Builder._step = killed
main(sys.argv[1:])
"""


def test_a_start_that_is_killed_within_its_scene_is_not_continued(path: Path, tmp_path: Path) -> None:
    arguments = ["serve", "--port", "0", "--data-dir", str(tmp_path / "data"), "--scene", str(path)]
    command = [sys.executable, "-c", KILLED, *arguments]
    killed = subprocess.run(command, check=False, capture_output=True, timeout=120)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"")
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "a scene is built only on empty data, and never continued" in " ".join(result.output.split())


SHOP = """
[accounts.agent]
name = "Agent"
balance_usdc = 10
policy = {categories = ["data"]}
keys = [{}]

[accounts.shop]
name = "Shop"

[[sellers]]
name = "weather"
price = "0.25"
path = "/forecast"
pay_to = "shop"
category = "data"

[[sellers]]
name = "models"
price = "0.5"
protocols = ["x402_upto", "mpp_session"]
category = "data"

[[sellers]]
name = "thief"
price = "0.1"
protocols = ["x402_v2"]
mode = "fail_after_settling"
blocked = true
"""


def bought(agent: AgentPay, account_id: str, url: str) -> httpx.Response:
    with httpx.Client(auth=PaymentAuth(agent, account_id=account_id), trust_env=False) as http:
        return http.get(url, extensions={"payment_key": f"order {url}"})


def test_a_scene_opens_local_sellers(tmp_path: Path) -> None:
    path = tmp_path / "scene.toml"
    path.write_text(SHOP, "utf-8")
    with AgentPayServer(scene=path) as server:
        built = server.scene
        account_id = built.accounts["agent"]
        agent = server.client(api_key=built.agent_keys["agent"][0])
        assert bought(agent, account_id, built.sellers["weather"]).status_code == 200
        assert server.client().accounts.balance(built.accounts["shop"]).balance_usdc == Decimal("0.25")
        assert [sale.status for sale in built.paywalls["weather"].sales] == ["settled"]
        assert bought(agent, account_id, built.sellers["models"]).status_code == 200
        with pytest.raises(PolicyViolationError, match="blocked"):
            bought(agent, account_id, built.sellers["thief"])
        pins = {pin.origin: pin.category for pin in server.client().sellers.list()}
        assert pins[built.paywalls["weather"].base_url] == "data"


def test_a_local_seller_has_the_port_of_the_scene(tmp_path: Path) -> None:
    with AgentPayServer() as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        scene = parse_scene(f'accounts = {{}}\n[[sellers]]\nname = "s"\nprice = 1\nport = {port}')
        with pytest.raises(SceneError, match=f"port {port}"):
            server.build_scene(scene)
        taken.close()
        assert server.build_scene(scene).sellers == {"s": f"http://127.0.0.1:{port}/"}


A = '[accounts.a]\nname = "A"\n'
FAULTS = {
    "": ["accounts is required"],
    "x = !": ["not TOML", "line 1"],
    A + "limit = 5": ["accounts.a.limit (line 3) is unknown", "balance_usdc"],
    A + "policy = {max_daily = 5}": ["accounts.a.policy.max_daily (line 3)", "max_daily_spend"],
    A + "policy = {max_daily_spend = -1}": ["accounts.a.policy.max_daily_spend (line 3)"],
    A + 'balance_usdc = "1.0000001"': ["accounts.a.balance_usdc (line 3)", "USDC"],
    A + '[[webhooks]]\nurl = "http://x/"\nevents = ["transfer.lost"]': ["webhooks[0].events[0]"],
    A + '[[webhooks]]\nurl = "http://x/"\nevents = ["transfer.settled"]\naccounts = ["b"]': [
        "'b'; allowed: a"
    ],
    A + "[[sellers]]": ["sellers[0] needs either origin (a pin) or price"],
    A + '[[sellers]]\norigin = "https://x.example"\nport = 80': ["sellers[0].port is only for a local"],
    A + '[[sellers]]\nname = "s"\nprice = 1\nmode = "rude"': ["sellers[0].mode", "never_settle"],
    A + '[[sellers]]\nname = "s"\nprice = 1\nprotocols = ["mpp_session"]\npay_to = "a"': ["payee's key"],
    A + '[[sellers]]\nname = "s"\nprice = 1\n' * 2: ["'s' is the name of another seller"],
    A + '[[history]]\nfrom = "b"\nto = "a"\namount = 1': ["history[0].from", "'b'; allowed: a"],
    A + '[[history]]\nfrom = "a"\nto = "outside"': ["history[0] needs one of amount"],
    A + '[[history]]\nfrom = "a"\nto = "outside"\namount = 1\nstatus = "open"': [
        "history[0].status",
        "settled",
    ],
    A + '[[history]]\nfrom = "a"\nto = "outside"\ncap_usdc = 1\ncharged_usdc = 2': ["the cap is 1"],
    '[accounts."a b"]\nname = "A"': ["letters, digits"],
    '[accounts.outside-1]\nname = "A"': ["outside"],
}


@pytest.mark.parametrize("content", FAULTS)
def test_a_faulty_scene_names_the_key_and_what_is_allowed(content: str) -> None:
    with pytest.raises(SceneError) as caught:
        parse_scene(content, name="bad.toml")
    assert str(caught.value).startswith("bad.toml")
    for part in FAULTS[content]:
        assert part in str(caught.value)


STEP = '[[history]]\nfrom = "a"\nto = "b"\n'
PAIR = '[accounts.a]\nname = "A"\nbalance_usdc = 10\n%s[accounts.b]\nname = "B"\nbalance_usdc = 5\n'
REFUSED = {
    PAIR % "" + STEP + "amount = 6": "accounts.b.balance_usdc is 5",
    PAIR % "" + STEP + 'amount = 1\nstatus = "rejected"': "is rejected, but the transfer is",
    PAIR % "" + STEP + 'amount = 1\nstatus = "pending_approval"': "but the transfer is settled",
    PAIR % "" + '[[history]]\nfrom = "a"\nto = "nowhere"\namount = 1': "history[0]",
    PAIR % "" + '[[webhooks]]\nurl = "ftp://x"\nevents = ["transfer.settled"]': "webhooks[0]",
}


@pytest.mark.parametrize("content", REFUSED)
def test_a_scene_that_cannot_happen_names_the_step(tmp_path: Path, content: str) -> None:
    path = tmp_path / "scene.toml"
    path.write_text(content, "utf-8")
    server = AgentPayServer(scene=path)
    with pytest.raises(SceneError) as caught:
        server.start()
    assert REFUSED[content] in str(caught.value)
    assert not server.is_running


def test_equal_seeds_build_equal_scenes(path: Path) -> None:
    def built() -> tuple[Any, ...]:
        with AgentPayServer(scene=path, seed=7, clock=START) as server:
            return server.scene.to_dict(), [each.signature for each in server.transactions]

    assert built() == built()


def test_a_scene_is_not_built_on_a_cluster(path: Path) -> None:
    rpc = RpcSettings(url="http://127.0.0.1:8899")
    with pytest.raises(ValueError, match="embedded chain"):
        AgentPayServer(scene=path, rpc=rpc)


def test_a_scene_that_fails_leaves_no_key_and_no_webhook(tmp_path: Path) -> None:
    path = tmp_path / "scene.toml"
    hook = '[[webhooks]]\nurl = "http://127.0.0.1:9/"\nevents = ["transfer.settled"]\n'
    path.write_text(PAIR % "keys = [{}]\n" + hook + STEP + 'amount = 1\nstatus = "rejected"', "utf-8")
    with AgentPayServer() as server:
        with pytest.raises(SceneError):
            server.build_scene(path)
        assert list(server.client().agent_keys.list()) == []
        assert list(server.client().webhooks.list()) == []


def test_an_existing_account_of_a_scene_keeps_its_policy_and_gets_what_it_lacks() -> None:
    scene = parse_scene(PAIR % "policy = {paused = true}\n" + STEP + 'amount = "2.5"')
    with AgentPayServer() as server:
        client = server.client()
        account_id = client.accounts.create(name="Own").account_id
        server.sandbox.fund(account_id, "0.5")
        for _ in range(2):
            built = build(client, scene, existing={"a": account_id})
        assert built.accounts["a"] == account_id
        assert client.accounts.get(account_id).name == "Own"
        assert client.policies.get(account_id).paused is False
        assert client.accounts.balance(account_id).balance_usdc == Decimal(10)
