"""Codecs of the payment-channel program: addresses, vouchers, instructions, accounts. Pure.

A channel is an escrow between a payer and a payee, opened with a deposit. An authorized signer then signs
*vouchers* off chain. Each states the cumulative amount that the payee may take, so only the highest counts.

    Open --settle, top_up, distribute--> Open        Open --request_close (payer)--> Closing
    Open | Closing (before the deadline) --settle_and_seal (payee)--> Sealed
    Closing --seal (anyone, from `deadline` on)--> Sealed --distribute--> Distributed, or gone
    Distributed --reclaim (anyone, slot > open_slot + OPEN_SLOT_WINDOW)--> gone

An opening is built from its terms, and read back from a transaction to compare it with what was asked for:

    opening = OnchainTerms(payer=…, rent_payer=…, payee=…, …)
    opening.address, opening.escrow              # Derived from the terms; nothing needs to exist.
    open_channel(opening)                        # The instruction: payer and rent payer sign.
    read_opening(accounts, data) == opening      # ChannelError if it is no valid opening.

A voucher is 50 bytes, signed with Ed25519 by the authorized signer. Nothing but such bytes should be signed
with its key, so check them first:

    message = Voucher(channel=opening.address, cumulative_micro=3_000, expires_at=0).message()
    Voucher.of(message)                          # ChannelError unless it is exactly a voucher.

The payee closes with `close_instructions` in one transaction. Without the payee, anyone can pay the fees of
`request_close` (the payer signs) and, after the grace period, `seal` and `distribute` in one transaction.

A closed channel's money is divided among its shares, the rest goes to the payee, and what no voucher covers
returns to the payer; each part is rounded down, and dust goes to the treasury. A beneficiary whose associated
token account is missing, frozen or of another owner loses its share to the treasury, **the payer's refund
included**. The program may pay several beneficiaries with one token instruction: post by balances, not by the
transfers inside.

A channel's address never hosts two channels, so a voucher is good for one channel only. Vouchers are not
bound to a cluster: a signer's key must not be used on mainnet and on a test chain.

Amounts are base units of the token, here micro-USDC. Times are Unix seconds by the chain's clock.
"""

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import Final, Self

from attrs import field, frozen
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token.associated import get_associated_token_address

from agentpay_server.chain.instructions import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM, TOKEN_PROGRAM

PROGRAM: Final = Pubkey.from_string("CHNLxYvVA28MJP9PrFuDXccuoGXAx7jBacfLEkahyGsX")
"""The program, on mainnet, on devnet and here. A challenge's `channelProgram` is only compared with it."""

EVENT_AUTHORITY: Final = Pubkey.from_string("75c2huVzDW1Eq4kD86by5392sjdJzuAT195XNgP2f2tX")
"""Signs the program's events. Derived from `PROGRAM`."""

TREASURIES: Final = {
    "mainnet-beta": Pubkey.from_string("Cs2zdfUNonRdRGsiZUQQLdTxzxVvJZmgiX2mpLYKuEqP"),
    "devnet": Pubkey.from_string("4zTeC5mVqWLruDexgU2mV66p9t5vCA9JyiZqdGDUspap"),
}
"""The program's treasury by cluster: the owner that gets dust and lost shares. A test chain accepts both."""

ED25519_PROGRAM: Final = Pubkey.from_string("Ed25519SigVerify111111111111111111111111111")
INSTRUCTIONS_SYSVAR: Final = Pubkey.from_string("Sysvar1nstructions1111111111111111111111111")
RENT_SYSVAR: Final = Pubkey.from_string("SysvarRent111111111111111111111111111111111")

CHANNEL_BYTES: Final = 256
OPEN_SLOT_WINDOW: Final = 1_500
"""An opening is valid up to this many slots after its `open_slot`, about ten minutes."""

WHOLE_BPS: Final = 10_000
MAX_SHARES: Final = 32
MAX_AMOUNT: Final = 2**64 - 1
VOUCHER_BYTES: Final = 50

_CHANNEL_SEED: Final = b"channel"
_VOUCHER_MAGIC: Final = b"\x56\x01"
_VOUCHER: Final = struct.Struct("<2s32sQq")
_ARGUMENTS: Final = struct.Struct("<BQQIQ")
_SHARE: Final = struct.Struct("<32sH")
_COUNT: Final = struct.Struct("<I")
_CHANNEL: Final = struct.Struct("<BBBBQQQQqqI32s32s32s32s32s32sQ")
_SIGNED: Final = struct.Struct("<BB7H32s64s")
_THIS_INSTRUCTION: Final = 0xFFFF
_DISCRIMINATOR: Final = 1
_VERSION: Final = 1
_OPEN_ACCOUNTS: Final = 14


