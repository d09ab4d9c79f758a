"""The history of a channel as nodes report it: strangers and sellers write its transactions."""

from typing import Any

import pytest
from rpc_node import TOKEN_ACCOUNT, FakeNode, deposit_json, rpc_chain
from solders.instruction import Instruction
from solders.keypair import Keypair

from agentpay_server.chain import parsing
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import Discriminator, Voucher
from agentpay_server.chain.protocol import ChannelHistory, Payout
from agentpay_server.plugins.cluster.chain import RpcChain

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]

PAYEE, SIGNER, STRANGER = (Keypair.from_seed(bytes([seed] * 32)) for seed in (1, 2, 3))
CHANNEL = Keypair.from_seed(bytes([4] * 32)).pubkey()
TOTAL = 3_000


def told(step: Instruction, **changes: str) -> dict[str, Any]:
    """Return an instruction in `jsonParsed`."""
    accounts = [str(meta.pubkey) for meta in step.accounts]
    data = parsing.to_base58(bytes(step.data))
    return {"programId": str(step.program_id), "accounts": accounts, "data": data, **changes}


def verified() -> Instruction:
    voucher = Voucher(channel=CHANNEL, cumulative_micro=TOTAL)
    return codecs.verify_voucher(voucher, SIGNER.pubkey(), SIGNER.sign_message(voucher.message()))


def sealed(flag: int) -> Instruction:
    seal = codecs.settle_and_seal(payee=PAYEE.pubkey(), channel=CHANNEL, has_voucher=True)
    return Instruction(seal.program_id, bytes((Discriminator.SETTLE_AND_SEAL, flag)), seal.accounts)


def padded(step: Instruction, size: int) -> Instruction:
    return Instruction(step.program_id, bytes(step.data).ljust(size, b"\xff"), step.accounts)


PAID_OUT = told(
    Instruction(codecs.PROGRAM, bytes((Discriminator.DISTRIBUTE, 0, 0, 0, 0)), codecs.seal(CHANNEL).accounts)
)
REQUEST = codecs.request_close(payer=STRANGER.pubkey(), channel=STRANGER.pubkey())


class Channel:
    """A node that knows the transactions of a channel, by their instructions; the oldest comes first."""

    def __init__(self, *transactions: list[dict[str, Any]], inner: tuple[dict[str, Any], ...] = ()) -> None:
        self.node = FakeNode()
        self.signatures = [str(STRANGER.sign_message(bytes([number]))) for number in range(len(transactions))]
        self.transactions = dict(zip(self.signatures, transactions, strict=True))
        self.inner = [{"index": 0, "instructions": list(inner)}]
        self.node.answers["getSignaturesForAddress"] = self._page
        self.node.answers["getTransaction"] = self._transaction

    async def history(self, chain: RpcChain | None = None) -> ChannelHistory:
        chain = chain or rpc_chain(self.node)
        return await chain.channel_history(str(CHANNEL), signer=str(SIGNER.pubkey()), to=TOKEN_ACCOUNT)

    def _page(self, _: str, options: dict[str, Any]) -> list[dict[str, Any]]:
        lines = [] if "before" in options else self.signatures[::-1]
        return [
            {"signature": each, "slot": 1_000, "err": None, "confirmationStatus": "finalized"}
            for each in lines
        ]

    def _transaction(self, signature: str, _: object) -> dict[str, Any]:
        reply = deposit_json(signature)
        reply["transaction"]["message"]["instructions"] = self.transactions[signature]
        reply["meta"]["innerInstructions"] = self.inner
        return reply


@pytest.mark.parametrize(
    "call",
    [
        told(padded(REQUEST, 10_240)),
        told(REQUEST, data="2" * 20_000),
        told(REQUEST, data="0OIl"),
        told(REQUEST, data=""),
    ],
    ids=["longest", "longer than possible", "no base58", "empty"],
)
async def test_no_call_of_a_stranger_makes_a_history_unreadable(call: dict[str, Any]) -> None:
    closed = [told(verified()), told(sealed(1)), PAID_OUT]
    channel = Channel(closed, inner=(call,))
    paid = Payout(
        signature=channel.signatures[0], gained_micro=5, left_micro=0, channels=frozenset({str(CHANNEL)})
    )
    assert await channel.history() == ChannelHistory(proven_micro=TOTAL, payout=paid)


@pytest.mark.parametrize(
    ("step", "proven"),
    [
        (sealed(0), 0),
        (sealed(1), TOTAL),
        (sealed(2), TOTAL),
        (sealed(255), TOTAL),
        (codecs.settle(CHANNEL), TOTAL),
        (padded(codecs.settle(CHANNEL), 700), TOTAL),
    ],
)
async def test_a_voucher_that_the_program_took_is_proved(step: Instruction, proven: int) -> None:
    assert (await Channel([told(verified()), told(step)]).history()).proven_micro == proven
