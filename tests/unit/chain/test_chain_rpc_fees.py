"""Compute limits that simulations have told, and prices that follow others, within the settings."""

import asyncio
from typing import Any

import pytest
from attrs import evolve
from rpc_node import CUSTODY, SENDER, SIGNED, TOKEN_ACCOUNT, USDC, FakeNode, rpc_chain
from solders.transaction import Transaction, VersionedTransaction

from agentpay_server.chain import transactions
from agentpay_server.chain.custody import shape_of
from agentpay_server.chain.instructions import COMPUTE_BUDGET_PROGRAM
from agentpay_server.chain.protocol import Blockhash, ChainUnreachableError, ComputeBudget, SignedTransaction
from agentpay_server.engine.funding import transfer_fee
from agentpay_server.plugins.cluster import fees as module
from agentpay_server.plugins.cluster.chain import RpcChain
from agentpay_server.plugins.cluster.client import RpcRefusalError

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


def transfer(blockhash: Blockhash, memo: str = "txn_1") -> SignedTransaction:
    return transactions.transfer(
        CUSTODY,
        blockhash,
        usdc_mint=USDC,
        account_index=1,
        source=TOKEN_ACCOUNT,
        recipient=SENDER,
        amount_micro=5,
        memo=memo,
    )


def said(signed: SignedTransaction) -> tuple[int, int] | None:
    """Return the limit and the price that a transaction says."""
    message = Transaction.from_bytes(signed.raw).message
    data = [
        bytes(step.data)
        for step in message.instructions
        if message.account_keys[step.program_id_index] == COMPUTE_BUDGET_PROGRAM
    ]
    if not data:
        return None
    limit, price = (int.from_bytes(part[1:], "little") for part in data)
    return limit, price


async def sent(chain: RpcChain, memo: str = "txn_1") -> SignedTransaction:
    signed = transfer(await chain.latest_blockhash(), memo)
    await chain.send(signed.raw)
    return signed


async def test_a_transaction_shape_is_simulated_once_and_the_limit_reused() -> None:
    node = FakeNode()
    chain = rpc_chain(node, priority_fee_micro_lamports=7, compute_unit_limit=50_000)
    limits = [said(await sent(chain, f"txn_{number}")) for number in range(3)]
    assert limits == [(50_000, 7), (2_060, 7), (2_060, 7)]
    assert node.calls["simulateTransaction"] == 1
    assert node.calls["sendTransaction"] == 3


async def test_other_shapes_have_limits_of_their_own() -> None:
    node = FakeNode()
    chain = rpc_chain(node, priority_fee_micro_lamports=7)
    await sent(chain)
    assert [said(await sent(chain, memo * 300)) for memo in "mn"] == [(60_000, 7), (2_060, 7)]
    # A learned limit never exceeds the configured one.
    low = rpc_chain(FakeNode(), priority_fee_micro_lamports=7, compute_unit_limit=1_400)
    assert [said(await sent(low)) for _ in range(2)] == [(1_400, 7)] * 2
    # Nothing is simulated without a price, nor for accounts, whose addresses are searched for.
    for node, settings, limit in (
        (FakeNode(), {}, None),
        (FakeNode(), {"priority_fee_micro_lamports": 7}, 60_000),
    ):
        chain = rpc_chain(node, **settings)
        blockhash = await chain.latest_blockhash()
        signed = transfer(blockhash) if limit is None else provision(blockhash)
        for _ in range(2):
            await chain.send(signed.raw)
        assert said(signed) == (None if limit is None else (limit, 7))
        assert node.calls["simulateTransaction"] == 0


@pytest.mark.parametrize(
    "told",
    [
        {"err": {"InstructionError": [0, {"Custom": 1}]}, "unitsConsumed": 10},
        {"err": None, "unitsConsumed": 0},
        {"err": None},
        None,
    ],
)
async def test_a_failed_simulation_changes_no_limit_and_is_not_repeated_at_once(told: Any) -> None:
    node = FakeNode()

    def simulate(*_: Any) -> Any:
        if told is None:
            raise ChainUnreachableError("scripted")
        return {"value": told}

    node.answers["simulateTransaction"] = simulate
    chain = rpc_chain(node, priority_fee_micro_lamports=7)
    await sent(chain)
    assert said(await sent(chain)) == (60_000, 7)
    assert node.calls["simulateTransaction"] == 1
    assert node.calls["sendTransaction"] == 2


