"""Deposits: USDC from any sender, by any transaction, is posted once (interface H4)."""

import time
from decimal import Decimal
from typing import Any

import httpx
import pytest
import validators
from money import Context, drain, entries, freeze, held, looked, on_owner, order, post, rows
from outsiders import Wallet, landed
from server_world import START, Funded

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.fields import parse_timestamp
from agentpay_server import AgentPayServer

LOW = "balance.low_threshold"
NOT_OF_A_DEPOSIT = ("memo", "category", "transfer_id", "session_id", "rejection_reason")


@pytest.fixture
def wallet(server: AgentPayServer) -> Wallet:
    """A stranger's wallet with 1,000 USDC."""
    return opened(server)


def opened(server: AgentPayServer, number: int = 1) -> Wallet:
    async def work(context: Context) -> Wallet:
        made = Wallet(context.chain, context.signer, number)
        assert await landed(context.chain, await made.open(1_000_000_000))
        return made

    return on_owner(server, work)


def pay(server: AgentPayServer, wallet: Wallet, *payments: tuple[str, int], **more: Any) -> str:
    """Let a wallet pay; return the signature of what certainly landed."""

    async def work(context: Context) -> str:
        signature = await wallet.pay(*payments, **more)
        assert await landed(context.chain, signature)
        return signature

    return on_owner(server, work)


def posted(server: AgentPayServer, account: Account) -> int:
    """The micro-USDC that an account has by the books."""
    (row,) = rows(server, "accounts", account_id=account.account_id)
    return int(row["balance"])


def deposits(server: AgentPayServer, account: Account) -> list[dict[str, Any]]:
    """The deposits in the history of an account, newest first."""
    return [entry for entry in entries(server, account.account_id) if entry["type"] == "deposit"]


def test_a_third_party_s_payment_is_in_the_history_once(
    server: AgentPayServer, client: AgentPay, wallet: Wallet
):
    account = client.accounts.create(name="a")
    signature = pay(server, wallet, (account.usdc_token_account, 7_250_000))
    for _ in range(3):
        looked(server)

    (entry,) = entries(server, account.account_id)

    assert entry == {
        **dict.fromkeys(NOT_OF_A_DEPOSIT),
        "transaction_id": entry["transaction_id"],
        "account_id": account.account_id,
        "type": "deposit",
        "status": "settled",
        "direction": "in",
        "amount_usdc": Decimal("7.250000"),
        "counterparty": wallet.token_account,
        "tx_signature": signature,
        "chain_explorer_url": entry["chain_explorer_url"],
        "created_at": START,
    }
    assert signature in entry["chain_explorer_url"]
    assert client.accounts.balance(account.account_id).balance_usdc == Decimal("7.25")
    assert posted(server, account) == held(server, account.usdc_token_account) == 7_250_000


def test_on_a_running_clock_deposits_are_posted_automatically():
    with AgentPayServer(clock="system") as server:
        wallet, account = opened(server), server.client().accounts.create(name="a")
        signature = pay(server, wallet, (account.usdc_token_account, 3))
        deadline = time.monotonic() + 120
        while not deposits(server, account):
            assert time.monotonic() < deadline
        (entry,) = deposits(server, account)
        assert (entry["tx_signature"], entry["amount_usdc"]) == (signature, Decimal("0.000003"))


def test_deposits_are_posted_in_order_and_one_for_each_account_that_a_transaction_pays(
    server: AgentPayServer, client: AgentPay, wallet: Wallet
):
    account, other = client.accounts.create(name="a"), client.accounts.create(name="b")
    address = account.usdc_token_account
    signatures = [pay(server, wallet, (address, micro)) for micro in (1, 2)]
    looked(server)
    both = pay(server, wallet, (address, 1), (other.usdc_token_account, 20), (address, 300))
    signatures += [both, pay(server, wallet, (address, 5), also_from=opened(server, 2))]
    signatures.append(server.sandbox.fund(account.account_id, "0.000005").tx_signature)
    looked(server)

    found = deposits(server, account)

    assert [entry["tx_signature"] for entry in found] == signatures[::-1]
    assert [int(entry["amount_usdc"].scaleb(6)) for entry in found] == [5, 10, 301, 2, 1]
    # What several senders paid in one transaction has no counterparty.
    senders = [entry["counterparty"] for entry in found]
    assert senders == [None, None, *[wallet.token_account] * 3]
    (of_other,) = deposits(server, other)
    assert (of_other["amount_usdc"], of_other["tx_signature"]) == (Decimal("0.000020"), both)