class ChannelError(ValueError):
    """Bytes or terms are not what the program accepts; the text says why."""


class Discriminator(IntEnum):
    """The first byte of an instruction's data."""

    OPEN = 1
    SETTLE = 2
    TOP_UP = 3
    SETTLE_AND_SEAL = 4
    REQUEST_CLOSE = 5
    SEAL = 6
    DISTRIBUTE = 7
    WITHDRAW_PAYER = 8
    RECLAIM = 9
    EMIT_EVENT = 228


class OnchainStatus(IntEnum):
    """The state of a channel; see the picture above."""

    OPEN = 0
    SEALED = 1
    CLOSING = 2
    DISTRIBUTED = 3


# --- Shares


@frozen
class Share:
    """A recipient other than the payee, and its share of what is settled, in hundredths of a percent."""

    recipient: Pubkey
    bps: int


def distribution_preimage(shares: Sequence[Share]) -> bytes:
    """Serialize the shares, in their order: opening and distribution carry these bytes."""
    return _COUNT.pack(len(shares)) + b"".join(
        _SHARE.pack(bytes(share.recipient), share.bps) for share in shares
    )


def distribution_hash(shares: Sequence[Share]) -> bytes:
    """Return the 32 bytes that a channel stores about its shares."""
    return hashlib.sha256(distribution_preimage(shares)).digest()


def read_shares(preimage: bytes) -> tuple[Share, ...]:
    """Parse serialized shares.

    Raises:
        ChannelError: another length; or too many, empty, repeated shares, or more than the whole.
    """
    if len(preimage) < _COUNT.size:
        raise ChannelError("the shares have no count")
    (count,) = _COUNT.unpack_from(preimage)
    if len(preimage) != _COUNT.size + count * _SHARE.size:
        raise ChannelError(f"{len(preimage)} bytes are not {count} shares")
    shares = tuple(
        Share(Pubkey.from_bytes(recipient), bps)
        for recipient, bps in _SHARE.iter_unpack(preimage[_COUNT.size :])
    )
    check_shares(shares)
    return shares


def check_shares(shares: Sequence[Share], *, channel: Pubkey | None = None) -> None:
    """Refuse shares that the program refuses.

    Raises:
        ChannelError: too many, an empty or repeated one, more than the whole, or one for the channel itself.
    """
    if len(shares) > MAX_SHARES:
        raise ChannelError(f"{len(shares)} shares; at most {MAX_SHARES} are allowed")
    if not all(0 < share.bps <= WHOLE_BPS for share in shares) or sum(s.bps for s in shares) > WHOLE_BPS:
        raise ChannelError(f"shares must be positive, and at most {WHOLE_BPS} together")
    recipients = [share.recipient for share in shares]
    if len(set(recipients)) != len(recipients):
        raise ChannelError("two shares have one recipient")
    if channel is not None and channel in recipients:
        raise ChannelError("a share is for the channel itself")


# --- Addresses


def escrow_address(channel: Pubkey, mint: Pubkey) -> Pubkey:
    """Return the address of a channel's escrow: its associated token account."""
    return get_associated_token_address(channel, mint)


# --- Opening


@frozen(kw_only=True)
class OnchainTerms:
    """The terms of a channel, which are fixed once it is open.

    Attributes:
        payer: pays the deposit; only it can close by force.
        rent_payer: lends the rent of channel and escrow, and gets it back.
        payee: gets what the shares leave; only it can settle and seal.
        signer: authorized to sign vouchers; must be a public key on the curve.
        salt: distinguishes channels of equal terms.
        open_slot: a recent slot; see `OPEN_SLOT_WINDOW`.
        deposit_micro: the most that can be settled.
        grace_seconds: how long the payee can still settle after the payer's `request_close`.
    """

    payer: Pubkey
    rent_payer: Pubkey
    payee: Pubkey
    mint: Pubkey
    signer: Pubkey
    salt: int
    open_slot: int
    deposit_micro: int
    grace_seconds: int
    shares: tuple[Share, ...] = ()

    @cached_property
    def address_and_bump(self) -> tuple[Pubkey, int]:
        """The channel's address, whether or not it exists, and the bump that its account stores."""
        keys = map(bytes, (self.payer, self.payee, self.mint, self.signer))
        numbers = struct.pack("<Q", self.salt), struct.pack("<Q", self.open_slot)
        return Pubkey.find_program_address([_CHANNEL_SEED, *keys, *numbers], PROGRAM)

    @property
    def address(self) -> Pubkey:
        """The channel's address."""
        return self.address_and_bump[0]

    @property
    def escrow(self) -> Pubkey:
        """The address of the channel's escrow."""
        return escrow_address(self.address, self.mint)

    @property
    def distribution_hash(self) -> bytes:
        """The 32 bytes that the channel stores about its shares."""
        return distribution_hash(self.shares)


