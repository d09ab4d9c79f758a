"""The RPC chain's calls, their number, and what it accepts, against a node that a test controls."""

import asyncio
from typing import Any

import pytest
from rpc_node import (
    BLOCKHASH,
    CUSTODY,
    GENESIS_HASH,
    OWNER,
    SENDER,
    SHORTFALL,
    SIGNED,
    TOKEN_ACCOUNT,
    USDC,
    FakeNode,
    account_json,
    balance_json,
    deposit_json,
    rpc_chain,
    signed_json,
    token_account,
)
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from agentpay_server.chain import transactions
from agentpay_server.chain.custody import TransactionTooLargeError
from agentpay_server.chain.instructions import TOKEN_2022_PROGRAM
from agentpay_server.chain.protocol import (
    Absence,
    Blockhash,
    ChainFailure,
    ChainUnreachableError,
    ComputeBudget,
    Deposit,
    FailureReason,
    SignatureStatus,
    SignedTransaction,
    UnprovenError,
)
from agentpay_server.plugins.cluster.client import RpcRefusalError

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


def raising(error: Exception) -> Any:
    def answer(*params: object) -> object:
        raise error

    return answer


def refusal(err: Any, detail: str = "Transaction simulation failed", code: int = -32002) -> RpcRefusalError:
    return RpcRefusalError("sendTransaction", code, detail, {"err": err})


# --- Statuses


@pytest.mark.parametrize(
    ("finality", "commitment", "expected"),
    [
        ("confirmed", "processed", SignatureStatus(is_final=False)),
        ("confirmed", "confirmed", SignatureStatus(is_final=True, is_irreversible=False)),
        ("confirmed", "finalized", SignatureStatus(is_final=True, is_irreversible=True)),
        ("finalized", "confirmed", SignatureStatus(is_final=False)),
        ("finalized", "finalized", SignatureStatus(is_final=True, is_irreversible=True)),
    ],
)
async def test_the_finality_setting_decides_which_commitment_is_final(
    finality: str, commitment: str, expected: SignatureStatus
) -> None:
    node = FakeNode()
    node.lands(commitment=commitment)
    assert await rpc_chain(node, finality=finality).signature_status(SIGNED.signature) == expected


async def test_a_missing_status_from_a_lagging_node_is_unavailable() -> None:
    node = FakeNode()
    chain = rpc_chain(node)
    node.slot, node.height = 2_000, 901
    assert await chain.block_height() > SIGNED.last_valid_block_height
    node.slot = 1_999  # The response comes from a node that lacks the last block.
    with pytest.raises(ChainUnreachableError, match="lags behind"):
        await chain.signature_status(SIGNED.signature)
    node.lands()  # Its positive information is still true.
    status = await chain.signature_status(SIGNED.signature)
    assert status is not None
    node.statuses.clear()
    node.slot = 2_000
    assert await chain.signature_status(SIGNED.signature) is None


async def test_a_node_does_not_know_blocks_before_its_first_available_one() -> None:
    node = FakeNode()
    chain = rpc_chain(node)
    assert await chain.knows_blocks(100, 250)
    assert not await chain.knows_blocks(99, 249)
    node.answers["getGenesisHash"] = lambda: USDC  # The node that did not know the signature.
    with pytest.raises(ChainUnreachableError, match="serves the cluster"):
        await chain.knows_blocks(100, 250)
    node.answers["getGenesisHash"] = lambda: GENESIS_HASH
    node.answers["getBlock"] = raising(RpcRefusalError("getBlock", -32001, "Block 300 cleaned up", None))
    with pytest.raises(ChainUnreachableError, match="cleaned up"):
        await chain.knows_blocks(100, 250)


@pytest.mark.parametrize("commitment", ["processed", "confirmed"])
async def test_the_reason_of_a_failure_is_read_only_when_it_is_irreversible(commitment: str) -> None:
    node = FakeNode()
    node.lands(SHORTFALL, commitment)
    assert await rpc_chain(node).signature_status(SIGNED.signature) == SignatureStatus(is_final=False)
    assert node.calls["getTransaction"] == 0


