"""`agentpay-server pay`: an API that asks for money is paid once, and the exchange is shown."""

from collections.abc import Iterator
from decimal import Decimal

import pytest
from command_line import CommandLine
from server_world import Funded

from agentpay import AgentPay
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Mode, Paywall


@pytest.fixture
def shop(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server, {"/forecast": "0.01"}, serves_again=True) as paywall:
        paywall.listen()
        yield paywall


@pytest.fixture
def url(shop: Paywall) -> str:
    return f"{shop.base_url}/forecast"


@pytest.fixture
def bot(funded: Funded) -> str:
    return funded("10").account_id


def test_it_pays_and_shows_the_exchange(
    commands: CommandLine, shop: Paywall, client: AgentPay, url: str, bot: str
) -> None:
    result = commands.run("pay", url, "--account", bot, "--max-amount", "0.05", "--idempotency-key", "k")
    assert result.exit_code == 0, result.output
    (payment,) = client.payments.list()
    lines = result.stderr.splitlines()
    assert lines[:4] == [
        f"> GET {url}",
        "< 402 Payment Required",
        f"> GET {url}, presenting {payment.transfer_id}",
        "< 200 OK",
    ]
    assert lines[4].startswith(
        f"Paid 0.010000 USDC to {shop.recipient} by x402_v2, {payment.transfer_id}, key k"
    )
    assert '"success": true' in lines[5]
    assert "/forecast" in result.stdout
    assert payment.outcome is not None
    assert payment.outcome.status_code == 200


def test_json_is_one_line_without_the_cheque(commands: CommandLine, url: str, bot: str) -> None:
    paid = commands.json("pay", url, "--account", bot)
    assert (paid["status_code"], paid["payment"]["amount_usdc"]) == (200, "0.010000")
    assert paid["payment"]["header"] is None
    assert paid["receipt"]


def test_an_agent_key_pays_from_its_account(
    commands: CommandLine, client: AgentPay, url: str, bot: str
) -> None:
    commands.environment["AGENTPAY_API_KEY"] = client.console.agent_keys.create(bot).key
    assert commands.json("pay", url)["payment"]["account_id"] == bot


def test_an_operator_says_which_account_pays(commands: CommandLine, url: str) -> None:
    result = commands.run("pay", url)
    assert result.exit_code == 2
    assert "--account" in result.stderr


def test_a_lost_response_names_the_key_that_resumes_it(
    commands: CommandLine, shop: Paywall, client: AgentPay, url: str, bot: str
) -> None:
    shop.mode = Mode.LOSE_REPLY
    lost = commands.run("pay", url, "--account", bot, "--idempotency-key", "k")
    assert lost.exit_code == 1
    assert "--idempotency-key k" in lost.stderr
    shop.mode = Mode.HONEST
    assert commands.json("pay", url, "--account", bot, "--idempotency-key", "k")["status_code"] == 200
    assert client.accounts.balance(bot).balance_usdc == Decimal("9.99")


def test_refusals_of_seller_and_policy_are_said(
    commands: CommandLine, shop: Paywall, client: AgentPay, url: str, bot: str
) -> None:
    assert "nothing_payable" in commands.run("pay", url, "--account", bot, "--max-amount", "0.001").stderr
    client.policies.update(bot, max_single_transfer="0.001")
    assert "max_single_transfer" in commands.run("pay", url, "--account", bot).stderr
    client.policies.update(bot, max_single_transfer=None)
    shop.mode = Mode.ASK_TWICE
    refused = commands.run("pay", url, "--account", bot)
    assert refused.exit_code == 1
    assert "answered 402 to payment" in refused.stderr


def test_what_is_free_costs_nothing(commands: CommandLine, shop: Paywall, client: AgentPay, bot: str) -> None:
    result = commands.run("pay", f"{shop.base_url}/nowhere", "--account", bot, "-H", "X-Trace: 7", "-d", "{}")
    assert result.exit_code == 1
    assert "404" in result.stderr
    assert not list(client.payments.list())


@pytest.mark.parametrize(
    "arguments", [("http://127.0.0.1:1/",), ("nonsense",), ("http://x.invalid/", "-H", "bad")]
)
def test_what_cannot_be_asked_is_said(commands: CommandLine, bot: str, arguments: tuple[str, ...]) -> None:
    result = commands.run("pay", *arguments, "--account", bot)
    assert result.exit_code in (1, 2)
    assert result.stderr
