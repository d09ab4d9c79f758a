"""A model of the payment-channel program, written from its description and not from `channels.c`.

It executes whole transactions on the accounts that they name, and returns the error that the machine must
report, or changes the accounts. Addresses and layouts are derived here again, with `struct` and hashes, so
that a fault in the codecs shows as well. Of the other programs it has only what channels use.
"""

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from attrs import define, evolve
from solders.account import Account
from solders.instruction import CompiledInstruction
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain.channels.codecs import (
    ED25519_PROGRAM,
    EVENT_AUTHORITY,
    INSTRUCTIONS_SYSVAR,
    PROGRAM,
    RENT_SYSVAR,
    TREASURIES,
)
from agentpay_server.chain.instructions import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM, TOKEN_PROGRAM

Error = int | str
"""A custom code, or the name of an error of the runtime."""

OPEN, SEALED, CLOSING, DISTRIBUTED = range(4)
_RENT: Final = {256: 2_672_640, 165: 2_039_280}
_ARGUMENT, _KEYS, _ACCOUNT_OWNER, _ACCOUNT_DATA = (
    "InvalidInstructionData",
    "NotEnoughAccountKeys",
    "InvalidAccountOwner",
    "InvalidAccountData",
)
_PROGRAM_ID, _SYSVAR = "IncorrectProgramId", "UnsupportedSysvar"


class RefusedError(Exception):
    """An instruction fails with `error`."""

    def __init__(self, error: Error) -> None:
        super().__init__(error)
        self.error = error


def require(condition: object, error: Error) -> None:
    if not condition:
        raise RefusedError(error)


@lru_cache(100_000)
def token_account(owner: Pubkey, mint: Pubkey) -> Pubkey:
    seeds = [bytes(owner), bytes(TOKEN_PROGRAM), bytes(mint)]
    return Pubkey.find_program_address(seeds, ASSOCIATED_TOKEN_PROGRAM)[0]


@define
class Token:
    """The part of a token account's data that matters here."""

    mint: Pubkey
    owner: Pubkey
    amount: int
    state: int

    @classmethod
    def of(cls, data: bytes) -> "Token":
        return cls(Pubkey(data[:32]), Pubkey(data[32:64]), int.from_bytes(data[64:72], "little"), data[108])


@define
class Held:
    """An account as the model changes it."""

    lamports: int
    owner: Pubkey
    data: bytes

    @property
    def token(self) -> Token | None:
        """A token account, initialized or not; None if it is none."""
        return Token.of(self.data) if self.owner == TOKEN_PROGRAM and len(self.data) == 165 else None


@define
class Channel:
    bump: int
    status: int
    salt: int
    deposit: int
    settled: int
    paid: int
    closing_since: int
    withdrawn_at: int
    grace: int
    distribution: bytes
    payer: Pubkey
    payee: Pubkey
    signer: Pubkey
    mint: Pubkey
    lender: Pubkey
    open_slot: int

    def pack(self) -> bytes:
        keys = b"".join(map(bytes, (self.payer, self.payee, self.signer, self.mint, self.lender)))
        numbers = [self.salt, self.deposit, self.settled, self.paid]
        return (
            bytes([1, 1, self.bump, self.status])
            + b"".join(number.to_bytes(8, "little") for number in numbers)
            + struct.pack("<qqI", self.closing_since, self.withdrawn_at, self.grace)
            + self.distribution
            + keys
            + self.open_slot.to_bytes(8, "little")
        )

    @classmethod
    def unpack(cls, data: bytes) -> "Channel":
        keys = [Pubkey(data[at : at + 32]) for at in range(88, 248, 32)]
        return cls(
            data[2],
            data[3],
            *struct.unpack("<QQQQqqI", data[4:56]),
            data[56:88],
            *keys,
            int.from_bytes(data[248:], "little"),
        )


@define
class Named:
    """An account as an instruction names it."""

    key: Pubkey
    is_signer: bool


