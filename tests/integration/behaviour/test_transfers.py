"""Transfers that settle: on-chain effects, both histories, fees (interface T2, H2)."""

from decimal import Decimal

import httpx
import money
import pytest
import validators
from server_world import Funded

from agentpay import AgentPay
from agentpay_server import AgentPayServer, Settings


def memo_on_chain(server: AgentPayServer, signature: str) -> str:
    """Return the text of the memo instruction, as the chain logged it."""
    executed = money.with_chain(server, lambda chain: chain.history.get(signature))
    assert executed is not None
    lines = executed.meta.logs()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("Program log: Memo (len"))
    return lines[start + 1].removeprefix("Program log: ")


@pytest.mark.parametrize(("by", "amount"), [("account_id", "25.000001"), ("usdc_token_account", "0.000001")])
def test_a_transfer_moves_exactly_its_amount_and_is_in_both_histories(
    server: AgentPayServer, funded: Funded, http: httpx.Client, client: AgentPay, by: str, amount: str
) -> None:
    payer, payee = funded("100"), client.accounts.create(name="Payee")
    server.sandbox.clock.advance(0.25)
    to = getattr(payee, by)
    transfer = client.transfers.create(
        from_=payer.account_id, to=to, amount=amount, memo="for data", category="data"
    )
    assert (transfer.status, transfer.to, transfer.amount_usdc) == ("settled", to, Decimal(amount))
    moved = int(Decimal(amount).scaleb(6))
    assert money.held(server, payer.usdc_token_account) == 100_000_000 - moved
    assert money.held(server, payee.usdc_token_account) == moved
    assert transfer.tx_signature is not None
    (out, _), (into,) = (
        http.get(f"/v1/accounts/{each.account_id}/transactions").json()["data"] for each in (payer, payee)
    )
    common = {
        "status": "settled",
        "amount_usdc": f"{Decimal(amount):.6f}",
        "memo": "for data",
        "category": "data",
        "tx_signature": transfer.tx_signature,
        "chain_explorer_url": validators.explorer_url(transfer.tx_signature),
        "transfer_id": transfer.transfer_id,
        "session_id": None,
        "rejection_reason": None,
        "created_at": "2026-01-01T00:00:00.250Z",
    }
    assert out == {
        **common,
        "transaction_id": out["transaction_id"],
        "type": "transfer",
        "direction": "out",
        "account_id": payer.account_id,
        "counterparty": to,
    }
    assert into == {
        **common,
        "transaction_id": into["transaction_id"],
        "type": "deposit",
        "direction": "in",
        "account_id": payee.account_id,
        "counterparty": payer.account_id,
    }
    assert out["transaction_id"] != into["transaction_id"]


def test_a_transfer_to_an_outside_token_account_is_in_one_history(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    payer, outside = funded("100"), server.sandbox.create_token_account()
    transfer = client.transfers.create(
        from_=payer.account_id, to=outside.usdc_token_account, amount="0.000001"
    )
    assert transfer.to == outside.usdc_token_account
    assert money.held(server, payer.usdc_token_account) == 99_999_999
    assert money.held(server, outside.usdc_token_account) == 1
    assert len(money.rows(server, "entries")) == 2  # The funding, and the transfer.


def test_the_whole_balance_can_be_spent(server: AgentPayServer, funded: Funded) -> None:
    payer, payee = funded("999999999.999999"), funded("0.000001", name="Payee")
    server.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount="999999999.999999")
    assert money.held(server, payer.usdc_token_account) == 0
    assert money.held(server, payee.usdc_token_account) == 1_000_000_000_000_000


@pytest.mark.parametrize("by", ["account_id", "usdc_token_account"])
def test_another_operators_account_is_paid_and_sees_neither_memo_nor_category(
    server: AgentPayServer, client: AgentPay, funded: Funded, by: str
) -> None:
    payer = funded("100")
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    payee = other.accounts.create(name="Payee")
    transfer = client.transfers.create(
        from_=payer.account_id, to=getattr(payee, by), amount="7", memo="for our eyes", category="data"
    )
    assert transfer.to == getattr(payee, by)
    assert money.held(server, payee.usdc_token_account) == 7_000_000
    (deposit,) = other.accounts.transactions(payee.account_id)
    assert (deposit.type, deposit.direction, deposit.counterparty) == ("deposit", "in", payer.account_id)
    assert (deposit.amount_usdc, deposit.transfer_id) == (Decimal(7), transfer.transfer_id)
    assert (deposit.memo, deposit.category) == (None, None)


def test_the_on_chain_memo_is_only_the_transfer_id(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    transfer = client.transfers.create(
        from_=payer.account_id, to=payee.account_id, amount="1", memo="private words"
    )
    assert transfer.tx_signature is not None
    assert memo_on_chain(server, transfer.tx_signature) == transfer.transfer_id


def test_onchain_memo_full_publishes_the_memo() -> None:
    with AgentPayServer(settings=Settings(onchain_memo="full")) as server:
        client = server.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        server.sandbox.fund(payer.account_id, "10")
        short, none, longest = (
            client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1", memo=memo)
            for memo in ("public words", None, "\U0001f600" * 200)
        )
        assert memo_on_chain(server, short.tx_signature) == f"{short.transfer_id} public words"
        assert memo_on_chain(server, none.tx_signature) == none.transfer_id
        assert memo_on_chain(server, longest.tx_signature).startswith(longest.transfer_id)


def test_the_treasury_pays_every_fee(server: AgentPayServer, client: AgentPay, funded: Funded) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    addresses = (money.treasury(server), payer.chain_address, payee.chain_address)

    def lamports() -> list[int]:
        return [money.lamports(server, address) for address in addresses]

    before = lamports()
    client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
    after = lamports()
    assert after[0] < before[0]
    assert after[1:] == before[1:]
