"""Transfers that settle: on-chain effects, responses, stored records (interface T2)."""

from decimal import Decimal

import httpx
import money
import pytest
import validators
from server_world import START, Funded, raw_client
from solders.signature import Signature
from solders.transaction_metadata import TransactionMetadata

from agentpay import AgentPay
from agentpay_server import AgentPayServer, Settings


def memo_on_chain(server: AgentPayServer, signature: str) -> str:
    """Return the text of the memo instruction, as the chain logged it."""
    found = money.with_svm(server, lambda svm: svm.get_transaction(Signature.from_string(signature)))
    assert isinstance(found, TransactionMetadata)
    lines = found.logs()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("Program log: Memo (len"))
    return lines[start + 1].removeprefix("Program log: ")


def test_a_transfer_to_an_account_moves_exactly_its_amount(server: AgentPayServer, funded: Funded) -> None:
    payer, payee = funded("100"), funded("5", name="Payee")
    transfer = server.client().transfers.create(
        from_=payer.account_id, to=payee.account_id, amount="25.000001", memo="invoice 17"
    )
    assert (transfer.status, transfer.amount_usdc) == ("settled", Decimal("25.000001"))
    assert money.held(server, payer.usdc_token_account) == 74_999_999
    assert money.held(server, payee.usdc_token_account) == 30_000_001


def test_a_transfer_to_an_outside_token_account_moves_exactly_its_amount(
    server: AgentPayServer, funded: Funded
) -> None:
    payer, outside = funded("100"), server.sandbox.create_token_account()
    transfer = server.client().transfers.create(
        from_=payer.account_id, to=outside.usdc_token_account, amount="0.000001"
    )
    assert transfer.to == outside.usdc_token_account
    assert money.held(server, payer.usdc_token_account) == 99_999_999
    assert money.held(server, outside.usdc_token_account) == 1


def test_the_whole_balance_can_be_spent(server: AgentPayServer, funded: Funded) -> None:
    payer, payee = funded("999999999.999999"), funded("0.000001", name="Payee")
    server.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount="999999999.999999")
    assert money.held(server, payer.usdc_token_account) == 0
    assert money.held(server, payee.usdc_token_account) == 1_000_000_000_000_000


