"""A Solana cluster on virtual time: slots, blockhashes, landings and forks.

Transactions run on a LiteSVM machine; `nodes.py` decides what each node reports, and when. The cluster is
honest: a transaction lands at most once, and within the 150 blocks of its blockhash.
"""

import hashlib
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from attrs import Factory, define, frozen
from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.token.state import TokenAccount, TokenAccountState
from solders.transaction import Transaction, VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from agentpay_lab.simulation import forwarder
from agentpay_lab.simulation.chance import Chance
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_lab.simulation.loop import SimulatedLoop
from agentpay_lab.simulation.plan import Plan
from agentpay_lab.simulation.timeline import Timeline
from agentpay_server.chain import instructions
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import OnchainStatus
from agentpay_server.chain.custody import transaction_of
from agentpay_server.chain.embedded import virtual_machine as machine
from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS

FINALIZED_SLOTS: Final = 31

USDC_MINT: Final = instructions.USDC_MINTS["mainnet-beta"]
GENESIS: Final = str(Hash(hashlib.sha256(b"agentpay simulation").digest()))

_FIRST_SLOT: Final = 435_888_000
_FIRST_HEIGHT: Final = 413_000_000
_SLOTS_BEFORE: Final = 1_000
_LANDING_SECONDS: Final = 0.5
_STRANGERS_MICRO: Final = 10**12
_SELLERS_MICRO: Final = 10**9
_SUBJECT: Final = re.compile(r"(?:txn|sess)_[0-9a-z]{26}")
_CLOSE_ACCOUNT: Final = 9
_TRANSFER_CHECKED: Final = 12
_TOKEN: Final = instructions.TOKEN_PROGRAM


@frozen(kw_only=True)
class Described:
    """A transaction as it can be read on chain.

    Attributes:
        signature: the first one, by the fee payer.
        subject: the transfer or session in its memo, or its payment.
        kind: `transfer`, `payment`, `opening`, `closing`, `channel` (its opening), or `other`.
        source: token account that the first movement debits.
        destination: token account that the first movement credits.
        last_valid_height: last block height at which it can land; 0 if its blockhash is unknown.
    """

    signature: str
    signatures: tuple[str, ...]
    message: str
    subject: str | None
    kind: str
    source: str | None
    destination: str | None
    last_valid_height: int


@frozen
class PaidOut:
    """A channel that a transaction paid out; `source` is its payer's token account."""

    subject: str
    source: str
    settled_micro: int


@frozen(kw_only=True)
class LandedTransaction:
    """A transaction in a block; `error` is in JSON-RPC form.

    `before` and `after` are balances of its USDC accounts, `undo` its writable accounts before it.
    """

    paid_out: Sequence[PaidOut]

    about: Described
    slot: int
    error: object
    transaction: VersionedTransaction
    keys: Sequence[str]
    before: Mapping[str, int]
    after: Mapping[str, int]
    meta: TransactionMetadata
    undo: Mapping[str, bytes | None]


class Watcher(Protocol):
    def handed_over(self, about: Described, by: str) -> None:
        """Called only for the first time."""
        ...

    def in_block(self, landing: LandedTransaction) -> None: ...

    def undone(self, landing: LandedTransaction) -> None: ...


@define
class _History:
    slots: list[int] = Factory(list)
    signatures: list[str] = Factory(list)
    places: dict[str, int] = Factory(dict)


