"""`agentpay-server pay`: pays one 402 from the command line and shows the exchange."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import bounds
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
    for shown in (
        "Nothing more is paid: ask the seller",
        "responded 402 to the payment: duplicate_settlement",
    ):
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


@pytest.mark.parametrize(("mode", "exit_code"), [("fail_after_settling", 1), ("lose_reply", 6)])
def test_a_payment_whose_seller_did_not_deliver_is_listed_as_such_and_presented_again(
    pay: Any, agentpay: Any, client: AgentPay, account: Account, paywall: Paywall, mode: str, exit_code: int
) -> None:
    paywall.mode = mode
    first = pay("/forecast", "--json")
    (payment,) = client.payments.list(account_id=account.account_id)
    told = json.loads(first.stderr.splitlines()[-1])
    assert (first.exit_code, told["transfer_id"]) == (exit_code, payment.transfer_id)
    key = told["idempotency_key"]
    assert f"Repeat the command with --payment-key {key}" in told["message"]
    assert "settled, not delivered" in agentpay("payments", "list").stdout

    again = pay("/forecast", "--payment-key", key)
    assert (again.exit_code, again.stdout) == (1, "")
    assert (
        f"{payment.transfer_id} is paid, and the seller did not deliver. Nothing more is paid" in again.stderr
    )
    paywall.mode, paywall.serves_again = "honest", True
    assert pay("/forecast", "--payment-key", key).exit_code == 0
    assert "not delivered" not in agentpay("payments", "list").stdout
    assert len(client.payments.list(account_id=account.account_id).data) == 1


@pytest.mark.parametrize(
    ("mode", "options", "exit_code", "shown"),
    [
        ("honest", (), 0, ("settled, 0.250000 USDC",)),
        ("never_settle", (), 0, ("submitted, 0.250000 USDC",)),
        ("honest", (), 5, ("rejected", "max_single_transfer")),
        ("honest", ("--max-amount", "0.1"), 1, ("rejected", "max_amount 0.1")),
        ("lose_reply", (), 1, ("paid_not_delivered",)),
        ("hold", (), 6, ("submitted", "responded 500")),
        ("honest", ("--ref", "o1"), 2, ("--ref must have 8 to 120 characters",)),
    ],
)
def test_the_exit_code_of_a_paid_tool_says_what_became_of_it(
    agentpay: Any,
    client: AgentPay,
    account: Account,
    paywall: Paywall,
    mode: str,
    options: tuple[str, ...],
    exit_code: int,
    shown: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On the manual clock nothing settles while it is waited for.
    bounds.shorten(monkeypatch, paid_fetch_settles_seconds=0.0)
    paywall.mode = mode
    if exit_code == 5:
        client.policies.update(account.account_id, max_single_transfer="0.1")
    call = ("payments", "call-tool", f"{paywall.base_url}/mcp", "forecast", "--account", account.account_id)
    result = agentpay(*call, "--max-amount", "1", *options)
    assert result.exit_code == exit_code, result.output
    assert not [each for each in shown if each not in result.stderr], result.stderr
    # A tool's error is printed; where nothing was bought, nothing is.
    assert bool(result.stdout) == (exit_code != 2 and "rejected" not in shown)


def test_calling_a_paid_tool_without_its_extra_says_what_to_install(
    agentpay: Any, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    call = ("payments", "call-tool", "http://127.0.0.1:9/mcp", "x", "--account", account.account_id)
    result = agentpay(*call, "--max-amount", "1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.fullmatch(
        r"Error: call_paid_tool needs mcp, which is not installed: .*\[mcp\]'\n", result.stderr
    )


def test_pay_takes_the_account_by_name_or_from_an_agent_key(
    commands: CommandLine, server: AgentPayServer, account: Account, paywall: Paywall
) -> None:
    url = f"{paywall.base_url}/forecast"
    assert commands.run("pay", url, "--account", account.name).exit_code == 0
    key = server.agent_keys.create(account_id=account.account_id, name="Buyer").key
    assert commands.run("pay", url, "--key", key).exit_code == 0
    assert "pass --account" in commands.refused("pay", url)
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
    payer = ("--account", account.account_id)
    assert "no response" in commands.refused("pay", "http://127.0.0.1:9/", *payer)
    assert "URL: Request URL is missing" in commands.run("pay", "example", *payer).stderr
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
    for wrong, says in ((b"{}", "pass the 402"), (told.replace(b" 402", b" 404", 1), "is 404, not 402")):
        refused = agentpay(*authorize, "f-8", input=wrong)
        assert (refused.exit_code, says in refused.stderr) == (2, True)

    client.policies.update(payer, escalation_threshold="0.1")
    waiting = agentpay(*authorize, "f-9", "--json", input=told)
    assert (waiting.exit_code, json.loads(waiting.stdout)["status"]) == (4, "pending_approval")
