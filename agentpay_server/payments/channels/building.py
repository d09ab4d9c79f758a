"""Builds what a channel needs: its opening, its vouchers, and the two transactions of a forced close.

The seller pays for the opening, and signs it first: its slot stays zero. The treasury pays for the rest.
"""

import json
from typing import Final

from solders.hash import Hash
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import TREASURIES, OnchainTerms, Voucher
from agentpay_server.chain.custody import Signer, spending_key, voucher_key
from agentpay_server.chain.instructions import memo, set_compute_unit_limit, set_compute_unit_price
from agentpay_server.chain.protocol import Blockhash, SignedTransaction
from agentpay_server.chain.signing import fee_lamports, sign_transaction, with_units_for
from agentpay_server.database.tables import AccountRecord
from agentpay_server.ledger.context import Context
from agentpay_server.payments.building import UNITS_PER_MEMO_BYTE, PreparedPayment, check_size, cosigned
from agentpay_server.payments.challenges import mpp
from agentpay_server.payments.channels.store import Channel

OPEN_UNITS: Final = 90_000
"""Compute units of an opening; it needs about half of them."""

_UNIT_PRICE: Final = 1
_REQUEST_SIGNATURES: Final = 2
_PAYOUT_SIGNATURES: Final = 1
_PAYOUT_UNITS: Final = 2
"""How many times the usual compute limit a payout may need."""


def opening_of(context: Context, channel: Channel, account: AccountRecord) -> OnchainTerms:
    """Return the terms of an account's stored channel, as the chain has them."""
    record = channel.record
    return OnchainTerms(
        payer=Pubkey.from_string(context.signer.address(spending_key(account.key_index))),
        rent_payer=Pubkey.from_string(record.rent_payer),
        payee=Pubkey.from_string(record.payee),
        mint=Pubkey.from_string(context.chain.usdc_mint),
        signer=Pubkey.from_string(record.signer),
        salt=record.salt,
        open_slot=record.open_slot,
        deposit_micro=channel.session.cap,
        grace_seconds=record.grace_seconds,
        shares=mpp.shares_of([(owner, bps) for owner, bps in json.loads(record.shares)]),
    )


def build_opening(
    signer: Signer,
    opening: OnchainTerms,
    *,
    account_index: int,
    blockhash: str,
    last_valid_height: int,
    text: str | None = None,
) -> PreparedPayment:
    """Return the transaction that opens a channel, with the payer's signature; `text` is its memo.

    Raises:
        ChannelError: the program would refuse the terms.
        TransactionTooLargeError: the transaction does not fit into a packet.
    """
    steps = [
        set_compute_unit_limit(OPEN_UNITS + (UNITS_PER_MEMO_BYTE * len(text.encode("utf-8")) if text else 0)),
        set_compute_unit_price(_UNIT_PRICE),
        codecs.open_channel(opening),
        *([memo(text)] if text else []),
    ]
    message = MessageV0.try_compile(opening.rent_payer, steps, [], Hash.from_string(blockhash))
    check_size(message)
    return cosigned(
        signer,
        message,
        {str(opening.payer): spending_key(account_index)},
        payer=str(opening.payer),
        last_valid_height=last_valid_height,
    )


def voucher_header(
    signer: Signer,
    channel: Channel,
    account: AccountRecord,
    cumulative_micro: int,
    *,
    is_closing: bool = False,
    challenge: dict[str, object] | None = None,
) -> tuple[str, str]:
    """Sign a stored voucher; return name and value of the header that presents it, the same each time.

    Args:
        signer: it has the accounts' keys.
        channel: the channel.
        account: the paying account.
        cumulative_micro: the stored amount of the voucher.
        is_closing: whether the voucher closes the channel.
        challenge: the challenge to answer; None for the newest one.
    """
    address = channel.session.channel
    assert address is not None  # noqa: S101 - stored with the opening, from whose terms it follows
    voucher = Voucher(channel=Pubkey.from_string(address), cumulative_micro=cumulative_micro)
    signature = Signature.from_bytes(signer.sign_voucher(voucher_key(account.key_index), voucher.message()))
    payload = mpp.voucher_payload(
        voucher, signer=channel.record.signer, signature=str(signature), is_closing=is_closing
    )
    return mpp.credential(challenge or json.loads(channel.record.newest_challenge), payload)


def closing_fee(blockhash: Blockhash) -> int:
    """Return the most lamports that the fees of a forced close can be."""
    return fee_lamports(_REQUEST_SIGNATURES, blockhash.compute_budget) + fee_lamports(
        _PAYOUT_SIGNATURES, with_units_for(blockhash, _PAYOUT_UNITS).compute_budget
    )


def request_close(
    signer: Signer, blockhash: Blockhash, opening: OnchainTerms, *, account_index: int
) -> SignedTransaction:
    """Build the transaction that begins to close a channel by force."""
    step = codecs.request_close(payer=opening.payer, channel=opening.address)
    return sign_transaction(signer, blockhash, [step], spending_key(account_index))


def pay_out(
    signer: Signer, blockhash: Blockhash, opening: OnchainTerms, *, cluster: str, seals: bool
) -> SignedTransaction:
    """Build the transaction that pays out a channel; with `seals`, after its grace period."""
    treasury = TREASURIES.get(cluster, TREASURIES["devnet"])
    steps = [codecs.seal(opening.address)] if seals else []
    steps.append(codecs.distribute_opened(opening, treasury=treasury))
    return sign_transaction(signer, with_units_for(blockhash, _PAYOUT_UNITS), steps)