def test_the_answer_has_the_ten_documented_fields(
    server: AgentPayServer, http: httpx.Client, funded: Funded
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    response = money.post(http, money.order(payer, payee.account_id, "25", memo="for data", category="data"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    body = response.json()
    assert set(body) == money.TEN_FIELDS
    assert body["transfer_id"].startswith("txn_")
    assert (body["status"], body["amount_usdc"]) == ("settled", "25.000000")
    assert (body["from"], body["to"]) == (payer.account_id, payee.account_id)
    assert (body["memo"], body["idempotency_key"]) == ("for data", "key-1")
    assert body["settled_at"] == "2026-01-01T00:00:00.000Z"
    status = money.on_owner(server, lambda context: context.chain.signature_status(body["tx_signature"]))
    assert status is not None
    assert status.failure is None
    assert http.get(f"/v1/transfers/{body['transfer_id']}").json() == body


@pytest.mark.parametrize("memo", [{}, {"memo": None}, {"memo": ""}], ids=["absent", "null", "empty"])
def test_a_missing_memo_is_returned_as_null(
    http: httpx.Client, funded: Funded, memo: dict[str, object]
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    body = money.post(http, money.order(payer, payee.account_id, **memo)).json()
    assert body["memo"] is None


def test_the_explorer_url_names_the_transaction_and_its_cluster(client: AgentPay, funded: Funded) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    transfer = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
    assert transfer.tx_signature is not None
    assert transfer.chain_explorer_url == validators.explorer_url(transfer.tx_signature)


def test_initiated_and_settled_are_written_in_order_by_the_commit_that_settles(
    server: AgentPayServer, http: httpx.Client, funded: Funded
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    body = money.post(http, money.order(payer, payee.account_id)).json()
    initiated, settled = money.events(server)
    assert initiated["id"] != settled["id"]
    assert all(event["id"].startswith("evt_") for event in (initiated, settled))
    assert {**initiated, "id": ""} == {
        "id": "",
        "type": "transfer.initiated",
        "created_at": "2026-01-01T00:00:00.000Z",
        "data": {
            "transfer_id": body["transfer_id"],
            "account_id": payer.account_id,
            "to": payee.account_id,
            "amount_usdc": "25.000000",
            "tx_signature": body["tx_signature"],
        },
    }
    assert {**settled, "id": ""} == {
        "id": "",
        "type": "transfer.settled",
        "created_at": "2026-01-01T00:00:00.000Z",
        "data": {
            "transfer_id": body["transfer_id"],
            "account_id": payer.account_id,
            "amount_usdc": "25.000000",
            "tx_signature": body["tx_signature"],
            "settled_at": "2026-01-01T00:00:00.000Z",
        },
    }


def test_both_accounts_list_a_transfer_in_their_history(
    server: AgentPayServer, http: httpx.Client, funded: Funded
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    body = money.post(http, money.order(payer, payee.account_id, memo="hello", category="data")).json()
    out, into = money.entries(server, payer.account_id)[0], money.entries(server, payee.account_id)[0]
    assert out["transaction_id"] != into["transaction_id"]
    shared = {
        "status": "settled",
        "amount_usdc": Decimal(25),
        "tx_signature": body["tx_signature"],
        "chain_explorer_url": body["chain_explorer_url"],
        "transfer_id": body["transfer_id"],
        "session_id": None,
        "rejection_reason": None,
        "created_at": START,
    }
    assert shared.items() <= out.items()
    assert shared.items() <= into.items()
    assert (out["type"], out["direction"], out["counterparty"]) == ("transfer", "out", payee.account_id)
    assert (into["type"], into["direction"], into["counterparty"]) == ("deposit", "in", payer.account_id)
    assert (out["memo"], out["category"]) == ("hello", "data")


def test_an_outside_recipient_gets_no_history_entry(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    payer, outside = funded("100"), server.sandbox.create_token_account()
    client.transfers.create(from_=payer.account_id, to=outside.usdc_token_account, amount="1")
    assert len(money.rows(server, "entries")) == 2  # The funding, and the transfer.


@pytest.mark.parametrize("by", ["account_id", "usdc_token_account"])
def test_another_operators_account_can_be_paid_and_sees_the_deposit(
    server: AgentPayServer, client: AgentPay, funded: Funded, by: str
) -> None:
    payer = funded("100")
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    payee = other.accounts.create(name="Payee")
    transfer = client.transfers.create(from_=payer.account_id, to=getattr(payee, by), amount="7")
    assert transfer.to == getattr(payee, by)
    assert money.held(server, payee.usdc_token_account) == 7_000_000
    (deposit,) = other.accounts.transactions(payee.account_id)
    assert (deposit.type, deposit.direction, deposit.counterparty) == ("deposit", "in", payer.account_id)
    assert (deposit.amount_usdc, deposit.transfer_id) == (Decimal(7), transfer.transfer_id)


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
        short, none = (
            client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1", memo=memo)
            for memo in ("public words", None)
        )
        longest = client.transfers.create(
            from_=payer.account_id, to=payee.account_id, amount="1", memo="\U0001f600" * 200
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


def test_an_agent_key_pays_only_from_its_account(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    payer, other = funded("100"), funded("100", name="Other")
    agent = server.agent_client(payer.account_id)
    transfer = agent.transfers.create(from_=payer.account_id, to=other.account_id, amount="1")
    assert agent.transfers.get(transfer.transfer_id) == transfer
    with raw_client(server, server.agent_keys.create(payer.account_id).key) as http:
        for source in (other.account_id, "acct_00000000000000000000000000"):
            body = {**money.order(payer, payer.account_id), "from": source}
            assert money.post(http, body).json()["error"] == "forbidden"
        others = client.transfers.create(from_=other.account_id, to=payer.account_id, amount="1")
        assert http.get(f"/v1/transfers/{others.transfer_id}").status_code == 404


def test_many_transfers_conserve_the_total(server: AgentPayServer, client: AgentPay, funded: Funded) -> None:
    accounts = [funded("10", name=f"Account {number}") for number in range(4)]
    outside = server.sandbox.create_token_account()
    targets = [account.account_id for account in accounts] + [outside.usdc_token_account]
    for step in range(40):
        source, to = accounts[step % 4], targets[(step * 7 + 1) % 5]
        if to != source.account_id:
            client.transfers.create(from_=source.account_id, to=to, amount=f"0.{step + 1:06}")
    addresses = [account.usdc_token_account for account in accounts] + [outside.usdc_token_account]
    assert sum(money.held(server, address) for address in addresses) == 40_000_000
    for account in accounts:
        signs = {"in": 1, "out": -1}
        history = money.entries(server, account.account_id)
        ledger = sum(signs[entry["direction"]] * entry["amount_usdc"] for entry in history)
        assert int(ledger.scaleb(6)) == money.held(server, account.usdc_token_account)
