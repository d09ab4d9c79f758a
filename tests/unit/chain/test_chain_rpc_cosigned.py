"""Payments whose fee their seller pays: found by message and signature, and never given up without proof."""

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest
from rpc_node import (
    BLOCKHASH,
    CUSTODY,
    OWNER,
    SHORTFALL,
    TOKEN_ACCOUNT,
    USDC,
    FakeNode,
    rpc_chain,
    signed_json,
)
from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.transaction import VersionedTransaction

from agentpay_server.chain.custody import spending_key
from agentpay_server.chain.protocol import Blockhash, ChainUnreachableError, Cosigned, FailureReason
from agentpay_server.plugins.cluster.chain_head import ChainHead
from agentpay_server.plugins.cluster.client import RpcRefusalError
from agentpay_server.plugins.pay402.building import PreparedPayment, build_payment
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Leg, Network, Protocol

if TYPE_CHECKING:
    from agentpay_server.plugins.cluster.chain import RpcChain

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]

SPONSOR = Keypair.from_seed(b"who pays fees for its customers.")
SELLER = CUSTODY.address(spending_key(2))


def prepared(nonce: int) -> PreparedPayment:
    """Return a payment as it is handed out: the fee payer's signature is missing."""
    return build_payment(
        CUSTODY,
        Blockhash(value=BLOCKHASH, last_valid_block_height=900),
        ChallengeTerms(
            protocol=Protocol.MPP,
            network=Network.DEVNET,
            mint=USDC,
            legs=(Leg(recipient=SELLER, amount_micro=1_000),),
            fee_payer=str(SPONSOR.pubkey()),
        ),
        payer_key=spending_key(1),
        usdc_mint=USDC,
        own_addresses={OWNER},
        nonce=nonce,
        nonce_memo="txn_1",
    )


def completed(raw: bytes, *, ours: bytes | None = None) -> VersionedTransaction:
    """Return a payment that its sponsor has signed; with a given signature instead of ours."""
    handed_out = VersionedTransaction.from_bytes(raw)
    message = handed_out.message
    sponsor = SPONSOR.sign_message(to_bytes_versioned(message))
    own = handed_out.signatures[1] if ours is None else type(sponsor).from_bytes(ours)
    return VersionedTransaction.populate(message, [sponsor, own])


def name_of(transaction: VersionedTransaction) -> str:
    return str(transaction.signatures[0])


PAYMENT = prepared(0)
LANDED = completed(PAYMENT.raw)
OTHERS = [completed(prepared(number).raw) for number in range(1, 8)]
ANCHOR, *NEWER = OTHERS


def sought(after: VersionedTransaction | None = ANCHOR) -> Cosigned:
    return Cosigned(
        token_account=TOKEN_ACCOUNT,
        signature=PAYMENT.signature,
        message_hash=PAYMENT.message_hash,
        after=None if after is None else name_of(after),
    )


class Ledger(FakeNode):
    """A node with a history of the payer's token account.

    Args:
        transactions: oldest first.
    """

    def __init__(self, *transactions: VersionedTransaction) -> None:
        super().__init__()
        self.transactions = list(transactions)
        self.reversible: set[str] = set()
        self.asked: list[dict[str, Any]] = []
        self.read: list[str] = []
        self.answers["getSignaturesForAddress"] = self._page
        self.answers["getTransaction"] = self._transaction
        for transaction in transactions:
            self.sees(transaction)

    def sees(self, transaction: VersionedTransaction, error: Any = None) -> None:
        self.statuses[name_of(transaction)] = {
            "confirmationStatus": "finalized",
            "err": error,
            "slot": self.slot,
        }

    def _page(self, address: str, options: dict[str, Any]) -> list[dict[str, Any]]:
        assert address == TOKEN_ACCOUNT
        assert None not in options.values(), "not every node takes null for an option that is left out"
        self.asked.append(options)
        if options.get("minContextSlot", 0) > self.slot:
            raise RpcRefusalError("getSignaturesForAddress", -32016, "Minimum context slot", None)
        names = [name_of(transaction) for transaction in reversed(self.transactions)]
        if "before" in options:
            names = names[names.index(options["before"]) + 1 :] if options["before"] in names else []
        if options.get("until") in names:
            names = names[: names.index(options["until"])]
        return [
            {
                "signature": name,
                "slot": self.slot,
                "err": None,
                "confirmationStatus": "confirmed" if name in self.reversible else "finalized",
            }
            for name in names[: options["limit"]]
        ]

    def _transaction(self, signature: str, options: dict[str, Any]) -> Any:
        self.read.append(signature)
        (found,) = [each for each in self.transactions if name_of(each) == signature]
        status = self.statuses.get(signature, {"slot": self.slot, "err": None})
        return {**signed_json(bytes(found), status["slot"], status["err"]), "version": 0}


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentpay_server.plugins.cluster.history._MAX_LINES", 3)


