"""The service's transactions as read by independent libraries: balances, memos, policy records."""

import pytest
import rpc_service
import witness
from rpc_world import USDC
from surfpool import Surfpool

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


async def test_balances_and_memo_on_chain_match_the_transfer(surfpool: Surfpool) -> None:
    async with rpc_service.serving(surfpool) as service:
        payer, payee = await service.account("100"), await service.account()
        answer = (await service.transfer("key", payer, payee, "25.5", memo="private")).json()
        owner = (await service.http.get(f"/v1/accounts/{payer.account_id}")).json()["chain_address"]
    source, target, transaction = await witness.testify(
        surfpool.url,
        ("token_account", payer.usdc_token_account),
        ("token_account", payee.usdc_token_account),
        ("transaction", answer["tx_signature"]),
    )
    assert source == {"mint": USDC, "owner": owner, "amount": "74500000"}
    assert (target["mint"], target["amount"]) == (USDC, "25500000")
    assert transaction["error"] is None
    moves = [step["parsed"] for step in transaction["instructions"] if step["program"] == "spl-token"]
    memos = [step["parsed"] for step in transaction["instructions"] if step["program"] == "spl-memo"]
    assert memos == [answer["transfer_id"]]
    (move,) = moves
    assert move["type"] == "transferChecked"
    assert move["info"]["source"] == payer.usdc_token_account
    assert move["info"]["destination"] == payee.usdc_token_account
    assert move["info"]["tokenAmount"]["amount"] == "25500000"


async def test_a_settled_session_leaves_payments_and_a_closed_escrow_on_chain(surfpool: Surfpool) -> None:
    async with rpc_service.serving(surfpool) as service:
        payer, payee = await service.account("100"), await service.account()
        terms = {"account_id": payer.account_id, "to": payee.account_id, "cap_usdc": "10"}
        session = await service.until_answered("/ext/v1/sessions", {**terms, "idempotency_key": "open"})
        escrow = session["escrow_token_account"]
        (held,) = await witness.testify(surfpool.url, ("token_account", escrow))
        assert (held["mint"], held["amount"]) == (USDC, "10000000")
        path = f"/ext/v1/sessions/{session['session_id']}"
        await service.until_answered(f"{path}/charges", {"amount": "4", "idempotency_key": "charge"})
        closed = await service.until_answered(f"{path}/close", {})
    source, target, is_there, settlement = await witness.testify(
        surfpool.url,
        ("token_account", payer.usdc_token_account),
        ("token_account", payee.usdc_token_account),
        ("is_there", escrow),
        ("transaction", closed["settlement_tx_signature"]),
    )
    assert (source["amount"], target["amount"], is_there) == ("96000000", "4000000", False)
    assert settlement["error"] is None
    types = [step["parsed"]["type"] for step in settlement["instructions"] if step["program"] == "spl-token"]
    assert types == ["transferChecked", "transferChecked", "closeAccount"]