class SimulatedCluster:
    """Executes transactions; `wall_us` is the true time at the start, in microseconds since 1970."""

    genesis_hash: str = GENESIS
    usdc_mint: str = USDC_MINT

    def __init__(
        self,
        plan: Plan,
        chance: Chance,
        loop: SimulatedLoop,
        faults: FaultInjector,
        timeline: Timeline,
        *,
        wall_us: int,
        watcher: Watcher,
    ) -> None:
        self._skips_every = plan.skew.skips_every
        self.slot_seconds = plan.skew.slot_seconds
        self._loop, self._faults, self._timeline = loop, faults, timeline
        self._wall_us, self._watcher = wall_us, watcher
        self._landing = chance.stream("landing")
        self._stalled_seconds = 0.0
        self._stalled_since: float | None = None
        self._machine = machine.acquire()
        forwarder.add_to(self._machine)
        self._heights: dict[str, int] = {}
        self._fork = 0
        # The fork that made the blocks from a slot on.
        self._forks: list[tuple[int, int]] = [(0, 0)]
        self._known: dict[str, Described] = {}
        self._versions: dict[str, list[tuple[int, Account | None]]] = {}
        self._histories: defaultdict[str, _History] = defaultdict(_History)
        self._order: list[LandedTransaction] = []
        self._messages: dict[str, str] = {}  # By message: the signature under which it landed first.
        self._payments: dict[str, str] = {}
        self._channels: dict[str, str] = {}
        self._promised: dict[str, dict[str, int]] = {}
        self._rolled_back: dict[
            str, LandedTransaction
        ] = {}  # Rolled back and not landed again, oldest first.
        self.landings: dict[str, LandedTransaction] = {}
        self.executed = 0
        self.stranger = Keypair.from_seed(hashlib.sha256(b"a stranger").digest())
        self.strangers_account = instructions.associated_token_address(
            str(self.stranger.pubkey()), self.usdc_mint
        )

    # --- Time

    def slot(self) -> int:
        return _FIRST_SLOT + _SLOTS_BEFORE + int(self._lived() / self.slot_seconds + 1e-9)

    def height(self, slot: int) -> int:
        """Return the block height at a slot, or the previous block's if the slot is empty."""
        slots = slot - _FIRST_SLOT
        return _FIRST_HEIGHT + slots - (slots // self._skips_every if self._skips_every else 0)

    def has_block(self, slot: int) -> bool:
        return slot >= _FIRST_SLOT and self.height(slot) > self.height(slot - 1)

    def newest_block(self, slot: int) -> int:
        """Return the newest slot with a block up to a slot: nodes never report an empty one."""
        while not self.has_block(slot):
            slot -= 1
        return slot

    @property
    def first_slot(self) -> int:
        return _FIRST_SLOT + 1

    def _lived(self) -> float:
        now = self._loop.time() if self._stalled_since is None else self._stalled_since
        return now - self._stalled_seconds

    def stall(self, seconds: float) -> None:
        if self._stalled_since is not None:
            return
        since = self._stalled_since = self._loop.time()

        def resume() -> None:
            self._stalled_since = None
            self._stalled_seconds += self._loop.time() - since

        self._loop.schedule_event(seconds, resume)

    # --- Setting up

    def furnish(
        self, *, treasury: str, mint_authority: str, sellers: Sequence[tuple[Pubkey, Pubkey]] = ()
    ) -> None:
        """Create the treasury, the mint and third parties' accounts, once. `sellers`: owner and fee payer."""
        if self._versions:
            return
        first = machine.first_accounts(
            self._machine, treasury=treasury, usdc_mint=self.usdc_mint, mint_authority=mint_authority
        )
        sol = bytes(Account(10**12, b"", instructions.SYSTEM_PROGRAM))
        for payer in (self.stranger.pubkey(), *(payer for _, payer in sellers)):
            first[str(payer)] = sol
        first[self.strangers_account] = self._usdc_account(self.stranger.pubkey(), _STRANGERS_MICRO)
        for owner, payer in sellers:
            address = instructions.associated_token_address(str(owner), self.usdc_mint)
            first[address] = self._usdc_account(owner, 0 if owner == payer else _SELLERS_MICRO)
        machine.set_accounts(self._machine, first)
        for address, account in first.items():
            assert account is not None  # noqa: S101 - all of them are there
            self._versions[address] = [(_FIRST_SLOT, Account.from_bytes(account))]

    def _usdc_account(self, owner: Pubkey, amount_micro: int) -> bytes:
        holds = TokenAccount(
            Pubkey.from_string(self.usdc_mint),
            owner,
            amount_micro,
            delegate=None,
            state=TokenAccountState.Initialized,
            is_native=None,
            delegated_amount=0,
            close_authority=None,
        )
        return bytes(Account(10**7, bytes(holds), _TOKEN))

    # --- Receiving and landing

    def blockhash(self, slot: int) -> str:
        fork = next(fork for since, fork in reversed(self._forks) if since <= slot)
        text = str(Hash(hashlib.sha256(b"%d/%d" % (slot, fork)).digest()))
        self._heights[text] = self.height(slot)
        return text

    def is_valid(self, blockhash: str, height: int) -> bool:
        made = self._heights.get(blockhash)
        return made is not None and made <= height <= made + BLOCKHASH_LIFE_BLOCKS

    def blocks_left(self, transaction: VersionedTransaction) -> int:
        """Negative if it is too late."""
        made = self._heights.get(str(transaction.message.recent_blockhash), 0)
        return made + BLOCKHASH_LIFE_BLOCKS - self.height(self.slot())

    def name_payment(self, message: str, transfer_id: str) -> None:
        """Register the transfer that a message pays: its memo need not name it."""
        self._payments[message] = transfer_id

    def name_channel(self, address: str, subject: str) -> None:
        """Register the session or the payment of a channel."""
        self._channels[address] = subject

    def describe(self, raw: bytes) -> Described:
        return self._described(transaction_of(raw))

    def submit(self, raw: bytes, by: str) -> str:
        transaction = transaction_of(raw)
        signature = str(transaction.signatures[0])
        about = self._known.get(signature)
        if about is None:
            about = self._known[signature] = self._described(transaction)
            self._watcher.handed_over(about, by)
        self._timeline.note("send", by, about.kind, about.subject or "-", signature[:12])
        if signature in self.landings or self._faults.strike("tx.dropped", by):
            return signature
        delay = self._landing.expovariate(1 / _LANDING_SECONDS)
        if late := self._faults.strike("tx.late", by):
            left = (about.last_valid_height - self.height(self.slot())) * self.slot_seconds
            # Often in one of the last possible blocks, when the service is about to consider it expired.
            delay = late.choice((late.uniform(1, 75), max(left - late.uniform(0, 15), 0.1)))
        self._loop.schedule_event(delay, self.land, transaction)
        if again := self._faults.strike("tx.repeated", by):
            self._loop.schedule_event(again.uniform(0.1, 70), self.land, transaction)
        return signature

    def pay_from_outside(self, token_account: str, amount_micro: int, *, slots_ago: int = 0) -> None:
        pay = instructions.transfer_checked(
            source=Pubkey.from_string(self.strangers_account),
            destination=Pubkey.from_string(token_account),
            owner=self.stranger.pubkey(),
            mint=Pubkey.from_string(self.usdc_mint),
            amount_micro=amount_micro,
        )
        note = instructions.memo(f"outside {self.executed}")
        blockhash = Hash.from_string(self.blockhash(self.slot() - slots_ago))
        message = Message.new_with_blockhash([pay, note], self.stranger.pubkey(), blockhash)
        signed = Transaction([self.stranger], message, blockhash)
        self.land(VersionedTransaction.from_bytes(bytes(signed)))

    def _described(self, transaction: VersionedTransaction) -> Described:
        message = transaction.message
        keys, kind, subject = message.account_keys, "other", None
        source = destination = None
        for step in message.instructions:
            program, data = keys[step.program_id_index], bytes(step.data)
            if program == _TOKEN and data[0] == _CLOSE_ACCOUNT:
                kind = "closing"
            elif program == _TOKEN and data[0] == _TRANSFER_CHECKED:
                if source is None:
                    accounts = bytes(step.accounts)
                    source, destination = str(keys[accounts[0]]), str(keys[accounts[2]])
            elif program == codecs.PROGRAM and data[0] == codecs.Discriminator.OPEN:
                parties = [str(keys[index]) for index in step.accounts]
                kind, subject = "channel", self._channels.get(parties[5])
                source, destination = parties[6:8]
                break
            elif str(program) == str(instructions.MEMO_PROGRAM):
                found = _SUBJECT.search(data.decode())
                subject = found.group() if found else None
        named = message_name(transaction)
        if named in self._payments:
            subject, kind = self._payments[named], "payment"
        elif subject is not None and kind not in ("closing", "channel"):
            kind = "transfer" if subject.startswith("txn") else "opening"
        made = self._heights.get(str(message.recent_blockhash))
        return Described(
            signature=str(transaction.signatures[0]),
            signatures=tuple(map(str, transaction.signatures)),
            message=named,
            subject=subject,
            kind=kind if subject is not None else "other",
            source=source,
            destination=destination,
            last_valid_height=0 if made is None else made + BLOCKHASH_LIFE_BLOCKS,
        )

    def land(self, transaction: VersionedTransaction) -> None:
        signature, slot = str(transaction.signatures[0]), self.slot()
        if signature in self.landings or self.blocks_left(transaction) < 0:
            return
        about = self._known.get(signature) or self._described(transaction)
        if self._messages.get(about.message, signature) != signature:
            # A message lands once, whatever its signatures. A rolled-back one lands again unchanged.
            return
        keys = [str(key) for key in transaction.message.account_keys]
        addresses = [str(address) for address in machine.writable_accounts(transaction)]
        undo = {address: self._bytes_at(address) for address in addresses}
        before = self.held_by(keys)
        now_us = self._wall_us + int(self._loop.time() * 1_000_000)
        machine.set_clock(self._machine, slot, now_us)
        result = self._machine.send_transaction(transaction)
        error = None
        if isinstance(result, FailedTransactionMetadata):
            if result.meta().signature() != transaction.signatures[0]:
                return  # Its fee payer has no SOL, or similar: no block accepts it.
            error = _json_error(result)
        landing = LandedTransaction(
            about=about,
            slot=slot,
            error=error,
            transaction=transaction,
            keys=keys,
            before=before,
            after=self.held_by(keys),
            meta=result.meta() if isinstance(result, FailedTransactionMetadata) else result,
            undo=undo,
            paid_out=[] if error is not None else list(self._paid_out(signature, undo)),
        )
        self.executed += 1
        self._order.append(landing)
        self.landings[signature] = landing
        self._messages[about.message] = signature
        self._rolled_back.pop(signature, None)
        changed = {each: self._machine.get_account(each) for each in machine.writable_accounts(transaction)}
        for address, account in machine.serialized(changed).items():
            version = None if account is None else Account.from_bytes(account)
            self._versions.setdefault(address, []).append((slot, version))
        for key in keys:
            history = self._histories[key]
            history.places[signature] = len(history.signatures)
            history.slots.append(slot)
            history.signatures.append(signature)
        self._timeline.note("land", "cluster", about.kind, about.subject or "-", signature[:12], error or "")
        self._watcher.in_block(landing)

    def promise(self, signature: str, settles: Mapping[str, int]) -> None:
        """Register what a transaction of a seller settles of channels, by their addresses."""
        self._promised[signature] = dict(settles)

    def _paid_out(self, signature: str, undo: Mapping[str, bytes | None]) -> Iterator[PaidOut]:
        """Yield the channels that a transaction has paid out, with what the program has settled of each."""
        for address in self._channels.keys() & undo.keys():
            raw, now = undo[address], self._bytes_at(address)
            if raw is None:
                continue
            before = codecs.read_channel(Account.from_bytes(raw).data)
            gone = now is None or _status(now) is OnchainStatus.DISTRIBUTED
            if gone and before.status is not OnchainStatus.DISTRIBUTED:
                source = instructions.associated_token_address(str(before.payer), self.usdc_mint)
                settled_micro = self._promised.get(signature, {}).get(address, before.settled_micro)
                yield PaidOut(self._channels[address], source, settled_micro)

    def roll_back(self, slots: int, relands: Callable[[Described], float | None]) -> int:
        """Roll back the newest blocks that are not final; return the number of their transactions.

        Rolls back only as many blocks as let all these transactions land again. `relands` returns the seconds
        after which one lands again automatically; None for never.
        """
        height = self.height(self.slot())
        fork = max(self.slot() - min(slots, FINALIZED_SLOTS - 1), self._kept_for_owed())
        vanished: list[LandedTransaction] = []
        while self._order and self._order[-1].slot > fork:
            made = self._made(self._order[-1])
            if made > self.height(fork) or not _has_time(made, height):
                fork = self._order[-1].slot
                break
            vanished.append(self._undo_newest())
        self._fork += 1
        if vanished:
            self._heights = {k: v for k, v in self._heights.items() if v <= self.height(fork)}
            kept = [(since, number) for since, number in self._forks if since <= fork]
            self._forks = [*kept, (fork + 1, self._fork)]
        for landing in vanished:
            self._timeline.note("forget", "cluster", landing.about.kind, landing.about.signature[:12])
        # Includes transactions of earlier forks. Order matters: a later one may spend an earlier one's money.
        self._rolled_back = {
            each.about.signature: each for each in (*reversed(vanished), *self._rolled_back.values())
        }
        delay = 0.0
        for landing in self._rolled_back.values():
            again = relands(landing.about)
            if again is not None:
                delay = max(delay + 0.01, again)
                self._loop.schedule_event(delay, self._land_again, landing, self._fork)
        return len(vanished)

    @property
    def owes(self) -> bool:
        height = self.height(self.slot())
        return any(height <= self._made(each) + BLOCKHASH_LIFE_BLOCKS for each in self._rolled_back.values())

    def _made(self, landing: LandedTransaction) -> int:
        return self._heights[str(landing.transaction.message.recent_blockhash)]

    def _kept_for_owed(self) -> int:
        """Return the newest slot that must stay so that rolled-back transactions can land again."""
        slot = self.slot()
        height = self.height(slot)
        owed = [
            made
            for each in self._rolled_back.values()
            if (made := self._made(each)) + BLOCKHASH_LIFE_BLOCKS >= height
        ]
        if not all(_has_time(made, height) for made in owed):
            return slot
        while owed and self.height(slot - 1) >= max(owed):
            slot -= 1
        return slot if owed else 0

    def _land_again(self, landing: LandedTransaction, fork: int) -> None:
        # A later fork reschedules these landings, in another order.
        if fork == self._fork:
            self.land(landing.transaction)

    def _undo_newest(self) -> LandedTransaction:
        landing = self._order.pop()
        signature = landing.about.signature
        del self.landings[signature]
        for address, account in landing.undo.items():
            missing = Account(0, b"", instructions.SYSTEM_PROGRAM)
            restored = missing if account is None else Account.from_bytes(account)
            self._machine.set_account(Pubkey.from_string(address), restored)
            versions = self._versions.get(address)
            while versions and versions[-1][0] >= landing.slot:
                versions.pop()
            if versions is not None:
                versions.append((landing.slot, None if account is None else Account.from_bytes(account)))
        for key in landing.keys:
            history = self._histories[key]
            del history.places[signature]
            history.slots.pop()
            history.signatures.pop()
        self._watcher.undone(landing)
        return landing

    # --- Reading

    def account_at(self, address: str, slot: int) -> Account | None:
        for changed, account in reversed(self._versions.get(address, ())):
            if changed <= slot:
                return account
        return None

    def history(self, address: str, slot: int) -> tuple[Sequence[str], Mapping[str, int], int]:
        """Return an account's signatures, oldest first, their positions, and how many are up to a slot."""
        history = self._histories[address]
        return history.signatures, history.places, bisect_right(history.slots, slot)

    def held_by(self, addresses: Sequence[str]) -> dict[str, int]:
        found = {}
        for address in addresses:
            account = machine.token_account_at(self._machine, address, self.usdc_mint)
            if account is not None:
                found[address] = account.amount_micro
        return found

    def all_usdc(self) -> dict[str, int]:
        return self.held_by(list(self._versions))

    def rent_exemption(self, size: int) -> int:
        return self._machine.minimum_balance_for_rent_exemption(size)

    def close(self) -> None:
        machine.release(self._machine)

    def _bytes_at(self, address: str) -> bytes | None:
        account = self._machine.get_account(Pubkey.from_string(address))
        return bytes(account) if account is not None and account.lamports else None


def _status(account: bytes) -> OnchainStatus:
    return codecs.read_channel(Account.from_bytes(account).data).status


def message_name(transaction: VersionedTransaction) -> str:
    """Identify a message, whatever its signatures."""
    return str(Message.hash_raw_message(to_bytes_versioned(transaction.message)))


def _has_time(made: int, height: int) -> bool:
    """Return whether half of a blockhash's life is left at a height: enough to land again."""
    return made + BLOCKHASH_LIFE_BLOCKS - height >= BLOCKHASH_LIFE_BLOCKS // 2


def _json_error(result: FailedTransactionMetadata) -> object:
    error = result.err()
    if isinstance(error, TransactionErrorInstructionError):
        cause = error.err
        code: object = {"Custom": cause.code} if isinstance(cause, InstructionErrorCustom) else _name(cause)
        return {"InstructionError": [error.index, code]}
    return _name(error)


def _name(error: object) -> str:
    return str(error).rpartition(".")[2]