async def test_the_failure_reason_depends_on_the_program_that_was_called() -> None:
    node = FakeNode()
    node.lands(SHORTFALL)
    status = await rpc_chain(node).signature_status(SIGNED.signature)
    assert status is not None
    assert status.failure == ChainFailure(
        reason=FailureReason.INSUFFICIENT_FUNDS, detail=f"{SHORTFALL}: Error: insufficient funds"
    )
    memo_failed = {"InstructionError": [1, {"Custom": 1}]}
    node.lands(memo_failed)
    status = await rpc_chain(node).signature_status(SIGNED.signature)
    assert status is not None
    assert status.failure == ChainFailure(
        reason=FailureReason.OTHER, detail=f"{memo_failed}: Error: insufficient funds"
    )
    for unknown in ("AccountNotFound", {"InsufficientFundsForRent": {"account_index": 0}}):
        node.lands(unknown)
        status = await rpc_chain(node).signature_status(SIGNED.signature)
        assert status is not None
        assert status.failure is not None
        assert status.failure.reason is FailureReason.OTHER


# --- Evidence

OTHER: SignedTransaction = transactions.transfer(
    CUSTODY,
    Blockhash(value=BLOCKHASH, last_valid_block_height=900),
    usdc_mint=USDC,
    account_index=1,
    source=TOKEN_ACCOUNT,
    recipient=SENDER,
    amount_micro=5,
    memo="txn_2",
)


@pytest.mark.parametrize("error", [None, SHORTFALL], ids=["success", "failure"])
async def test_an_outcome_without_its_transaction_is_unproven(error: Any) -> None:
    node = FakeNode()
    node.lands(error)
    healthy = node.answers["getTransaction"]
    chain = rpc_chain(node, name="devnet")
    for told in (
        None,
        signed_json(SIGNED.raw, node.slot, SHORTFALL if error is None else None),
        signed_json(SIGNED.raw, node.slot, {"InstructionError": [0, {"Custom": 4}]}),
        signed_json(SIGNED.raw, node.slot - 1, error),
    ):
        node.answers["getTransaction"] = lambda *params, told=told: told
        with pytest.raises(UnprovenError):
            await chain.signature_status(SIGNED.signature)
    node.answers["getTransaction"] = lambda *params: signed_json(OTHER.raw, node.slot, error)
    with pytest.raises(ChainUnreachableError, match="another transaction"):
        await chain.signature_status(SIGNED.signature)
    node.answers["getTransaction"] = healthy
    status = await chain.signature_status(SIGNED.signature)
    assert status is not None
    assert (status.failure is None) == (error is None)


async def test_an_outcome_in_a_slot_that_is_not_irreversible_is_unproven() -> None:
    node = FakeNode()
    chain = rpc_chain(node, name="devnet")
    assert await chain.block_height() == node.height
    node.slot += 100
    node.lands(commitment="finalized")
    with pytest.raises(UnprovenError):
        await chain.signature_status(SIGNED.signature)


async def test_the_evidence_of_an_outcome_is_read_once_and_of_its_finality_from_the_shared_history() -> None:
    node = FakeNode()
    node.lands()
    chain = rpc_chain(node, name="devnet")
    for _ in range(3):
        await chain.signature_status(SIGNED.signature)
    assert (node.calls["getTransaction"], node.calls["getSignaturesForAddress"]) == (1, 0)
    node.lands(commitment="finalized")
    for _ in range(3):
        status = await chain.signature_status(SIGNED.signature)
        assert status is not None
        assert status.is_irreversible
    assert (node.calls["getTransaction"], node.calls["getSignaturesForAddress"]) == (1, 1)


async def test_finality_that_the_history_does_not_show_is_read_from_the_transaction() -> None:
    node = FakeNode()
    node.lands()
    chain = rpc_chain(node, name="devnet")
    await chain.signature_status(SIGNED.signature)
    node.lands(commitment="finalized")
    node.answers["getSignaturesForAddress"] = lambda *params: []
    healthy, node.answers["getTransaction"] = node.answers["getTransaction"], lambda *params: None
    with pytest.raises(UnprovenError):
        await chain.signature_status(SIGNED.signature)
    node.answers["getTransaction"] = healthy
    assert await chain.signature_status(SIGNED.signature) is not None


