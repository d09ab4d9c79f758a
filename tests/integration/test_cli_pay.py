"""`agentpay-server pay`: pays one 402 from the command line and shows the exchange."""

import json
from collections.abc import Iterator

import httpx
import pytest
import validators
from click.testing import CliRunner
from command_line import CommandLine
from server_world import Funded

from agentpay import AgentPay
from agentpay.cli import main
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    validators.embedded_only("the seller lives on its chain")
    with Paywall(server, {"/forecast": "0.25"}, protocols=["mpp"]) as shop:
        shop.sell("/free", "0.25", mode="fail_after_settling")
        shop.listen()
        yield shop


def test_pay_pays_once_and_shows_the_exchange(
    commands: CommandLine, client: AgentPay, funded: Funded, paywall: Paywall
) -> None:
    account_id = funded("1").account_id
    result = commands.run(
        "pay", f"{paywall.base_url}/forecast", "--account", account_id, "--payment-key", "f-7"
    )
    assert result.exit_code == 0, result.output
    assert '{"path":"/forecast","paid_usdc":"0.250000"}' in result.stdout
    assert ": 402" in result.stderr
    assert "0.250000 USDC to" in result.stderr
    assert "with Authorization: 200" in result.stderr
    assert "is settled" in result.stderr

    again = commands.run(
        "pay", f"{paywall.base_url}/forecast", "--account", account_id, "--payment-key", "f-7"
    )
    assert (again.exit_code, "presents the same payment" in again.stderr) == (1, True)
    assert "responded 402 to the payment: " in again.stderr
    assert "duplicate_settlement" in again.stderr
    url = f"{paywall.base_url}/forecast"
    as_json = commands.run("pay", url, "--account", account_id, "--payment-key", "f-7", "--json")
    refused = json.loads(as_json.stderr.splitlines()[-1])
    assert (refused["error"], refused["status_code"]) == ("not_served", 402)
    assert refused["reason"] in refused["message"]
    assert str(client.accounts.balance(account_id).balance_usdc) == "0.750000"
    assert len(paywall.sales) == 1


def test_pay_presents_vouchers_of_one_session_that_is_closed_later(
    commands: CommandLine, server: AgentPayServer, client: AgentPay, funded: Funded, paywall: Paywall
) -> None:
    account_id = funded("1").account_id
    paywall.sell_by_session("/tick", "0.25")
    arguments = ("pay", f"{paywall.base_url}/tick", "--account", account_id, "--session-cap", "0.5")
    for total in ("0.250000", "0.500000"):
        result = commands.run(*arguments)
        assert result.exit_code == 0, result.output
        assert f"{total} of 0.500000 USDC in sess_" in result.stderr
    assert commands.run(*arguments).exit_code == 5
    (session,) = client.sessions.list(account_id=account_id)
    closed = CliRunner(env=commands.environment).invoke(main, ["sessions", "close", session.session_id])
    assert closed.exit_code == 0, closed.output
    server.sandbox.clock.advance(1)
    (channel,) = paywall.channels
    assert (channel.status, str(channel.settled_usdc)) == ("settled", "0.500000")


def test_pay_buys_up_to_a_maximum(
    commands: CommandLine, client: AgentPay, funded: Funded, paywall: Paywall
) -> None:
    account_id = funded("1").account_id
    paywall.sell_upto("/answer", "0.5", charge="0.25")
    result = commands.run("pay", f"{paywall.base_url}/answer", "--account", account_id)
    assert result.exit_code == 0, result.output
    assert "is settled" in result.stderr
    assert str(client.accounts.balance(account_id).balance_usdc) == "0.750000"
    refused = commands.run(
        "pay", f"{paywall.base_url}/answer", "--account", account_id, "--max-amount", "0.4"
    )
    assert refused.exit_code != 0
    assert str(client.accounts.balance(account_id).balance_usdc) == "0.750000"