every_search = pytest.mark.parametrize("proof_height", [None, 800], ids=["search", "proof"])


# --- What is found


@every_search
@pytest.mark.parametrize("after", [ANCHOR, None], ids=["anchor", "none"])
async def test_a_payment_is_found_under_the_signature_of_its_fee_payer(
    proof_height: int | None, after: VersionedTransaction | None
) -> None:
    chain = rpc_chain(Ledger(ANCHOR, NEWER[0], LANDED, NEWER[1]))

    status = await chain.find_cosigned(sought(after), proof_height=proof_height)

    assert status is not None
    assert status.is_final
    assert status.is_irreversible
    assert status.failure is None
    assert status.chain_signature == name_of(LANDED) != PAYMENT.signature


OWN_SIGNATURE = bytes(VersionedTransaction.from_bytes(PAYMENT.raw).signatures[1])
FORGED = {
    "our signature over another message": completed(prepared(99).raw, ours=OWN_SIGNATURE),
    "our message without our signature": completed(
        PAYMENT.raw, ours=bytes(Keypair.from_seed(b"s" * 32).sign_message(b"anything"))
    ),
    "another message under the name of the payment": VersionedTransaction.populate(
        OTHERS[0].message, [LANDED.signatures[0], OTHERS[0].signatures[1]]
    ),
}


@every_search
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_a_transaction_with_invalid_signatures_leaves_the_payment_open_and_is_not_cached(
    forged: VersionedTransaction, proof_height: int | None
) -> None:
    node = Ledger(ANCHOR, LANDED)
    true_answer = node.answers["getTransaction"]
    true_history = node.answers["getSignaturesForAddress"]
    node.sees(forged)
    node.answers["getSignaturesForAddress"] = lambda address, options: [
        {"signature": name_of(forged), "slot": 1_000, "err": None, "confirmationStatus": "finalized"}
    ]
    reply = {"transaction": [base64.b64encode(bytes(forged)).decode(), "base64"], "version": 0}
    node.answers["getTransaction"] = lambda *_: reply
    chain = rpc_chain(node)

    with pytest.raises(ChainUnreachableError):
        await chain.find_cosigned(sought(), proof_height=proof_height)
    # One wrong reply must not hide the payment permanently.
    node.answers["getTransaction"] = true_answer
    node.answers["getSignaturesForAddress"] = true_history
    assert await chain.find_cosigned(sought(), proof_height=proof_height) is not None


@every_search
async def test_a_payment_that_failed_on_chain_is_found_with_its_failure(proof_height: int | None) -> None:
    node = Ledger(ANCHOR, LANDED)
    node.sees(LANDED, SHORTFALL)

    status = await rpc_chain(node).find_cosigned(sought(), proof_height=proof_height)

    assert status is not None
    assert status.failure is not None
    assert status.failure.chain_signature == status.chain_signature == name_of(LANDED)
    assert status.failure.reason is FailureReason.OTHER


async def test_each_transaction_of_a_history_is_read_once() -> None:
    node = Ledger(ANCHOR, *NEWER)
    chain = rpc_chain(node)
    for _ in range(3):
        assert await chain.find_cosigned(sought()) is None
    assert sorted(node.read) == sorted(map(name_of, NEWER))