async def test_absence_needs_the_transaction_and_the_history_besides_the_status() -> None:
    node = FakeNode()
    node.slot, node.height = 2_000, 1_800
    node.answers["getBlocksWithLimit"] = lambda first, most, options: list(range(first, first + most))
    chain = rpc_chain(node, name="devnet")
    absence = Absence(token_account=TOKEN_ACCOUNT, first_height=600, last_height=900)
    line = {"signature": OTHER.signature, "slot": 1_000, "err": None, "confirmationStatus": "finalized"}
    own = {**line, "signature": SIGNED.signature}
    older = {**line, "slot": 799}
    history = [line, older]
    node.answers["getSignaturesForAddress"] = lambda address, options: history

    assert await chain.signature_status(SIGNED.signature, absence=absence) is None
    history = [own, older]
    with pytest.raises(UnprovenError, match="history"):
        await chain.signature_status(SIGNED.signature, absence=absence)
    history = [line]
    # Without a line that is older than the transaction can be, more may be missing.
    with pytest.raises(ChainUnreachableError):
        await chain.signature_status(SIGNED.signature, absence=absence)
    history = [line, older]
    node.answers["getTransaction"] = lambda *params: signed_json(SIGNED.raw, node.slot)
    with pytest.raises(UnprovenError, match="returns a transaction"):
        await chain.signature_status(SIGNED.signature, absence=absence)


async def test_a_hundred_waiting_transfers_share_two_requests() -> None:
    node = FakeNode()
    chain = rpc_chain(node)

    async def look() -> None:
        await chain.block_height()
        assert await chain.signature_status(SIGNED.signature) is None

    await asyncio.gather(*(look() for _ in range(100)), chain.signature_status("malformed"))
    assert (node.calls["getEpochInfo"], node.calls["getSignatureStatuses"]) == (1, 1)
    assert node.calls["getGenesisHash"] == 1, "checked only periodically"


# --- Sending


async def test_a_send_disables_node_retries_and_runs_preflight_at_confirmed() -> None:
    node = FakeNode()
    seen: list[Any] = []
    healthy = node.answers["sendTransaction"]
    node.answers["sendTransaction"] = lambda raw, options: (seen.append(options), healthy(raw, options))[1]
    await rpc_chain(node).send(SIGNED.raw)
    assert seen == [
        {"encoding": "base64", "maxRetries": 0, "preflightCommitment": "confirmed", "skipPreflight": False}
    ]


@pytest.mark.parametrize(
    "error", [refusal("AlreadyProcessed"), refusal(None, "This transaction has already been processed")]
)
async def test_a_duplicate_send_counts_as_sent(error: RpcRefusalError) -> None:
    node = FakeNode()
    node.answers["sendTransaction"] = raising(error)
    await rpc_chain(node).send(SIGNED.raw)
    assert node.calls["sendTransaction"] == 1


async def test_a_transaction_that_fails_preflight_is_sent_without_preflight() -> None:
    node = FakeNode()
    healthy = node.answers["sendTransaction"]

    def preflight(raw: str, options: dict[str, Any]) -> object:
        if options["skipPreflight"]:
            return healthy(raw, options)
        raise refusal(SHORTFALL)

    node.answers["sendTransaction"] = preflight
    await rpc_chain(node).send(SIGNED.raw)
    assert node.calls["sendTransaction"] == 2


async def test_a_transaction_that_must_not_fail_is_not_sent_after_a_failed_preflight() -> None:
    node = FakeNode()
    node.answers["sendTransaction"] = raising(refusal(SHORTFALL))
    with pytest.raises(ChainUnreachableError):
        await rpc_chain(node).send(SIGNED.raw, even_if_failing=False)
    assert node.calls["sendTransaction"] == 1
    node.answers["sendTransaction"] = raising(refusal("AlreadyProcessed"))
    await rpc_chain(node).send(SIGNED.raw, even_if_failing=False)


@pytest.mark.parametrize(
    "error",
    [
        refusal("BlockhashNotFound"),
        refusal("AccountNotFound"),
        refusal(None, "Node is behind by 42 slots", -32005),
        RpcRefusalError("sendTransaction", -32602, "invalid params", None),
        ChainUnreachableError("scripted"),
    ],
)
async def test_every_other_refusal_of_a_send_is_unavailable(error: ChainUnreachableError) -> None:
    node = FakeNode()
    node.answers["sendTransaction"] = raising(error)
    with pytest.raises(ChainUnreachableError):
        await rpc_chain(node).send(SIGNED.raw)
    assert node.calls["sendTransaction"] == 1