def test_a_payment_whose_seller_did_not_deliver_is_listed_as_such(
    commands: CommandLine, client: AgentPay, funded: Funded, paywall: Paywall
) -> None:
    account_id = funded("1").account_id
    arguments = ("pay", f"{paywall.base_url}/free", "--account", account_id, "--payment-key", "f-7")
    runner = CliRunner(env=commands.environment)
    for mode, status in (("fail_after_settling", 500), ("lose_reply", 500), ("honest", 200)):
        paywall.sell("/free", "0.25", mode=mode)
        paywall.serves_again = mode == "honest"
        assert commands.run(*arguments).exit_code == (0 if status == 200 else 1)
        listed = runner.invoke(main, ["payments", "list"]).stdout
        assert "settled" in listed
        assert ("settled, not delivered" in listed) == (status != 200)
    (payment,) = client.payments.list(account_id=account_id)
    assert payment.outcome is not None
    assert payment.outcome.is_delivered


def test_an_empty_payment_key_is_refused(commands: CommandLine, funded: Funded, paywall: Paywall) -> None:
    account_id = funded("1").account_id
    url = f"{paywall.base_url}/forecast"
    result = commands.run("pay", url, "--account", account_id, "--payment-key", "")
    assert (result.exit_code, "--payment-key" in result.stderr) == (2, True)
    assert paywall.requests == []


def test_pay_takes_the_account_by_name_or_from_an_agent_key(
    commands: CommandLine, server: AgentPayServer, funded: Funded, paywall: Paywall
) -> None:
    account = funded("1")
    url = f"{paywall.base_url}/forecast"
    assert commands.run("pay", url, "--account", account.name).exit_code == 0
    key = server.agent_keys.create(account_id=account.account_id, name="Buyer").key
    assert commands.run("pay", url, "--key", key).exit_code == 0
    assert "name one" in commands.refused("pay", url)
    assert [sale.path for sale in paywall.sales] == ["/forecast", "/forecast"]


def test_pay_reports_why_it_does_not_pay(commands: CommandLine, funded: Funded, paywall: Paywall) -> None:
    account_id = funded("1").account_id
    url = f"{paywall.base_url}/forecast"
    dear = commands.run("pay", url, "--account", account_id, "--max-amount", "0.2")
    assert (dear.exit_code, dear.stdout, "Error: " in dear.stderr) == (1, "", True)
    unknown = commands.run("pay", f"{paywall.base_url}/else", "--account", account_id)
    assert (unknown.exit_code, "not_found" in unknown.stdout) == (0, True)
    gone = commands.refused("pay", "http://127.0.0.1:9/", "--account", account_id)
    assert "no response" in gone
    assert paywall.sales == []


def test_a_402_that_curl_prints_is_paid_with_the_header_that_is_printed(
    commands: CommandLine, client: AgentPay, funded: Funded, paywall: Paywall
) -> None:
    payer, url = funded("1").account_id, f"{paywall.base_url}/forecast"
    asked = httpx.get(url)
    head = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.multi_items())
    told = b"HTTP/1.1 402 Payment Required\r\n" + head.encode() + b"\r\n" + asked.content
    runner = CliRunner(env=commands.environment)
    authorize = ["payments", "authorize", url, "--account", payer, "--idempotency-key", "f-8"]
    result = runner.invoke(main, [*authorize, "--quiet"], input=told)
    assert (result.exit_code, result.stderr) == (0, "")
    name, _, value = result.stdout.strip().partition(": ")
    assert httpx.get(url, headers={name: value}).status_code == 200
    assert str(client.accounts.balance(payer).balance_usdc) == "0.750000"
    assert runner.invoke(main, authorize, input=b"{}").exit_code == 2

    client.policies.update(payer, escalation_threshold="0.1")
    waiting = runner.invoke(main, [*authorize[:-1], "f-9", "--json"], input=told)
    assert (waiting.exit_code, json.loads(waiting.stdout)["status"]) == (4, "pending_approval")