class Model:
    """Accounts, by address, and the clock of a machine."""

    def __init__(self) -> None:
        self.accounts: dict[Pubkey, Held] = {}
        self.slot = 0
        self.now = 0
        self.events: list[bytes] = []
        """Of the newest transaction, if it succeeded."""

    def load(self, accounts: dict[Pubkey, Account | None]) -> None:
        for key, account in accounts.items():
            self.accounts.pop(key, None)
            if account is not None and account.lamports:
                self.accounts[key] = Held(account.lamports, account.owner, bytes(account.data))

    def execute(self, transaction: VersionedTransaction) -> tuple[int, Error] | None:
        """Apply a transaction. Return which instruction fails and its error; None if it succeeds."""
        self.events = []
        message = transaction.message
        keys = message.account_keys
        signatures = len(transaction.signatures)
        for step in message.instructions:
            if keys[step.program_id_index] == ED25519_PROGRAM:
                signatures += step.data[0]
        self.accounts[keys[0]].lamports -= 5_000 * signatures
        kept = {key: evolve(self.accounts[key]) for key in keys if key in self.accounts}
        for index, step in enumerate(message.instructions):
            try:
                self._step(message, index, step)
            except RefusedError as refused:
                self._replace(keys, kept)
                return index, refused.error
        held = {key: self.accounts[key] for key in keys if key in self.accounts}
        self._replace(keys, {key: account for key, account in held.items() if account.lamports})
        return None

    def _replace(self, keys: Sequence[Pubkey], accounts: dict[Pubkey, Held]) -> None:
        for key in keys:
            self.accounts.pop(key, None)
        self.accounts |= accounts

    def _step(self, message: object, index: int, step: CompiledInstruction) -> None:
        keys = message.account_keys  # type: ignore[attr-defined]
        program = keys[step.program_id_index]
        named = [
            Named(keys[at], at < message.header.num_required_signatures)  # type: ignore[attr-defined]
            for at in step.accounts
        ]
        data = bytes(step.data)
        if program == ED25519_PROGRAM:
            return
        if program == TOKEN_PROGRAM and data[0] == 12:
            amount, _ = struct.unpack("<QB", data[1:])
            self._transfer(named[0].key, named[2].key, amount)
            return
        assert program == PROGRAM
        before = None
        if index:
            previous = message.instructions[index - 1]  # type: ignore[attr-defined]
            if keys[previous.program_id_index] == ED25519_PROGRAM:
                before = bytes(previous.data) if not previous.accounts else b""
        require(data, _ARGUMENT)
        instructions = {
            1: self._open,
            3: self._top_up,
            5: self._request_close,
            6: self._seal,
            7: self._distribute,
            8: self._withdraw,
            9: self._reclaim,
            228: self._event,
        }
        if data[0] == 2:
            self._settle(named, data, before)
        elif data[0] == 4:
            self._settle_and_seal(named, data, before)
        else:
            require(data[0] in instructions, _ARGUMENT)
            instructions[data[0]](named, data)

    # --- Instructions

    def _open(self, named: Sequence[Named], data: bytes) -> None:
        require(len(named) == 14, _KEYS)
        require(len(data) >= 33, _ARGUMENT)
        salt, deposit, grace, open_slot = struct.unpack("<QQIQ", data[1:29])
        shares = self._shares(data[29:])
        payer, lender, payee, mint, signer, address, source, escrow = (each.key for each in named[:8])
        tokens, system, rent, associated, authority, itself = (each.key for each in named[8:])
        require(named[0].is_signer and named[1].is_signer, 1)
        require(tokens == TOKEN_PROGRAM, 54)
        require((system, associated) == (SYSTEM_PROGRAM, ASSOCIATED_TOKEN_PROGRAM), _PROGRAM_ID)
        require(rent == RENT_SYSVAR, _SYSVAR)
        require(authority == EVENT_AUTHORITY, 8)
        require(itself == PROGRAM, _PROGRAM_ID)
        require(payer != payee, 2001)
        require(deposit, 200)
        require(grace, 201)
        require(signer.is_on_curve(), 2002)
        require(0 <= self.slot - open_slot <= 1500, 2003)
        seeds = [b"channel", *map(bytes, (payer, payee, mint, signer)), data[1:9], data[21:29]]
        derived, bump = Pubkey.find_program_address(seeds, PROGRAM)
        require(derived == address, 2000)
        self._check_shares(shares, address)
        self._check_mint(mint)
        self._check_payers(source, payer, mint)
        require(escrow == token_account(address, mint), 50)
        present = self.accounts.get(address, Held(0, SYSTEM_PROGRAM, b""))
        lent = max(_RENT[256] - present.lamports, 0)
        self._lend(lender, lent)
        require(present.owner == SYSTEM_PROGRAM and not present.data, 0)
        lamports = present.lamports + lent
        self.accounts[address] = Held(lamports, PROGRAM, bytes(256))
        self._create_escrow(lender, address, escrow, mint)
        self._transfer(source, escrow, deposit)
        digest = hashlib.sha256(data[29:]).digest()
        channel = Channel(
            *(bump, OPEN, salt, deposit, 0, 0, 0, 0, grace, digest),
            *(payer, payee, signer, mint, lender, open_slot),
        )
        self._write(address, channel)
        self._emit(bytes.fromhex("a6ac61094d4cbd6d"), bytes(address), data[21:29])

    def _settle(self, named: Sequence[Named], _data: bytes, before: bytes | None) -> None:
        require(len(named) == 2, _KEYS)
        require(named[1].key == INSTRUCTIONS_SYSVAR, _SYSVAR)
        channel = self._channel(named[0].key)
        require(channel.status == OPEN, 2)
        self._apply_voucher(channel, named[0].key, before)
        self._write(named[0].key, channel)

    def _top_up(self, named: Sequence[Named], data: bytes) -> None:
        require(len(named) == 6, 9)
        require(len(data) == 9, _ARGUMENT)
        payer, address, source, escrow, mint, tokens = (each.key for each in named)
        amount = int.from_bytes(data[1:], "little")
        require(named[0].is_signer, 1)
        channel = self._channel(address)
        require(channel.status == OPEN, 2)
        require(payer == channel.payer, 5)
        require(amount, 200)
        require(channel.deposit + amount < 2**64, 2100)
        require(mint == channel.mint, 7)
        require(tokens == TOKEN_PROGRAM, 54)
        self._check_payers(source, payer, mint)
        self._check_escrow(escrow, address, mint)
        self._transfer(source, escrow, amount)
        channel.deposit += amount
        self._write(address, channel)

    def _settle_and_seal(self, named: Sequence[Named], data: bytes, before: bytes | None) -> None:
        require(len(named) == 3, 9)
        require(len(data) == 2, _ARGUMENT)
        require(named[2].key == INSTRUCTIONS_SYSVAR, _SYSVAR)
        require(named[0].is_signer, 1)
        channel = self._channel(named[1].key)
        require(named[0].key == channel.payee, 6)
        is_in_time = channel.status == CLOSING and self.now < channel.closing_since + channel.grace
        require(channel.status == OPEN or is_in_time, 2)
        if data[1]:
            self._apply_voucher(channel, named[1].key, before)
        channel.status = SEALED
        self._write(named[1].key, channel)

    def _request_close(self, named: Sequence[Named], _data: bytes) -> None:
        require(len(named) == 2, _KEYS)
        require(named[0].is_signer, 1)
        channel = self._channel(named[1].key)
        require(named[0].key == channel.payer, 5)
        require(channel.status == OPEN, 2)
        channel.status, channel.closing_since = CLOSING, self.now
        self._write(named[1].key, channel)

    def _seal(self, named: Sequence[Named], _data: bytes) -> None:
        require(len(named) == 1, _KEYS)
        channel = self._channel(named[0].key)
        require(channel.status == CLOSING, 2)
        require(self.now >= channel.closing_since + channel.grace, 2201)
        channel.status = SEALED
        self._write(named[0].key, channel)

    def _distribute(self, named: Sequence[Named], data: bytes) -> None:
        require(len(named) >= 11, _KEYS)
        address, payer, lender, escrow, refunded, paid, treasury, mint, tokens, authority, itself = (
            each.key for each in named[:11]
        )
        channel = self._channel(address)
        is_sealed = channel.status == SEALED
        require(is_sealed or channel.status == OPEN, 2400)
        shares = self._shares(data[1:])
        require(hashlib.sha256(data[1:]).digest() == channel.distribution, 2407)
        recipients = [each.key for each in named[11:]]
        require(len(recipients) == len(shares), 2409)
        require(is_sealed or channel.settled > channel.paid, 2408)
        require(payer == channel.payer, 5)
        require(lender == channel.lender, 10)
        require(mint == channel.mint, 7)
        require(tokens == TOKEN_PROGRAM, 54)
        require(authority == EVENT_AUTHORITY, 8)
        require(itself == PROGRAM, _PROGRAM_ID)
        self._check_escrow(escrow, address, mint)
        require(refunded == token_account(payer, mint), 57)
        require(paid == token_account(channel.payee, mint), 60)
        treasuries = {token_account(owner, mint): owner for owner in TREASURIES.values()}
        require(treasury in treasuries, 2401)
        require(self._fault(treasury, treasuries.get(treasury, payer), mint) is None, 2402)
        for key, (owner, _) in zip(recipients, shares, strict=True):
            require(key == token_account(owner, mint), 2404)
        rest = 10_000 - sum(bps for _, bps in shares)
        legs = [(key, owner, bps) for key, (owner, bps) in zip(recipients, shares, strict=True)]
        legs.append((paid, channel.payee, rest))
        amounts = [
            (key, owner, channel.settled * bps // 10_000 - channel.paid * bps // 10_000)
            for key, owner, bps in legs
        ]
        if is_sealed and not channel.withdrawn_at:
            amounts.append((refunded, payer, channel.deposit - channel.settled))
        lost = 0
        for place, (key, owner, amount) in enumerate(amounts):
            fault = self._fault(key, owner, mint) if amount else None
            if fault is None:
                self._transfer(escrow, key, amount)
                continue
            lost += amount
            beneficiary = max(place - len(shares) + 1, 0)
            named_as = bytes([beneficiary, ["malformed", "frozen", "owner"].index(fault) + 1])
            kind = bytes.fromhex("d116b9d754a75450")
            self._emit(kind, bytes(address), bytes(owner), amount.to_bytes(8, "little"), named_as)
        channel.paid = channel.settled
        if not is_sealed:
            self._transfer(escrow, treasury, lost)
            self._write(address, channel)
            return
        token = self.accounts[escrow].token
        assert token is not None
        self._transfer(escrow, treasury, token.amount)
        self.accounts[lender].lamports += self.accounts.pop(escrow).lamports
        channel.status = DISTRIBUTED
        self._write(address, channel)
        if self.slot > channel.open_slot + 1500:
            self._free(address, lender)

    def _withdraw(self, named: Sequence[Named], _data: bytes) -> None:
        require(len(named) == 6, _KEYS)
        payer, address, escrow, refunded, mint, tokens = (each.key for each in named)
        require(named[0].is_signer, 1)
        channel = self._channel(address)
        require(channel.status == SEALED, 2)
        require(payer == channel.payer, 5)
        require(not channel.withdrawn_at, 2300)
        amount = channel.deposit - channel.settled
        require(amount, 200)
        require(mint == channel.mint, 7)
        require(tokens == TOKEN_PROGRAM, 54)
        self._check_escrow(escrow, address, mint)
        self._check_payers(refunded, payer, mint)
        self._transfer(escrow, refunded, amount)
        channel.withdrawn_at = self.now
        self._write(address, channel)

    def _reclaim(self, named: Sequence[Named], _data: bytes) -> None:
        require(len(named) == 2, _KEYS)
        channel = self._channel(named[0].key)
        require(channel.status == DISTRIBUTED, 2)
        require(named[1].key == channel.lender, 10)
        require(self.slot > channel.open_slot + 1500, 2414)
        self._free(named[0].key, channel.lender)

    def _event(self, named: Sequence[Named], _data: bytes) -> None:
        require(len(named) == 1, _KEYS)
        require(named[0].key == EVENT_AUTHORITY, 8)
        # Only the program can sign for it.
        raise RefusedError(1)

    # --- Parts

    def _emit(self, *parts: bytes) -> None:
        self.events.append(bytes.fromhex("e445a52e51cb9a1d") + b"".join(parts))

    def _channel(self, key: Pubkey) -> Channel:
        account = self.accounts.get(key)
        require(account is not None and account.owner == PROGRAM, _ACCOUNT_OWNER)
        assert account is not None
        require(len(account.data) == 256, _ACCOUNT_DATA)
        return Channel.unpack(account.data)

    def _write(self, key: Pubkey, channel: Channel) -> None:
        self.accounts[key].data = channel.pack()

    def _free(self, key: Pubkey, lender: Pubkey) -> None:
        self.accounts[lender].lamports += self.accounts.pop(key).lamports

    def _apply_voucher(self, channel: Channel, key: Pubkey, before: bytes | None) -> None:
        require(before is not None, 230)
        assert before is not None
        header = bytes.fromhex("01003000ffff1000ffff70003200ffff")
        require(len(before) == 162 and before[:16] == header, 231)
        voucher = before[112:]
        cumulative, expires_at = struct.unpack("<Qq", voucher[34:])
        require(voucher[:2] == b"V\x01", 238)
        require(voucher[2:34] == bytes(key), 232)
        require(expires_at == 0 or self.now < expires_at, 233)
        require(cumulative <= channel.deposit, 235)
        require(cumulative > channel.settled, 234)
        require(before[16:48] == bytes(channel.signer), 237)
        channel.settled = cumulative

    def _shares(self, data: bytes) -> list[tuple[Pubkey, int]]:
        require(len(data) >= 4, _ARGUMENT)
        count = int.from_bytes(data[:4], "little")
        require(count <= 32, 260)
        require(len(data) == 4 + 34 * count, _ARGUMENT)
        parts = [data[at : at + 34] for at in range(4, len(data), 34)]
        return [(Pubkey(part[:32]), int.from_bytes(part[32:], "little")) for part in parts]

    def _check_shares(self, shares: list[tuple[Pubkey, int]], channel: Pubkey) -> None:
        seen: set[Pubkey] = set()
        total = 0
        for recipient, bps in shares:
            total += bps
            require(bps > 0 and total <= 10_000 and recipient != channel, 261)
            require(recipient not in seen, 263)
            seen.add(recipient)

    def _check_mint(self, key: Pubkey) -> None:
        account = self.accounts.get(key)
        is_mint = account is not None and account.owner == TOKEN_PROGRAM and len(account.data) == 82
        require(is_mint and account is not None and account.data[45] == 1, 53)

    def _fault(self, key: Pubkey, owner: Pubkey, mint: Pubkey) -> str | None:
        account = self.accounts.get(key)
        token = None if account is None else account.token
        if token is None or token.state not in (1, 2) or token.mint != mint:
            return "malformed"
        if token.owner != owner:
            return "owner"
        return None if token.state == 1 else "frozen"

    def _check_payers(self, key: Pubkey, owner: Pubkey, mint: Pubkey) -> None:
        require(key == token_account(owner, mint), 57)
        require(self._fault(key, owner, mint) in (None, "frozen"), 58)

    def _check_escrow(self, key: Pubkey, channel: Pubkey, mint: Pubkey) -> None:
        require(key == token_account(channel, mint), 50)
        fault = self._fault(key, channel, mint)
        require(fault != "malformed", 51)
        require(fault is None, 50)

    # --- Other programs

    def _lend(self, lender: Pubkey, lamports: int) -> None:
        account = self.accounts.get(lender)
        if lamports:
            require(account is not None and account.lamports >= lamports, 1)
            assert account is not None
            account.lamports -= lamports

    def _create_escrow(self, lender: Pubkey, owner: Pubkey, key: Pubkey, mint: Pubkey) -> None:
        present = self.accounts.get(key)
        if present is not None and present.owner == TOKEN_PROGRAM:
            return
        lamports = 0 if present is None else present.lamports
        lent = max(_RENT[165] - lamports, 0)
        self._lend(lender, lent)
        data = bytes(mint) + bytes(owner) + bytes(44) + b"\1" + bytes(56)
        self.accounts[key] = Held(lamports + lent, TOKEN_PROGRAM, data)

    def _transfer(self, source: Pubkey, destination: Pubkey, amount: int) -> None:
        if not amount:
            return
        require(destination in self.accounts, _ACCOUNT_DATA)
        given, taken = self.accounts[source], self.accounts[destination]
        giver, taker = given.token, taken.token
        assert giver is not None
        require(taker is not None and taker.state, "UninitializedAccount")
        assert taker is not None
        require(2 not in (giver.state, taker.state), 17)
        require(giver.amount >= amount, 1)
        if source == destination:
            return
        given.data = _with_amount(given.data, giver.amount - amount)
        taken.data = _with_amount(taken.data, taker.amount + amount)


def _with_amount(data: bytes, amount: int) -> bytes:
    return data[:64] + amount.to_bytes(8, "little") + data[72:]