async def test_a_send_reply_with_another_signature_is_refused() -> None:
    node = FakeNode()
    node.answers["sendTransaction"] = lambda *params: "1" * 64
    with pytest.raises(ChainUnreachableError, match="signature of another transaction"):
        await rpc_chain(node).send(SIGNED.raw)


async def test_invalid_transactions_are_not_sent() -> None:
    node = FakeNode()
    chain = rpc_chain(node)
    with pytest.raises(TransactionTooLargeError):
        await chain.send(bytes(1_233))
    for raw in (b"", b"\x05", b"\x00" + SIGNED.raw[129:]):
        with pytest.raises(ValueError):
            await chain.send(raw)
    assert not node.calls


# --- Reading


async def test_balances_are_read_in_hundreds_at_the_settlement_commitment() -> None:
    node = FakeNode()
    asked: list[Any] = []
    healthy = node.answers["getMultipleAccounts"]
    node.answers["getMultipleAccounts"] = lambda addresses, options: (
        asked.append((len(addresses), options["commitment"])),
        healthy(addresses, options),
    )[1]
    addresses = [str(Keypair().pubkey()) for _ in range(149)] + [TOKEN_ACCOUNT]
    found = await rpc_chain(node, finality="finalized").token_accounts(addresses)
    assert found[-1] is not None
    assert (found[-1].owner, found[-1].amount_micro) == (OWNER, 7)
    assert sorted(asked) == [(50, "finalized"), (100, "finalized")]


async def test_an_account_of_another_program_or_mint_is_no_token_account() -> None:
    node = FakeNode()
    right = account_json(token_account(7))
    foreign = {**right, "owner": str(TOKEN_2022_PROGRAM)}
    other_mint = account_json(token_account(7, mint=OWNER))
    for told in (foreign, other_mint):
        node.answers["getMultipleAccounts"] = lambda *params, told=told: {"value": [told]}
        assert await rpc_chain(node).token_accounts([TOKEN_ACCOUNT]) == [None]


async def test_the_compute_budget_comes_with_the_blockhash() -> None:
    chain = rpc_chain(FakeNode(), priority_fee_micro_lamports=5, compute_unit_limit=70_000)
    blockhash = await chain.latest_blockhash()
    assert blockhash.value == BLOCKHASH
    assert blockhash.compute_budget == ComputeBudget(unit_limit=70_000, unit_price_micro_lamports=5)
    assert (await rpc_chain(FakeNode()).latest_blockhash()).compute_budget is None


# --- The cluster behind the endpoint


async def test_another_cluster_at_the_same_address_after_an_outage_is_refused() -> None:
    node = FakeNode()
    chain = rpc_chain(node)
    healthy = node.answers["getMultipleAccounts"]
    await chain.account_size(OWNER)
    node.answers["getMultipleAccounts"] = raising(ChainUnreachableError("scripted"))
    with pytest.raises(ChainUnreachableError, match="scripted"):
        await chain.account_size(OWNER)
    node.answers["getMultipleAccounts"] = healthy
    node.answers["getGenesisHash"] = lambda: USDC
    for _ in range(2):
        with pytest.raises(ChainUnreachableError, match=f"serves the cluster {USDC}"):
            await chain.account_size(OWNER)
    node.answers["getGenesisHash"] = lambda: GENESIS_HASH
    assert await chain.account_size(TOKEN_ACCOUNT) == (2_039_280, 165)


# --- Deposits


async def deposits(node: FakeNode) -> list[Deposit]:
    return [
        deposit
        async for batch in rpc_chain(node).deposits(TOKEN_ACCOUNT, after=None)
        for deposit in batch.deposits
    ]


def telling(*, before: list[Any], after: list[Any]) -> FakeNode:
    told = deposit_json(SIGNED.signature)
    told["meta"] |= {"preTokenBalances": before, "postTokenBalances": after}
    node = FakeNode()
    node.answers["getTransaction"] = lambda *params: told
    return node


