"""A client that a public generator makes from the documents completes the quickstart over a port (P14)."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).parents[2]


# One process for both documents: half of a run is the start of the generator.
GENERATE = """
import json, sys
from openapi_python_client.cli import app
for arguments in json.loads(sys.argv[1]):
    app(arguments, standalone_mode=False)
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the two packages that openapi-python-client generates."""
    place = tmp_path_factory.mktemp("generated")
    runs = []
    for document, package in (
        ("openapi.json", "generated_v1"),
        ("openapi-extensions.json", "generated_extensions"),
    ):
        configuration = place / f"{package}.yaml"
        configuration.write_text(f"package_name_override: {package}\npost_hooks: []\n")
        files = {
            "--path": ROOT / "docs" / document,
            "--config": configuration,
            "--output-path": place / package,
        }
        options = (f"{name}={file}" for name, file in files.items())
        runs.append(["generate", "--fail-on-warning", "--meta=none", *options])
    run = subprocess.run(
        [sys.executable, "-c", GENERATE, json.dumps(runs)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return place


@pytest.fixture
def packages(generated: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(generated))
    return import_module("generated_v1"), import_module("generated_extensions")


def operation(package: ModuleType, name: str) -> Any:
    """Return an operation of a generated package: `accounts.create`."""
    return import_module(f"{package.__name__}.api.{name.partition('.')[0]}.{name.replace('.', '_')}").sync


def models(package: ModuleType) -> Any:
    return import_module(f"{package.__name__}.models")


def test_a_generated_client_completes_the_quickstart(packages: tuple[ModuleType, ModuleType]) -> None:
    v1, extensions = packages
    sent, asked = models(v1), models(extensions)
    with AgentPayServer() as server:
        base_url = server.listen()

        def client_of(package: ModuleType, key: str) -> Any:
            return package.AuthenticatedClient(
                base_url=base_url, token=key, raise_on_unexpected_status=True, timeout=httpx.Timeout(20)
            )

        key = server.operator_key
        with client_of(v1, key) as client, client_of(extensions, key) as dashboard:
            create = operation(v1, "accounts.create")
            bot = create(client=client, body=sent.CreateAccount(name="Research bot"))
            shop = create(client=client, body=sent.CreateAccount(name="Data shop"))
            assert bot.handle == "@research-bot"
            assert bot.balance_usdc == "0.000000"

            fund = operation(extensions, "sandbox.accounts.fund")
            funding = fund(bot.account_id, client=dashboard, body=asked.Fund(amount="100"))
            assert funding.balance_usdc == "100.000000"

            limits = sent.PolicyChange(max_single_transfer=25, max_daily_spend=40)
            policy = operation(v1, "policies.put")(bot.account_id, client=client, body=limits)
            assert (policy.max_single_transfer, policy.max_daily_spend, policy.paused) == (25, 40, False)

            key_request = asked.CreateAgentKey(account_id=bot.account_id)
            made = operation(extensions, "agent_keys.create")(client=dashboard, body=key_request)
            with client_of(v1, made.key) as agent:
                pay = operation(v1, "transfers.create")
                order = sent.CreateTransfer(
                    from_=bot.account_id,
                    to=shop.account_id,
                    amount="12.50",
                    idempotency_key="order-7",
                    memo="dataset 7",
                )
                paid = pay(client=agent, body=order)
                assert (paid.status.value, paid.amount_usdc) == ("settled", "12.500000")
                assert pay(client=agent, body=order) == paid

                order.idempotency_key, order.amount = "order-8", "30"
                refused = pay(client=agent, body=order)
                assert isinstance(refused, sent.PaymentRequired)
                assert refused.error.value == "policy_violation"
                assert "max_single_transfer" in refused.message

                forbidden = operation(v1, "policies.get")(bot.account_id, client=agent)
                assert isinstance(forbidden, sent.Forbidden)

            entries = operation(v1, "accounts.transactions")(bot.account_id, client=client).data
            assert [(entry.type_.value, entry.direction.value, entry.amount_usdc) for entry in entries] == [
                ("rejection", "out", "30.000000"),
                ("transfer", "out", "12.500000"),
                ("deposit", "in", "100.000000"),
            ]
            balance = operation(v1, "accounts.balance")(bot.account_id, client=client)
            assert balance.balance_usdc == "87.500000"


@pytest.mark.parametrize("has_transfer", [True, False])
def test_a_generated_client_distinguishes_an_unknown_outcome(
    packages: tuple[ModuleType, ModuleType], has_transfer: bool
) -> None:
    v1, _ = packages
    body = {"error": "chain_unavailable", "message": "Not known yet.", "request_id": "req_a"}
    if has_transfer:
        body |= {"transfer_id": "txn_a", "status": "submitted"}
    client = v1.AuthenticatedClient(
        base_url="http://service.invalid",
        token="key",
        httpx_args={"transport": httpx.MockTransport(lambda _: httpx.Response(503, json=body))},
    )
    sent = models(v1)
    order = sent.CreateTransfer(from_="acct_a", to="acct_b", amount="1", idempotency_key="k")

    with client as opened:
        answer = operation(v1, "transfers.create")(client=opened, body=order)

    assert type(answer) is (
        sent.TransferOutcomeUnknown if has_transfer else sent.ChainUnavailableOrServiceUnavailable
    )
    assert not has_transfer or answer.transfer_id == "txn_a"
