"""What the channel program does and the service does not use: further instructions, errors, its division."""

import struct
from collections.abc import Iterable
from enum import IntEnum

from attrs import frozen
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from agentpay_server.chain.channels.codecs import PROGRAM, WHOLE_BPS, Discriminator, Share, escrow_address
from agentpay_server.chain.instructions import TOKEN_PROGRAM

CHANNEL_LAMPORTS = 2_672_640
"""Rent of a channel's account."""

ESCROW_LAMPORTS = 2_039_280
"""Rent of a channel's escrow. The rent payer gets both back in the end."""


class ProgramError(IntEnum):
    """The program's custom errors."""

    SIGNATURE_MISSING = 1
    WRONG_STATUS = 2
    WRONG_DISCRIMINATOR = 3
    WRONG_VERSION = 4
    WRONG_PAYER = 5
    WRONG_PAYEE = 6
    WRONG_MINT = 7
    WRONG_EVENT_AUTHORITY = 8
    WRONG_ACCOUNT_COUNT = 9
    WRONG_RENT_PAYER = 10
    WRONG_ESCROW = 50
    MALFORMED_ESCROW = 51
    INVALID_MINT = 53
    WRONG_TOKEN_PROGRAM = 54
    WRONG_PAYER_TOKEN_ACCOUNT = 57
    MALFORMED_PAYER_TOKEN_ACCOUNT = 58
    WRONG_PAYEE_TOKEN_ACCOUNT = 60
    ZERO_AMOUNT = 200
    ZERO_GRACE = 201
    VOUCHER_MISSING = 230
    VOUCHER_LAYOUT = 231
    VOUCHER_OF_OTHER_CHANNEL = 232
    VOUCHER_EXPIRED = 233
    VOUCHER_NOT_ABOVE_SETTLED = 234
    VOUCHER_OVER_DEPOSIT = 235
    VOUCHER_OF_OTHER_SIGNER = 237
    VOUCHER_MAGIC = 238
    TOO_MANY_SHARES = 260
    INVALID_SHARE = 261
    REPEATED_RECIPIENT = 263
    WRONG_CHANNEL_ADDRESS = 2000
    PAYER_IS_PAYEE = 2001
    SIGNER_OFF_CURVE = 2002
    OPEN_SLOT_OUTSIDE_WINDOW = 2003
    OVERFLOW = 2100
    GRACE_NOT_OVER = 2201
    ALREADY_WITHDRAWN = 2300
    NOT_DISTRIBUTABLE = 2400
    WRONG_TREASURY = 2401
    INVALID_TREASURY = 2402
    WRONG_RECIPIENT_TOKEN_ACCOUNT = 2404
    WRONG_DISTRIBUTION = 2407
    NOTHING_TO_DISTRIBUTE = 2408
    WRONG_RECIPIENT_COUNT = 2409
    PAID_ABOVE_SETTLED = 2410
    ESCROW_TOO_SMALL = 2411
    RECLAIM_TOO_EARLY = 2414


def top_up(*, payer: Pubkey, channel: Pubkey, mint: Pubkey, amount_micro: int) -> Instruction:
    """Add to the deposit; the payer signs."""
    return Instruction(
        PROGRAM,
        struct.pack("<BQ", Discriminator.TOP_UP, amount_micro),
        [
            AccountMeta(payer, is_signer=True, is_writable=True),
            AccountMeta(channel, is_signer=False, is_writable=True),
            AccountMeta(get_associated_token_address(payer, mint), is_signer=False, is_writable=True),
            AccountMeta(escrow_address(channel, mint), is_signer=False, is_writable=True),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(TOKEN_PROGRAM, is_signer=False, is_writable=False),
        ],
    )


def withdraw_payer(*, payer: Pubkey, channel: Pubkey, mint: Pubkey) -> Instruction:
    """Take the refund of a sealed channel before it is distributed; the payer signs."""
    return Instruction(
        PROGRAM,
        bytes((Discriminator.WITHDRAW_PAYER,)),
        [
            AccountMeta(payer, is_signer=True, is_writable=False),
            AccountMeta(channel, is_signer=False, is_writable=True),
            AccountMeta(escrow_address(channel, mint), is_signer=False, is_writable=True),
            AccountMeta(get_associated_token_address(payer, mint), is_signer=False, is_writable=True),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(TOKEN_PROGRAM, is_signer=False, is_writable=False),
        ],
    )


def reclaim(*, channel: Pubkey, rent_payer: Pubkey) -> Instruction:
    """Return the rent of a distributed channel's account; anyone may, after `OPEN_SLOT_WINDOW`."""
    return Instruction(
        PROGRAM,
        bytes((Discriminator.RECLAIM,)),
        [
            AccountMeta(channel, is_signer=False, is_writable=True),
            AccountMeta(rent_payer, is_signer=False, is_writable=True),
        ],
    )


@frozen(kw_only=True)
class Payouts:
    """What one `distribute` moves out of the escrow, if every beneficiary can receive.

    Attributes:
        recipients_micro: the amount of each share, in order.
        refund_micro: the payer's; 0 unless the channel is sealed, or if the payer has withdrawn it.
        treasury_micro: dust of the rounding; 0 unless the channel is sealed.
    """

    payee_micro: int
    recipients_micro: tuple[int, ...]
    refund_micro: int
    treasury_micro: int


def payouts(
    *,
    deposit_micro: int,
    settled_micro: int,
    shares: Iterable[Share] = (),
    paid_micro: int = 0,
    is_sealed: bool = True,
    is_withdrawn: bool = False,
) -> Payouts:
    """Return what a `distribute` pays to whom. Each distribution rounds the cumulative amounts down."""
    parts = [share.bps for share in shares]
    recipients = tuple(_part(settled_micro, bps) - _part(paid_micro, bps) for bps in parts)
    rest_bps = WHOLE_BPS - sum(parts)
    payee = _part(settled_micro, rest_bps) - _part(paid_micro, rest_bps)
    dust = settled_micro - sum(_part(settled_micro, bps) for bps in (*parts, rest_bps))
    return Payouts(
        payee_micro=payee,
        recipients_micro=recipients,
        refund_micro=deposit_micro - settled_micro if is_sealed and not is_withdrawn else 0,
        treasury_micro=dust if is_sealed else 0,
    )


def _part(amount_micro: int, bps: int) -> int:
    return amount_micro * bps // WHOLE_BPS
