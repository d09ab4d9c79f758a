"""Whatever a node responds, the RPC chain returns the truth or reports that it is unknown."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpc_node import SHORTFALL, SIGNED, TOKEN_ACCOUNT, FakeNode, rpc_chain, signed_json
from solders.hash import Hash
from solders.instruction import CompiledInstruction
from solders.keypair import Keypair
from solders.message import MessageAddressTableLookup, MessageHeader, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain.instructions import TOKEN_PROGRAM
from agentpay_server.chain.protocol import ChainUnreachableError, DepositBatch
from agentpay_server.plugins.cluster.chain import RpcChain
from agentpay_server.plugins.cluster.replies import read_landing

pytestmark = pytest.mark.plugin("cluster")

Operation = Callable[[RpcChain], Awaitable[Any]]


async def deposits(chain: RpcChain) -> list[DepositBatch]:
    return [batch async for batch in chain.deposits(TOKEN_ACCOUNT, after=None)]


async def status(chain: RpcChain) -> Any:
    """The status without its words, which are for people."""
    found = await chain.signature_status(SIGNED.signature)
    return found and (found.is_final, found.is_irreversible, found.failure and found.failure.reason)


OPERATIONS: dict[str, tuple[str, Operation]] = {
    "identity": ("getGenesisHash", lambda chain: chain.block_height()),
    "height": ("getEpochInfo", lambda chain: chain.block_height()),
    "blockhash": ("getLatestBlockhash", lambda chain: chain.latest_blockhash()),
    "status": ("getSignatureStatuses", status),
    "failure": ("getTransaction", status),
    "first slot": ("getFirstAvailableBlock", lambda chain: chain.knows_blocks(100, 120)),
    "first height": ("getBlock", lambda chain: chain.knows_blocks(100, 120)),
    "send": ("sendTransaction", lambda chain: chain.send(SIGNED.raw)),
    "simulation": ("simulateTransaction", lambda chain: chain.simulate(SIGNED.raw)),
    "balances": ("getMultipleAccounts", lambda chain: chain.token_accounts([TOKEN_ACCOUNT, TOKEN_ACCOUNT])),
    "size": ("getMultipleAccounts", lambda chain: chain.account_size(TOKEN_ACCOUNT)),
    "rent": ("getMinimumBalanceForRentExemption", lambda chain: chain.rent_exemption(165)),
    "history": ("getSignaturesForAddress", deposits),
    "deposit": ("getTransaction", deposits),
}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["confirmed", "finalized", "base64", "err", TOKEN_ACCOUNT, SIGNED.signature]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["value", "context", "slot", "err"]) | st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every part of a JSON value, itself included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    if not path:
        return part
    changed = copy.deepcopy(value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = part
    return changed


def failed_node() -> FakeNode:
    node = FakeNode()
    node.lands(SHORTFALL)
    return node


async def answered(node: FakeNode, operation: Operation) -> Any:
    chain = rpc_chain(node)
    try:
        async with asyncio.timeout(120):
            return await operation(chain)
    except ChainUnreachableError:
        return ChainUnreachableError
    finally:
        await chain.close()


def answer_of(node: FakeNode, method: str, operation: Operation) -> Any:
    """Return a healthy node's response to the operation's call of `method`."""
    answers: list[Any] = []
    healthy = node.answers[method]

    def recorded(*params: Any) -> Any:
        answers.append(healthy(*params))
        return answers[-1]

    node.answers[method] = recorded
    asyncio.run(answered(node, operation))
    node.answers[method] = healthy
    return answers[0]


HEALTHY = {
    name: answer_of(failed_node(), method, operation) for name, (method, operation) in OPERATIONS.items()
}
TRUTH = {name: asyncio.run(answered(failed_node(), operation)) for name, (_, operation) in OPERATIONS.items()}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


def test_responses_of_a_healthy_node_are_accepted() -> None:
    assert ChainUnreachableError not in TRUTH.values()
    assert TRUTH["status"][0]
    assert TRUTH["deposit"][0].deposits[0].amount_micro == 5


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
def test_any_response_gives_a_value_or_the_declared_error(
    runner: asyncio.Runner, name: str, data: st.DataObject
) -> None:
    method, operation = OPERATIONS[name]
    path = data.draw(st.sampled_from(places(HEALTHY[name])))
    hostile = replaced(HEALTHY[name], path, data.draw(JSON))
    node = failed_node()
    node.answers[method] = lambda *params: hostile
    runner.run(answered(node, operation))


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_missing_or_null_field_is_never_read_as_another_value(name: str) -> None:
    method, operation = OPERATIONS[name]
    for path in places(HEALTHY[name]):
        if not path or not isinstance(path[-1], str) or "err" in path[:-1]:
            continue
        null = replaced(HEALTHY[name], path, None)
        missing = copy.deepcopy(null)
        holder = missing
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
        # A null error is a statement: it succeeded.
        for variant in [missing] if path[-1] == "err" else [missing, null]:
            node = failed_node()
            node.answers[method] = lambda *params, variant=variant: variant
            assert asyncio.run(answered(node, operation)) in (TRUTH[name], ChainUnreachableError), path


@given(error=JSON.filter(lambda value: value is not None))
def test_an_error_of_any_form_is_never_a_success(runner: asyncio.Runner, error: Any) -> None:
    node = FakeNode()
    node.lands(error)
    found = runner.run(answered(node, lambda chain: chain.signature_status(SIGNED.signature)))
    assert found is ChainUnreachableError or found.failure is not None


@pytest.mark.parametrize("wrong", [True, 1.0, "1", -1, 2**64, None, [], {}, float("nan")])
def test_numbers_that_are_not_64_bit_integers_are_refused(wrong: Any) -> None:
    for name, number in (("height", ("blockHeight",)), ("blockhash", ("value", "lastValidBlockHeight"))):
        method, operation = OPERATIONS[name]
        node = failed_node()
        node.answers[method] = lambda *params, name=name, number=number: replaced(
            HEALTHY[name], number, wrong
        )
        assert asyncio.run(answered(node, operation)) is ChainUnreachableError


@pytest.mark.parametrize("amount", ["-5", "5.0", "\u0665", "", "1" * 30, " 5", "5e3", "+5", 5, None])
def test_an_amount_that_is_not_an_integer_is_refused(amount: Any) -> None:
    method, operation = OPERATIONS["deposit"]
    path = ("meta", "postTokenBalances", 0, "uiTokenAmount", "amount")
    node = failed_node()
    node.answers[method] = lambda *params: replaced(HEALTHY["deposit"], path, amount)
    assert asyncio.run(answered(node, operation)) is ChainUnreachableError


def test_a_block_height_above_its_slot_is_refused() -> None:
    node = FakeNode()
    node.height = node.slot + 1
    assert asyncio.run(answered(node, OPERATIONS["height"][1])) is ChainUnreachableError


@pytest.mark.parametrize(
    "data", ["AA==", ["AA==", "base58"], ["A", "base64"], ["AA==", "base64", ""], ["\ud800", "base64"]]
)
def test_account_data_in_another_encoding_is_refused(data: Any) -> None:
    node = FakeNode()
    account = {"data": data, "owner": TOKEN_ACCOUNT, "lamports": 1}
    node.answers["getMultipleAccounts"] = lambda *params: {"value": [account]}
    assert asyncio.run(answered(node, OPERATIONS["size"][1])) is ChainUnreachableError


@pytest.mark.parametrize("commitment", ["rooted", "", "Finalized"])
def test_an_unknown_commitment_is_refused(commitment: str) -> None:
    node = FakeNode()
    node.lands(commitment=commitment)
    assert asyncio.run(answered(node, OPERATIONS["status"][1])) is ChainUnreachableError


def test_an_instruction_of_a_program_from_a_lookup_table_is_found() -> None:
    payer = Keypair()
    looked_up = MessageV0(
        MessageHeader(1, 0, 0),
        [payer.pubkey()],
        Hash.default(),
        [CompiledInstruction(1, b"", b"")],
        [MessageAddressTableLookup(Pubkey.default(), b"", b"\x00")],
    )
    transaction = VersionedTransaction(looked_up, [payer])
    told = {**signed_json(bytes(transaction), 1_000, SHORTFALL), "version": 0}
    told["meta"]["loadedAddresses"] = {"writable": [], "readonly": [str(TOKEN_PROGRAM)]}
    signature = str(transaction.signatures[0])
    assert read_landing(told, signature).programs == (str(TOKEN_PROGRAM),)
    told["meta"]["loadedAddresses"] = {"writable": [], "readonly": []}
    with pytest.raises(ChainUnreachableError):
        read_landing(told, signature)
