"""Duplicates that arrive together have one outcome; what a payer writes stays with its operator.

See interface I1 to I9.
"""

from concurrent.futures import ThreadPoolExecutor

from server_world import Funded

from agentpay import AgentPay, InsufficientBalanceError
from agentpay_server import AgentPayServer


def test_concurrent_duplicates_refused_for_balance_share_an_outcome_or_retry(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    source = funded("1").account_id
    to = server.sandbox.create_token_account().usdc_token_account

    def pay(_: int) -> str:
        try:
            client.transfers.create(from_=source, to=to, amount=2, idempotency_key="k")
        except InsufficientBalanceError as refusal:
            return refusal.transfer_id or ""
        raise AssertionError("it was paid")

    with ThreadPoolExecutor(16) as pool:
        transfer_ids = set(pool.map(pay, range(64)))

    # Requests that found none in progress made a separate attempt: each is stored, with one history entry.
    rejections = [e.transfer_id for e in client.accounts.transactions(source, status="rejected", limit=100)]
    assert sorted(rejections) == sorted(transfer_ids)


def test_a_payer_s_memo_is_hidden_from_other_operators(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    source = funded("10").account_id
    own = client.accounts.create(name="own").account_id
    stranger = server.client(api_key=server.sandbox.create_operator("other").key)
    foreign = stranger.accounts.create(name="foreign").account_id
    for to in (own, foreign):
        client.transfers.create(from_=source, to=to, amount=1, memo="for eyes of ours", category="data")

    (ours,) = client.accounts.transactions(own).data
    (theirs,) = stranger.accounts.transactions(foreign).data

    assert (ours.memo, ours.category) == ("for eyes of ours", "data")
    assert (theirs.memo, theirs.category) == (None, None)
    assert theirs.counterparty == source
    assert theirs.amount_usdc == 1
