"""Evidence from the transactions of a channel: what its program settled, and which paid it out. Pure.

A seller writes the transactions, and may add anything to them. So only the program's own instructions count,
also those that another program called. A voucher counts if the program took it, which it does from the
instruction directly before the one of the transaction that calls it; a voucher that was only verified proves
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen
from solders.instruction import CompiledInstruction
from solders.message import VersionedMessage
from solders.pubkey import Pubkey
from solders.transaction_metadata import TransactionMetadata

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import Discriminator
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.chain.protocol import ChannelHistory, Payout

_CHANNEL_AT: Final[Mapping[int, int]] = {
    Discriminator.SETTLE: 0,
    Discriminator.SETTLE_AND_SEAL: 1,
    Discriminator.SEAL: 0,
    Discriminator.DISTRIBUTE: 0,
}
"""The position of the channel among the accounts of an instruction."""

KEPT_ACCOUNTS: Final = 2
KEPT_BYTES: Final = 256
"""How much of an instruction is read here, at most; who reads many may drop the rest."""


@frozen
class Call:
    """An instruction that a transaction executed."""

    program: str
    accounts: Sequence[str]
    data: bytes


@frozen(kw_only=True)
class Landed:
    """A transaction that succeeded.

    Attributes:
        before, after: micro-USDC by token account; an account without any may be missing.
        steps: its instructions, each with its inner calls, in their order.
    """

    signature: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    steps: Sequence[tuple[Call, Sequence[Call]]]


@frozen(kw_only=True)
class _Act:
    kind: int
    channel: str
    data: bytes
    before: Call | None

    @property
    def takes_voucher(self) -> bool:
        """Whether the program took a voucher: any flag but zero makes a seal take one."""
        if self.kind == Discriminator.SETTLE_AND_SEAL:
            return self.data[1:] != b"\0"
        return self.kind == Discriminator.SETTLE


def history_of(
    transactions: Iterable[Landed], channel: str, *, signer: str, to: str, usdc_mint: str
) -> ChannelHistory:
    """Return what a channel's transactions prove; the oldest comes first.

    Args:
        transactions: those that name the channel.
        channel: its address.
        signer: who signs its vouchers.
        to: the payer's token account.
        usdc_mint: the mint of USDC.
    """
    escrow = associated_token_address(channel, usdc_mint)
    proven_micro, is_sealed, payout = 0, False, None
    for landed in transactions:
        acts = list(_acts(landed))
        for act in acts:
            if act.channel != channel:
                continue
            if act.takes_voucher:
                proven_micro = max(proven_micro, _taken(act, signer))
            if act.kind == Discriminator.DISTRIBUTE and is_sealed:
                payout = Payout(
                    signature=landed.signature,
                    gained_micro=landed.after.get(to, 0) - landed.before.get(to, 0),
                    left_micro=landed.after.get(escrow, 0),
                    channels=frozenset(
                        each.channel for each in acts if each.kind == Discriminator.DISTRIBUTE
                    ),
                )
            is_sealed |= act.kind in (Discriminator.SETTLE_AND_SEAL, Discriminator.SEAL)
    return ChannelHistory(proven_micro=proven_micro, payout=payout)


def _acts(landed: Landed) -> Iterator[_Act]:
    before = None
    for step, called in landed.steps:
        for call in (step, *called):
            at = _CHANNEL_AT.get(call.data[0]) if call.data else None
            if call.program == str(codecs.PROGRAM) and at is not None and at < len(call.accounts):
                yield _Act(kind=call.data[0], channel=call.accounts[at], data=call.data, before=before)
        before = step


def _taken(act: _Act, signer: str) -> int:
    """Return the total of the voucher that the program took; 0 if it is not one of the signer."""
    if act.before is None or act.before.program != str(codecs.ED25519_PROGRAM):
        return 0
    voucher = codecs.verified_voucher(act.before.data, Pubkey.from_string(signer))
    return voucher.cumulative_micro if voucher and str(voucher.channel) == act.channel else 0


def steps_of(message: VersionedMessage, meta: TransactionMetadata) -> list[tuple[Call, Sequence[Call]]]:
    """Return the instructions of a transaction without address look-up tables."""
    keys = [str(key) for key in message.account_keys]

    def call(step: CompiledInstruction) -> Call:
        accounts = [keys[index] for index in bytes(step.accounts)]
        return Call(keys[step.program_id_index], accounts, bytes(step.data))

    return [
        (call(step), [call(each.instruction()) for each in called])
        for step, called in zip(message.instructions, meta.inner_instructions(), strict=True)
    ]