async def test_searches_of_an_account_share_its_newest_history() -> None:
    node = Ledger(ANCHOR, NEWER[0], LANDED, *NEWER[1:])
    chain = rpc_chain(node, name="devnet")

    found = await asyncio.gather(
        *(chain.find_cosigned(sought(after)) for after in (ANCHOR, NEWER[0], LANDED))
    )

    # The third begins after the transaction.
    assert [status is not None for status in found] == [True, True, False]
    assert len(node.asked) == 1
    # An older cursor needs an older page.
    assert await chain.find_cosigned(sought(after=None)) is not None
    assert len(node.asked) == 2


async def test_a_shared_history_is_at_most_a_block_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainHead, "block_seconds", 0.0)
    node = Ledger(ANCHOR, NEWER[0])
    chain = rpc_chain(node, name="devnet")
    assert await chain.find_cosigned(sought()) is None
    node.transactions.append(LANDED)
    node.sees(LANDED)
    assert await chain.find_cosigned(sought()) is not None


# --- What proves that it is not there


@pytest.mark.usefixtures("small_pages")
async def test_a_payment_on_the_last_page_is_found_by_the_search_for_proof() -> None:
    # Whatever is older than the anchor was there before it was signed.
    node = Ledger(LANDED, ANCHOR, *NEWER)
    assert await rpc_chain(node).find_cosigned(sought(), proof_height=800) is None
    assert sorted(node.read) == sorted(map(name_of, NEWER))
    chain = rpc_chain(Ledger(ANCHOR, LANDED, *NEWER))

    # The newest page does not show it, which proves nothing.
    assert await chain.find_cosigned(sought()) is None
    status = await chain.find_cosigned(sought(), proof_height=800)
    assert status is not None
    assert status.chain_signature == name_of(LANDED)


async def test_a_node_below_the_reported_height_proves_nothing() -> None:
    node = Ledger(ANCHOR, NEWER[0])
    chain = rpc_chain(node, name="devnet")
    node.slot, node.height = 2_000, 901
    assert await chain.block_height() == 901
    node.slot = 1_999

    with pytest.raises(ChainUnreachableError):
        await chain.find_cosigned(sought(), proof_height=800)
    node.slot = 2_000
    with pytest.raises(ChainUnreachableError, match="old history"):
        await chain.find_cosigned(sought(), proof_height=1_801)
    assert await chain.find_cosigned(sought(), proof_height=1_800) is None
    assert all(options["minContextSlot"] == 2_000 for options in node.asked if "until" in options)


async def test_a_node_whose_index_lags_behind_its_blocks_cannot_prove_absence() -> None:
    node = Ledger(ANCHOR, NEWER[0], LANDED)
    node.slot, node.height = 2_000, 1_800
    node.transactions.remove(LANDED)
    written = 1_999

    def block(slot: int, options: dict[str, Any]) -> dict[str, Any]:
        if slot > written:
            raise RpcRefusalError("getBlock", -32014, "Block status not yet available", None)
        return {"blockHeight": slot - 200}

    node.answers["getBlock"] = block
    chain = rpc_chain(node, name="devnet")

    with pytest.raises(ChainUnreachableError):
        await chain.find_cosigned(sought(), proof_height=800)
    written, node.transactions = 2_000, [ANCHOR, NEWER[0], LANDED]
    status = await chain.find_cosigned(sought(), proof_height=800)
    assert status is not None
    assert status.chain_signature == name_of(LANDED)


@pytest.mark.parametrize("name", [None, "devnet"], ids=["emulator", "cluster"])
@pytest.mark.parametrize("after", [ANCHOR, None], ids=["anchor", "none"])
async def test_a_node_that_treats_min_context_slot_as_a_filter_hides_no_payment(
    name: str | None, after: VersionedTransaction | None
) -> None:
    node = Ledger(ANCHOR, LANDED, NEWER[0])
    whole = node.answers["getSignaturesForAddress"]

    def filtered(address: str, options: dict[str, Any]) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = whole(address, options)
        return lines[:1] if "minContextSlot" in options else lines

    node.answers["getSignaturesForAddress"] = filtered
    chain = rpc_chain(node, name=name)

    if name is not None:
        with pytest.raises(ChainUnreachableError):
            await chain.find_cosigned(sought(after), proof_height=800)
        return
    status = await chain.find_cosigned(sought(after), proof_height=800)
    assert status is not None
    assert status.chain_signature == name_of(LANDED)