async def test_a_shape_is_simulated_again_periodically_and_keeps_the_higher_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LEARNED_SECONDS", 0)
    node = FakeNode()
    chain = rpc_chain(node, priority_fee_micro_lamports=7)
    await sent(chain)
    node.answers["simulateTransaction"] = lambda *params: {"value": {"err": None, "unitsConsumed": 2_000}}
    await sent(chain)
    node.answers["simulateTransaction"] = lambda *params: {"value": {"err": None, "unitsConsumed": 10}}
    await sent(chain)
    assert said(await sent(chain)) == (3_000, 7)


async def test_a_limit_that_was_exceeded_is_dropped() -> None:
    node = FakeNode()
    chain = rpc_chain(node, priority_fee_micro_lamports=7)
    await sent(chain)
    answer = node.answers["sendTransaction"]

    def exceeded(raw: str, options: dict[str, Any]) -> Any:
        if not options["skipPreflight"]:
            error = {"InstructionError": [0, "ComputationalBudgetExceeded"]}
            raise RpcRefusalError("sendTransaction", -32002, "simulation failed", {"err": error})
        return answer(raw, options)

    node.answers["sendTransaction"] = exceeded
    assert said(await sent(chain)) == (2_060, 7)
    node.answers["sendTransaction"] = answer
    assert said(await sent(chain)) == (60_000, 7)


def test_the_compute_budget_is_not_part_of_a_shape() -> None:
    plain = VersionedTransaction.from_bytes(SIGNED.raw)
    blockhash = Blockhash(value=str(plain.message.recent_blockhash), last_valid_block_height=1)
    budget = module.ComputeBudget(unit_limit=1, unit_price_micro_lamports=1)
    with_budget = transfer(evolve(blockhash, compute_budget=budget))
    message = VersionedTransaction.from_bytes(with_budget.raw).message
    assert shape_of(message) == shape_of(plain.message) is not None


# --- Prices


async def settled_price(chain: RpcChain) -> int | None:
    """Return the price once its request has a response."""
    await chain.latest_blockhash()
    for _ in range(10):
        await asyncio.sleep(0)
    budget = (await chain.latest_blockhash()).compute_budget
    return None if budget is None else budget.unit_price_micro_lamports


def telling(told: Any) -> FakeNode:
    node = FakeNode()
    node.answers["getRecentPrioritizationFees"] = lambda: told
    return node


def paying(*prices: int) -> FakeNode:
    return telling([{"slot": slot, "prioritizationFee": price} for slot, price in enumerate(prices)])


@pytest.mark.parametrize(
    ("prices", "offered"),
    [((), 10), ((0, 0, 0, 0), 10), ((40, 10, 30, 20), 40), ((5, 20, 30), 30), ((900,), 500)],
)
async def test_the_price_follows_recent_fees_within_its_bounds(prices: tuple[int, ...], offered: int) -> None:
    chain = rpc_chain(paying(*prices), priority_fee_micro_lamports=10, priority_fee_cap_micro_lamports=500)
    assert await settled_price(chain) == offered


async def test_without_recent_fees_the_least_is_offered() -> None:
    for told in (None, [{}], [{"prioritizationFee": -1}], [{"prioritizationFee": "7"}], {}):
        limits = {"priority_fee_micro_lamports": 10, "priority_fee_cap_micro_lamports": 500}
        assert await settled_price(rpc_chain(telling(told), **limits)) == 10
    assert await settled_price(rpc_chain(paying(0), priority_fee_cap_micro_lamports=500)) is None


async def test_the_price_is_read_in_the_background_and_cached() -> None:
    node = paying(30)
    chain = rpc_chain(node, priority_fee_micro_lamports=10, priority_fee_cap_micro_lamports=500)
    budget = (await chain.latest_blockhash()).compute_budget
    assert budget is not None
    assert budget.unit_price_micro_lamports == 10
    assert await settled_price(chain) == 30
    assert node.calls["getRecentPrioritizationFees"] == 1
    await chain.close()


def test_a_priority_fee_counts() -> None:
    blockhash = Blockhash(value="hash", last_valid_block_height=1)
    assert transfer_fee(blockhash) == 10_000
    budget = ComputeBudget(unit_limit=60_000, unit_price_micro_lamports=1_001)
    dearer = Blockhash(value="hash", last_valid_block_height=1, compute_budget=budget)
    assert transfer_fee(dearer) == 10_000 + 61


def provision(blockhash: Blockhash) -> SignedTransaction:
    return transactions.provision_accounts(
        CUSTODY,
        blockhash,
        usdc_mint=USDC,
        present_lamports={1: 0},
        rent_exempt_lamports=890_880,
    )