def open_channel(opening: OnchainTerms) -> Instruction:
    """Create the channel and its escrow, and pay the deposit into it; payer and rent payer sign.

    Raises:
        ChannelError: the program would refuse the terms.
    """
    _check_opening(opening)
    data = _ARGUMENTS.pack(
        Discriminator.OPEN, opening.salt, opening.deposit_micro, opening.grace_seconds, opening.open_slot
    )
    return Instruction(
        PROGRAM,
        data + distribution_preimage(opening.shares),
        [
            _signer(opening.payer, writable=True),
            _signer(opening.rent_payer, writable=True),
            _readonly(opening.payee),
            _readonly(opening.mint),
            _readonly(opening.signer),
            _writable(opening.address),
            _writable(get_associated_token_address(opening.payer, opening.mint)),
            _writable(opening.escrow),
            _readonly(TOKEN_PROGRAM),
            _readonly(SYSTEM_PROGRAM),
            _readonly(RENT_SYSVAR),
            _readonly(ASSOCIATED_TOKEN_PROGRAM),
            _readonly(EVENT_AUTHORITY),
            _readonly(PROGRAM),
        ],
    )


def read_opening(accounts: Sequence[Pubkey], data: bytes) -> OnchainTerms:
    """Read an opening from the accounts and the data of its instruction, whatever program that names.

    Which accounts sign is up to the message; the caller compares the terms with its own.

    Raises:
        ChannelError: it is not exactly the instruction that `open_channel` builds for those terms.
    """
    if len(accounts) != _OPEN_ACCOUNTS:
        raise ChannelError(f"an opening has {_OPEN_ACCOUNTS} accounts, not {len(accounts)}")
    if len(data) < _ARGUMENTS.size or data[0] != Discriminator.OPEN:
        raise ChannelError("the instruction is not an opening")
    _, salt, deposit_micro, grace_seconds, open_slot = _ARGUMENTS.unpack_from(data)
    payer, rent_payer, payee, mint, signer = accounts[:5]
    opening = OnchainTerms(
        payer=payer,
        rent_payer=rent_payer,
        payee=payee,
        mint=mint,
        signer=signer,
        salt=salt,
        open_slot=open_slot,
        deposit_micro=deposit_micro,
        grace_seconds=grace_seconds,
        shares=read_shares(data[_ARGUMENTS.size :]),
    )
    if [meta.pubkey for meta in open_channel(opening).accounts] != list(accounts):
        raise ChannelError("an account of the opening is not the one that its terms name")
    return opening


def _check_opening(opening: OnchainTerms) -> None:
    if not 0 < opening.deposit_micro <= MAX_AMOUNT:
        raise ChannelError("the deposit must be positive, and fit into 64 bits")
    if not 0 < opening.grace_seconds < 2**32:
        raise ChannelError("the grace period must be positive, and fit into 32 bits")
    if not (0 <= opening.salt < 2**64 and 0 <= opening.open_slot < 2**64):
        raise ChannelError("salt and open slot must fit into 64 bits")
    if opening.payer == opening.payee:
        raise ChannelError("payer and payee are the same")
    if not opening.signer.is_on_curve():
        raise ChannelError("the authorized signer is no public key")
    check_shares(opening.shares, channel=opening.address)


# --- Vouchers


