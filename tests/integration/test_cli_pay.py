"""`agentpay-server pay`: pays one 402 from the command line and shows the exchange."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import validators
from click.testing import CliRunner
from command_line import CommandLine
from server_world import Funded

from agentpay import AgentPay
from agentpay.cli import main
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    validators.embedded_only("the seller lives on its chain")
    with Paywall(server, {"/forecast": "0.25"}, protocols=["mpp"]) as shop:
        shop.listen()
        yield shop


@pytest.fixture
def account(funded: Funded) -> Account:
    return funded("1")


@pytest.fixture
def pay(commands: CommandLine, paywall: Paywall, account: Account) -> Callable[..., Any]:
    def run(path: str, *options: str) -> Any:
        return commands.run("pay", f"{paywall.base_url}{path}", "--account", account.account_id, *options)

    return run


@pytest.fixture
def agentpay(commands: CommandLine) -> Callable[..., Any]:
    """Run the command of the client."""
    runner = CliRunner(env=commands.environment)
    return lambda *arguments, **options: runner.invoke(main, arguments, **options)


def test_pay_pays_once_and_shows_the_exchange(
    pay: Any, client: AgentPay, account: Account, paywall: Paywall
) -> None:
    result = pay("/forecast", "--payment-key", "f-7")
    assert result.exit_code == 0, result.output
    assert '{"path":"/forecast","paid_usdc":"0.250000"}' in result.stdout
    for shown in (": 402", "0.250000 USDC to", "with Authorization: 200", "is settled"):
        assert shown in result.stderr

    again = pay("/forecast", "--payment-key", "f-7")
    assert again.exit_code == 1
    for shown in ("presents the same payment", "responded 402 to the payment: ", "duplicate_settlement"):
        assert shown in again.stderr
    refused = json.loads(pay("/forecast", "--payment-key", "f-7", "--json").stderr.splitlines()[-1])
    assert (refused["error"], refused["status_code"]) == ("not_served", 402)
    assert refused["reason"] in refused["message"]
    assert str(client.accounts.balance(account.account_id).balance_usdc) == "0.750000"
    assert len(paywall.sales) == 1


def test_pay_presents_vouchers_of_one_session_that_is_closed_later(
    pay: Any, agentpay: Any, server: AgentPayServer, client: AgentPay, account: Account, paywall: Paywall
) -> None:
    paywall.sell_by_session("/tick", "0.25")
    for total in ("0.250000", "0.500000"):
        result = pay("/tick", "--session-cap", "0.5")
        assert result.exit_code == 0, result.output
        assert f"{total} of 0.500000 USDC in sess_" in result.stderr
    assert pay("/tick", "--session-cap", "0.5").exit_code == 5
    (session,) = client.sessions.list(account_id=account.account_id)
    closed = agentpay("sessions", "close", session.session_id)
    assert closed.exit_code == 0, closed.output
    server.sandbox.clock.advance(1)
    (channel,) = paywall.channels
    assert (channel.status, str(channel.settled_usdc)) == ("settled", "0.500000")


def test_a_payment_whose_seller_did_not_deliver_is_listed_as_such(
    pay: Any, agentpay: Any, client: AgentPay, account: Account, paywall: Paywall
) -> None:
    for mode in ("fail_after_settling", "lose_reply", "honest"):
        paywall.mode, paywall.serves_again = mode, mode == "honest"
        assert pay("/forecast", "--payment-key", "f-7").exit_code == (0 if mode == "honest" else 1)
        listed = agentpay("payments", "list").stdout
        assert "settled" in listed
        assert ("settled, not delivered" in listed) == (mode != "honest")
    (payment,) = client.payments.list(account_id=account.account_id)
    assert payment.outcome is not None
    assert payment.outcome.is_delivered


def test_pay_takes_the_account_by_name_or_from_an_agent_key(
    commands: CommandLine, server: AgentPayServer, account: Account, paywall: Paywall
) -> None:
    url = f"{paywall.base_url}/forecast"
    assert commands.run("pay", url, "--account", account.name).exit_code == 0
    key = server.agent_keys.create(account_id=account.account_id, name="Buyer").key
    assert commands.run("pay", url, "--key", key).exit_code == 0
    assert "name one" in commands.refused("pay", url)
    assert [sale.path for sale in paywall.sales] == ["/forecast", "/forecast"]


def test_pay_reports_why_it_does_not_pay(
    pay: Any, commands: CommandLine, account: Account, paywall: Paywall
) -> None:
    empty = pay("/forecast", "--payment-key", "")
    assert (empty.exit_code, "--payment-key" in empty.stderr, paywall.requests) == (2, True, [])
    dear = pay("/forecast", "--max-amount", "0.2")
    assert (dear.exit_code, dear.stdout, "Error: " in dear.stderr) == (1, "", True)
    unknown = pay("/else")
    assert (unknown.exit_code, "not_found" in unknown.stdout) == (0, True)
    gone = commands.refused("pay", "http://127.0.0.1:9/", "--account", account.account_id)
    assert "no response" in gone
    assert paywall.sales == []


def test_a_402_that_curl_prints_is_paid_with_the_header_that_is_printed(
    agentpay: Any, client: AgentPay, account: Account, paywall: Paywall
) -> None:
    payer, url = account.account_id, f"{paywall.base_url}/forecast"
    asked = httpx.get(url)
    head = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.multi_items())
    told = b"HTTP/1.1 402 Payment Required\r\n" + head.encode() + b"\r\n" + asked.content
    authorize = ("payments", "authorize", url, "--account", payer, "--idempotency-key")
    result = agentpay(*authorize, "f-8", "--quiet", input=told)
    assert (result.exit_code, result.stderr) == (0, "")
    name, _, value = result.stdout.strip().partition(": ")
    assert httpx.get(url, headers={name: value}).status_code == 200
    assert str(client.accounts.balance(payer).balance_usdc) == "0.750000"
    assert agentpay(*authorize, "f-8", input=b"{}").exit_code == 2

    client.policies.update(payer, escalation_threshold="0.1")
    waiting = agentpay(*authorize, "f-9", "--json", input=told)
    assert (waiting.exit_code, json.loads(waiting.stdout)["status"]) == (4, "pending_approval")