async def test_a_posted_transaction_is_not_read_again_and_advances_the_cursor() -> None:
    async def posted() -> set[str]:
        return {SIGNED.signature}

    node = FakeNode()
    told = rpc_chain(node).deposits(TOKEN_ACCOUNT, after=None, posted=posted)
    (batch,) = [batch async for batch in told]
    assert (batch.deposits, batch.cursor) == ((), SIGNED.signature)
    assert node.calls["getTransaction"] == 0


async def test_of_a_large_account_only_the_beginning_is_read() -> None:
    def sliced(addresses: list[str], options: dict[str, Any]) -> dict[str, Any]:
        part, large = options["dataSlice"], bytes(10_000_000)
        data = large[part["offset"] :][: part["length"]]
        account = account_json(Account(1, data, Pubkey.from_string(OWNER)))
        return {"context": {"slot": 1_000}, "value": [account for _ in addresses]}

    node = FakeNode()
    node.answers["getMultipleAccounts"] = sliced
    (found,) = await rpc_chain(node).account_data([OWNER])
    assert found is not None
    assert len(found.data) <= 1_000


BOTH = [balance_json(0, 3), balance_json(2, 4)]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ([], [balance_json(1, 7)], (7, (), ())),
        ([balance_json(2, 7)], [balance_json(1, 7)], (7, (SENDER,), ())),  # Emptied and closed by it.
        (BOTH, [balance_json(1, 7)], (7, (OWNER, SENDER), ())),
        (
            [*BOTH, balance_json(1, 2)],
            [balance_json(0, 2), balance_json(1, 3), balance_json(2, 4)],
            (1, (OWNER,), (SENDER,)),
        ),
        ([], [balance_json(1, 7, mint=OWNER)], None),
        ([balance_json(1, 7)], [balance_json(1, 7)], None),
        ([balance_json(1, 7)], [], None),
    ],
    ids=["new", "from a closed one", "from two", "others", "another mint", "unchanged", "outgoing"],
)
async def test_a_deposit_is_what_an_account_has_gained(
    before: list[Any], after: list[Any], found: Any
) -> None:
    node = telling(before=before, after=after)
    told = [(each.amount_micro, each.senders, each.others) for each in await deposits(node)]
    assert told == ([] if found is None else [found])
    node.answers["getTransaction"]()["meta"]["err"] = SHORTFALL
    assert await deposits(node) == []


@pytest.mark.parametrize(("told", "says"), [(None, "yet"), (deposit_json("1" * 64), "another transaction")])
async def test_a_listed_transaction_that_a_node_does_not_tell_is_unavailable(told: Any, says: str) -> None:
    node = FakeNode()
    node.answers["getTransaction"] = lambda *params: told
    with pytest.raises(ChainUnreachableError, match=says):
        await deposits(node)


@pytest.mark.parametrize(
    "after",
    [
        [balance_json(1, 7, decimals=9)],
        [balance_json(1, 7), balance_json(1, 8)],
        [balance_json(3, 7)],
    ],
)
async def test_invalid_balances_are_refused(after: list[Any]) -> None:
    with pytest.raises(ChainUnreachableError, match="makes no sense"):
        await deposits(telling(before=[], after=after))


async def test_deposits_are_reported_only_up_to_the_first_reversible_transaction() -> None:
    signatures = [str(Keypair().sign_message(bytes([n]))) for n in range(3)]
    lines = [
        {"signature": signature, "slot": 1_000, "err": None, "confirmationStatus": commitment}
        for signature, commitment in zip(signatures, ["finalized", "confirmed", "finalized"], strict=True)
    ]
    node = FakeNode()
    node.answers["getSignaturesForAddress"] = lambda *params: lines
    told = [deposit.signature for deposit in await deposits(node)]
    assert told == [signatures[2]]  # Only the oldest.


async def test_a_node_that_pages_in_a_circle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentpay_server.plugins.cluster.history._MAX_LINES", 2)
    signatures = [str(Keypair().sign_message(bytes([n]))) for n in range(2)]
    node, pages = FakeNode(), [signatures, signatures[::-1]]
    node.answers["getSignaturesForAddress"] = lambda *params: [
        {"signature": signature, "slot": 1_000, "err": None, "confirmationStatus": "finalized"}
        for signature in pages.pop(0)
    ]
    with pytest.raises(ChainUnreachableError, match="repeats itself"):
        await deposits(node)