@frozen(kw_only=True)
class Voucher:
    """What the authorized signer signs: the payee may take up to a cumulative amount.

    `expires_at` is in Unix seconds; 0 for never. A voucher is valid while the chain's time is before it.
    """

    channel: Pubkey
    cumulative_micro: int
    expires_at: int = 0

    def message(self) -> bytes:
        """Return the 50 bytes to sign."""
        return _VOUCHER.pack(_VOUCHER_MAGIC, bytes(self.channel), self.cumulative_micro, self.expires_at)

    @classmethod
    def of(cls, message: bytes) -> Self:
        """Parse the 50 bytes.

        Raises:
            ChannelError: another length or magic.
        """
        if len(message) != VOUCHER_BYTES or message[:2] != _VOUCHER_MAGIC:
            raise ChannelError("the message is not a voucher")
        _, channel, cumulative_micro, expires_at = _VOUCHER.unpack(message)
        return cls(
            channel=Pubkey.from_bytes(channel), cumulative_micro=cumulative_micro, expires_at=expires_at
        )

    def is_signed_by(self, signer: Pubkey, signature: Signature) -> bool:
        """Return whether a signature over `message` is valid."""
        return signature.verify(signer, self.message())


def verify_voucher(voucher: Voucher, signer: Pubkey, signature: Signature) -> Instruction:
    """Have the chain verify a voucher's signature; `settle` or `settle_and_seal` must come next.

    Each such instruction costs the fee of another signature.
    """
    start = _SIGNED.size - 96
    header = (48, _THIS_INSTRUCTION, start, _THIS_INSTRUCTION, _SIGNED.size, VOUCHER_BYTES, _THIS_INSTRUCTION)
    return Instruction(
        ED25519_PROGRAM,
        _SIGNED.pack(1, 0, *header, bytes(signer), bytes(signature)) + voucher.message(),
        [],
    )


def verified_voucher(data: bytes, signer: Pubkey) -> Voucher | None:
    """Return the voucher of a signer that an instruction of `verify_voucher` has the chain verify.

    The signature is verified here too, so that only the signer can have made it.
    """
    if len(data) != _SIGNED.size + VOUCHER_BYTES:
        return None
    *_, signed_by, signature = _SIGNED.unpack_from(data)
    try:
        voucher = Voucher.of(data[_SIGNED.size :])
    except ChannelError:
        return None
    is_signed = signed_by == bytes(signer) and voucher.is_signed_by(signer, Signature.from_bytes(signature))
    return voucher if is_signed else None


# --- The other instructions


def settle(channel: Pubkey) -> Instruction:
    """Record the voucher that the instruction before verified; anyone may. It moves no money."""
    return Instruction(
        PROGRAM, bytes((Discriminator.SETTLE,)), [_writable(channel), _readonly(INSTRUCTIONS_SYSVAR)]
    )


def settle_and_seal(*, payee: Pubkey, channel: Pubkey, has_voucher: bool) -> Instruction:
    """End the channel; the payee signs. With `has_voucher`, record the voucher verified just before first."""
    return Instruction(
        PROGRAM,
        struct.pack("<BB", Discriminator.SETTLE_AND_SEAL, has_voucher),
        [_signer(payee), _writable(channel), _readonly(INSTRUCTIONS_SYSVAR)],
    )


def request_close(*, payer: Pubkey, channel: Pubkey) -> Instruction:
    """Begin to close by force; the payer signs. The grace period begins with it."""
    return Instruction(PROGRAM, bytes((Discriminator.REQUEST_CLOSE,)), [_signer(payer), _writable(channel)])


def seal(channel: Pubkey) -> Instruction:
    """End a closing channel after its grace period; anyone may."""
    return Instruction(PROGRAM, bytes((Discriminator.SEAL,)), [_writable(channel)])


def close_instructions(
    opening: OnchainTerms, *, treasury: Pubkey, voucher: Voucher | None, signature: Signature | None
) -> list[Instruction]:
    """Return the payee's instructions that settle a voucher, seal, and pay everything out.

    Without a voucher the whole deposit that is not settled yet goes back. `signature` is the voucher's.
    """
    steps = []
    if voucher is not None and signature is not None:
        steps.append(verify_voucher(voucher, opening.signer, signature))
    return [
        *steps,
        settle_and_seal(payee=opening.payee, channel=opening.address, has_voucher=bool(steps)),
        distribute_opened(opening, treasury=treasury),
    ]


def distribute_opened(opening: OnchainTerms, *, treasury: Pubkey) -> Instruction:
    """Pay out what is settled and not yet paid; of a sealed channel, everything. Anyone may.

    `treasury` is one of `TREASURIES`, the one of the cluster.
    """
    owners = (opening.payer, opening.payee, treasury, *(share.recipient for share in opening.shares))
    payer, payee, dust, *recipients = (
        _writable(get_associated_token_address(owner, opening.mint)) for owner in owners
    )
    return Instruction(
        PROGRAM,
        bytes((Discriminator.DISTRIBUTE,)) + distribution_preimage(opening.shares),
        [
            *map(_writable, (opening.address, opening.payer, opening.rent_payer, opening.escrow)),
            payer,
            payee,
            dust,
            *map(_readonly, (opening.mint, TOKEN_PROGRAM, EVENT_AUTHORITY, PROGRAM)),
            *recipients,
        ],
    )