def test_a_transfer_between_accounts_is_one_deposit_and_not_two(
    server: AgentPayServer, client: AgentPay, http: httpx.Client, funded: Funded
):
    payer = funded("10")
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    payees = [client.accounts.create(name="own"), other.accounts.create(name="theirs")]
    for number, payee in enumerate(payees):
        assert post(http, order(payer, payee.account_id, "2", key=f"k{number}")).status_code == 200
        looked(server)
        server.sandbox.clock.advance(60)

    for payee, reader in zip(payees, (client, other), strict=True):
        (entry,) = reader.accounts.transactions(payee.account_id)
        assert (entry.type, entry.counterparty) == ("deposit", payer.account_id)
        assert posted(server, payee) == 2_000_000
    assert len(entries(server, payer.account_id)) == 3


def test_a_deposit_from_an_account_names_the_account(
    server: AgentPayServer, client: AgentPay, funded: Funded
):
    """Only the service signs for an account; this simulates another service with the same keys."""
    payer, payee = funded("10"), client.accounts.create(name="b")
    drain(server, payer, payee.usdc_token_account, 4)
    looked(server)

    (entry,) = deposits(server, payee)
    assert (entry["counterparty"], entry["transfer_id"]) == (payer.account_id, None)


def test_transactions_without_incoming_usdc_are_no_deposits(
    server: AgentPayServer, client: AgentPay, wallet: Wallet, funded: Funded
):
    account, frozen = client.accounts.create(name="a"), funded("1")
    freeze(server, frozen.usdc_token_account)

    async def work(context: Context) -> list[bool]:
        other_token, steps = await wallet.new_token(account.chain_address)
        signatures = [
            await wallet.pay((account.usdc_token_account, 0)),
            await wallet.send(*steps),
            await wallet.pay((account.usdc_token_account, 10**12)),
            await wallet.pay((account.usdc_token_account, 5), (frozen.usdc_token_account, 1)),
        ]
        assert (await context.chain.account_size(other_token)) is not None
        return [await landed(context.chain, signature) for signature in signatures]

    # Nothing moved; another mint; more than there is; all or nothing.
    assert on_owner(server, work) == [True, True, False, False]
    looked(server)

    assert deposits(server, account) == []
    assert len(deposits(server, frozen)) == 1
    assert posted(server, account) == held(server, account.usdc_token_account) == 0


def test_money_for_a_third_party_is_not_a_deposit(server: AgentPayServer, wallet: Wallet):
    before = rows(server, "entries")
    pay(server, wallet, (opened(server, 2).token_account, 5))
    looked(server)
    assert rows(server, "entries") == before
    assert not server._running.server.services.built["accounts"].deposits.is_any_due


def test_a_deposit_rearms_the_low_balance_event(
    server: AgentPayServer, client: AgentPay, http: httpx.Client, wallet: Wallet, funded: Funded
):
    validators.embedded_only("a cluster reports deposits with a delay")
    payer, sink = funded("100"), client.accounts.create(name="Sink")
    inbox = server.webhook_inbox(low_balance_threshold_usdc=50)

    def spend(amount: str, key: str) -> None:
        assert post(http, order(payer, sink.account_id, amount, key=key)).status_code == 200
        looked(server)

    def alarms() -> list[int]:
        return [int(event.data.balance_usdc) for event in inbox.events if event.type == LOW]

    spend("60", "a")
    spend("10", "b")
    assert alarms() == [40]
    pay(server, wallet, (payer.usdc_token_account, 70_000_000))
    looked(server)
    spend("55", "c")
    assert alarms() == [40, 45]
    # Not even a look between: what has come is posted before it is spent.
    pay(server, wallet, (payer.usdc_token_account, 10_000_000))
    spend("10", "d")
    assert alarms() == [40, 45, 45]


def test_deposits_are_read_again_after_a_chain_outage(
    server: AgentPayServer, client: AgentPay, wallet: Wallet, http: httpx.Client
):
    validators.embedded_only("a cluster is asked again in real time")
    account = client.accounts.create(name="a")
    pay(server, wallet, (account.usdc_token_account, 5))
    server.sandbox.set_fault("chain_down")
    looked(server)
    answer = post(http, order(account, wallet.token_account, "0.000001"))
    assert (answer.status_code, answer.json()["error"]) == (503, "chain_unavailable")
    assert deposits(server, account) == []
    server.sandbox.delete_fault("chain_down")
    looked(server)
    assert deposits(server, account) == []
    server.sandbox.clock.advance(5)

    (entry,) = deposits(server, account)

    assert entry["created_at"] == parse_timestamp("2026-01-01T00:00:05.000Z")


def test_funding_is_in_the_audit_trail_and_in_the_history_under_one_signature(
    server: AgentPayServer, client: AgentPay
):
    account = client.accounts.create(name="a")
    funding = server.sandbox.fund(account.account_id, 5)
    looked(server)

    (entry,) = deposits(server, account)
    (audited,) = rows(server, "audit", action="sandbox.accounts.fund")

    assert (entry["tx_signature"], entry["counterparty"]) == (funding.tx_signature, None)
    assert funding.tx_signature in audited["after"]
    assert audited["subject"] == account.account_id