@pytest.mark.parametrize(
    ("known", "after"),
    [([], ANCHOR), ([NEWER[0]], ANCHOR), ([OTHERS[6]], ANCHOR), ([], None)],
    ids=["an empty index", "forgot the anchor", "another history", "empty although the account exists"],
)
async def test_a_node_that_does_not_know_the_anchor_proves_nothing(
    known: list[VersionedTransaction], after: VersionedTransaction | None
) -> None:
    with pytest.raises(ChainUnreachableError):
        await rpc_chain(Ledger(*known)).find_cosigned(sought(after), proof_height=800)
    assert await rpc_chain(Ledger(ANCHOR)).find_cosigned(sought(), proof_height=800) is None


def in_base64(raw: bytes, **more: Any) -> dict[str, Any]:
    return {"transaction": [base64.b64encode(raw).decode(), "base64"], **more}


@pytest.mark.parametrize(
    "reply",
    [
        None,
        in_base64(bytes(LANDED)[:-9], version=0),
        in_base64(bytes(LANDED)[:-9]),
        in_base64(bytes(NEWER[0]), version=0),
        {"transaction": ["?", "base64"], "version": 0},
        {"transaction": [], "version": 0},
        {},
    ],
    ids=[
        "lacks it",
        "truncated",
        "truncated, no version",
        "another",
        "no base64",
        "nothing",
        "no transaction",
    ],
)
async def test_a_missing_or_malformed_transaction_proves_nothing(reply: dict[str, Any] | None) -> None:
    node = Ledger(ANCHOR, LANDED)
    whole, node.answers["getTransaction"] = node.answers["getTransaction"], lambda *_: reply
    chain = rpc_chain(node)

    with pytest.raises(ChainUnreachableError):
        await chain.find_cosigned(sought(), proof_height=800)
    # Nothing wrong is remembered.
    node.answers["getTransaction"] = whole
    statuses, node.statuses = node.statuses, {}
    with pytest.raises(ChainUnreachableError):
        await chain.find_cosigned(sought(), proof_height=800)
    node.statuses = statuses
    assert await chain.find_cosigned(sought(), proof_height=800) is not None
    # One of a version that is not supported is no payment of ours.
    node.answers["getTransaction"] = lambda *_: in_base64(b"\x01" * 90, version=1)
    assert await rpc_chain(node).find_cosigned(sought(), proof_height=800) is None


async def test_a_reversible_transaction_hides_no_later_payment() -> None:
    node = Ledger(ANCHOR, NEWER[0], LANDED)
    node.reversible = {name_of(NEWER[0])}

    status = await rpc_chain(node).find_cosigned(sought(), proof_height=800)

    assert status is not None
    assert status.chain_signature == name_of(LANDED)


# --- Where a search ends


async def test_the_anchor_is_the_newest_irreversible_transaction() -> None:
    node = Ledger(ANCHOR, NEWER[0])
    chain: RpcChain = rpc_chain(node)
    assert await chain.newest_signature(TOKEN_ACCOUNT) == name_of(NEWER[0])
    # Without one, everything is searched.
    node.reversible = {name_of(NEWER[0])}
    assert await chain.newest_signature(TOKEN_ACCOUNT) is None
    node.transactions.clear()
    assert await chain.newest_signature(TOKEN_ACCOUNT) is None


# --- What an account holds


async def test_a_balance_from_a_node_below_the_reported_height_raises() -> None:
    node = FakeNode()
    chain = rpc_chain(node)
    await chain.block_height()
    assert await chain.holds(TOKEN_ACCOUNT, 7)
    assert not await chain.holds(TOKEN_ACCOUNT, 8)
    assert await chain.holds(OWNER, 0)
    assert not await chain.holds(OWNER, 1)

    node.slot -= 1
    with pytest.raises(ChainUnreachableError):
        await chain.holds(TOKEN_ACCOUNT, 7)