# --- The account


@frozen(kw_only=True)
class ChannelAccount:
    """The account of a channel.

    Attributes:
        settled_micro: cumulative amount of the highest voucher that was settled.
        paid_micro: how much of that was distributed.
        closing_since: time of the payer's `request_close`; 0 if there was none.
        withdrawn_at: time of the payer's `withdraw_payer`; 0 if there was none.
    """

    bump: int
    status: OnchainStatus
    salt: int
    deposit_micro: int
    settled_micro: int
    paid_micro: int
    closing_since: int
    withdrawn_at: int
    grace_seconds: int
    distribution_hash: bytes = field(repr=bytes.hex)
    payer: Pubkey
    payee: Pubkey
    signer: Pubkey
    mint: Pubkey
    rent_payer: Pubkey
    open_slot: int

    @property
    def deadline(self) -> int:
        """The time from which on anyone can seal a closing channel."""
        return self.closing_since + self.grace_seconds

    def is_of(self, opening: OnchainTerms) -> bool:
        """Return whether an opening created this channel. A later `top_up` raises the deposit."""
        return self.deposit_micro >= opening.deposit_micro and (
            self.bump,
            self.salt,
            self.grace_seconds,
            self.distribution_hash,
            self.payer,
            self.payee,
            self.signer,
            self.mint,
            self.rent_payer,
            self.open_slot,
        ) == (
            opening.address_and_bump[1],
            opening.salt,
            opening.grace_seconds,
            opening.distribution_hash,
            opening.payer,
            opening.payee,
            opening.signer,
            opening.mint,
            opening.rent_payer,
            opening.open_slot,
        )

    def __bytes__(self) -> bytes:
        """Serialize it, for `read_channel`."""
        return _CHANNEL.pack(
            _DISCRIMINATOR,
            _VERSION,
            self.bump,
            self.status,
            self.salt,
            self.deposit_micro,
            self.settled_micro,
            self.paid_micro,
            self.closing_since,
            self.withdrawn_at,
            self.grace_seconds,
            self.distribution_hash,
            bytes(self.payer),
            bytes(self.payee),
            bytes(self.signer),
            bytes(self.mint),
            bytes(self.rent_payer),
            self.open_slot,
        )


def read_channel(data: bytes) -> ChannelAccount:
    """Parse the data of a channel's account. The caller checks that the account's owner is `PROGRAM`.

    Raises:
        ChannelError: another length, discriminator, version or status.
    """
    if len(data) != CHANNEL_BYTES:
        raise ChannelError(f"the account of a channel has {CHANNEL_BYTES} bytes, not {len(data)}")
    kind, version, bump, status, *numbers = _CHANNEL.unpack(data)
    if (kind, version) != (_DISCRIMINATOR, _VERSION) or status not in iter(OnchainStatus):
        raise ChannelError(f"unknown account: discriminator {kind}, version {version}, status {status}")
    salt, deposit, settled, paid, closing_since, withdrawn_at, grace, distribution, *keys, open_slot = numbers
    payer, payee, signer, mint, rent_payer = (Pubkey.from_bytes(key) for key in keys)
    return ChannelAccount(
        bump=bump,
        status=OnchainStatus(status),
        salt=salt,
        deposit_micro=deposit,
        settled_micro=settled,
        paid_micro=paid,
        closing_since=closing_since,
        withdrawn_at=withdrawn_at,
        grace_seconds=grace,
        distribution_hash=distribution,
        payer=payer,
        payee=payee,
        signer=signer,
        mint=mint,
        rent_payer=rent_payer,
        open_slot=open_slot,
    )


def _signer(address: Pubkey, *, writable: bool = False) -> AccountMeta:
    return AccountMeta(address, is_signer=True, is_writable=writable)


def _writable(address: Pubkey) -> AccountMeta:
    return AccountMeta(address, is_signer=False, is_writable=True)


def _readonly(address: Pubkey) -> AccountMeta:
    return AccountMeta(address, is_signer=False, is_writable=False)
