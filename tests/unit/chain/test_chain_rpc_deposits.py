"""A paged history is complete or refused: not all nodes behind one URL have the same history."""

from typing import Any

import pytest
from rpc_node import TOKEN_ACCOUNT, FakeNode, deposit_json, rpc_chain
from solders.keypair import Keypair

from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.plugins.cluster.client import RpcRefusalError

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]

SIGNATURES = [str(Keypair().sign_message(bytes([number]))) for number in range(8)]
"""Those of an account's transactions, oldest first."""


class Ledger:
    """A node's history of an account, without any hint at missing parts, as on many nodes."""

    def __init__(self, known: list[str]) -> None:
        self.known = known

    def page(self, address: str, options: dict[str, Any]) -> list[dict[str, Any]]:
        newest_first = self.known[::-1]
        start, end = 0, len(newest_first)
        if "before" in options:
            if options["before"] not in newest_first:
                return []
            start = newest_first.index(options["before"]) + 1
        if options.get("until") in newest_first:
            end = newest_first.index(options["until"])
        return [
            {"signature": signature, "slot": 1_000, "err": None, "confirmationStatus": "finalized"}
            for signature in newest_first[start:end][: options["limit"]]
        ]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentpay_server.plugins.cluster.history._MAX_LINES", 3)


async def told(*nodes: Ledger, after: str | None = None) -> list[str]:
    """Return the signatures of all deposits; each page is from the next node, the last one has the rest."""
    node, waiting = FakeNode(), list(nodes)

    def page(address: str, options: dict[str, Any]) -> list[dict[str, Any]]:
        teller = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return teller.page(address, options)

    node.answers["getSignaturesForAddress"] = page
    batches = [batch async for batch in rpc_chain(node).deposits(TOKEN_ACCOUNT, after=after)]
    return [deposit.signature for batch in batches for deposit in batch.deposits]


@pytest.mark.parametrize("count", range(len(SIGNATURES) + 1))
@pytest.mark.parametrize("cursor", [None, 0, 1])
async def test_pages_are_joined_without_a_gap_or_a_repetition(count: int, cursor: int | None) -> None:
    known = SIGNATURES[:count]
    after = None if cursor is None or cursor >= count else SIGNATURES[cursor]
    expected = known if after is None else known[known.index(after) + 1 :]
    assert await told(Ledger(known), after=after) == expected


async def test_a_node_that_lacks_the_start_of_a_page_is_refused() -> None:
    whole, young = Ledger(SIGNATURES), Ledger([SIGNATURES[-1]])
    with pytest.raises(ChainUnreachableError, match="another node has reported"):
        await told(whole, young)


@pytest.mark.parametrize("known", [SIGNATURES[4:], SIGNATURES[:3]], ids=["has forgotten", "lags behind"])
async def test_a_node_that_lacks_the_cursor_is_refused(known: list[str]) -> None:
    with pytest.raises(ChainUnreachableError, match="does not go back"):
        await told(Ledger(known), after=SIGNATURES[3])
    assert await told(Ledger(SIGNATURES), after=SIGNATURES[3]) == SIGNATURES[4:]


async def test_a_history_without_new_deposits_costs_one_request() -> None:
    node, ledger = FakeNode(), Ledger(SIGNATURES)
    node.answers["getSignaturesForAddress"] = ledger.page
    chain = rpc_chain(node)
    assert [batch async for batch in chain.deposits(TOKEN_ACCOUNT, after=SIGNATURES[-1])] == []
    assert node.calls["getSignaturesForAddress"] == 1


async def test_a_deposit_by_a_transaction_of_any_version_is_found() -> None:
    node = FakeNode()

    def newer(signature: str, options: dict[str, Any]) -> Any:
        if options["maxSupportedTransactionVersion"] < 1:
            raise RpcRefusalError("getTransaction", -32015, "Transaction version (1) is not supported", None)
        return deposit_json(signature) | {"version": 1}

    node.answers["getTransaction"] = newer
    (batch,) = [batch async for batch in rpc_chain(node).deposits(TOKEN_ACCOUNT, after=None)]
    assert [deposit.amount_micro for deposit in batch.deposits] == [5]
