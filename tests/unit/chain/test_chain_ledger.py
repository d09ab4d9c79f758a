"""The embedded chain and its ledger: what was answered is never lost, and what is lost was never answered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from chain_world import SEED, START_US, World, run
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import MessageAddressTableLookup, MessageHeader, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain import instructions
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, Custody, record_key, sign_transaction
from agentpay_server.chain.embedded import blocks, ledgered
from agentpay_server.chain.embedded.blocks import BLOCK_US, SeenMessage
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.persistence import (
    ChainState,
    ForeignLedgerError,
    LedgerMovedError,
    MemoryLedger,
    PersistedPage,
)
from agentpay_server.chain.embedded.store import DatabaseLedger
from agentpay_server.chain.embedded.virtual_machine import Executed
from agentpay_server.chain.protocol import (
    Blockhash,
    ChainUnreachableError,
    FailureReason,
    SignatureStatus,
    SignedTransaction,
)
from agentpay_server.chain.transactions import PolicyRecord
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.database.tables import metadata

LANDED = SignatureStatus(is_final=True)
REFUSED = SignatureStatus(is_final=False, is_refused=True)


class Ledger:
    """A ledger that outlives the chains, and fails when told: of `inner`, or in a database in memory."""

    def __init__(self, inner: MemoryLedger | None = None) -> None:
        self.database = MemoryDatabase()
        self.inner = DatabaseLedger(self.database) if inner is None else inner
        self.pages: list[PersistedPage] = []
        self.acts: list[Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]] = []
        self.is_down = False
        self.statuses_read = 0

    async def read(self) -> tuple[ChainState, Mapping[str, bytes]] | None:
        if self.is_down:
            raise OSError("scripted: no disk")
        return await self.inner.read()

    async def seen(self, *, from_height: int) -> Sequence[SeenMessage]:
        return await self.inner.seen(from_height=from_height)

    async def status(self, signature: str) -> SignatureStatus | None:
        if self.is_down:
            raise OSError("scripted: no disk")
        self.statuses_read += 1
        return await self.inner.status(signature)

    async def newest(self, *, count: int) -> Sequence[Executed]:
        if self.is_down:
            raise OSError("scripted: no disk")
        return await self.inner.newest(count=count)

    def acknowledge(self, token_account: str, slot: int) -> None:
        self.inner.acknowledge(token_account, slot)

    def capture(self) -> Callable[[], None]:
        return self.inner.capture()

    async def write(self, page: PersistedPage) -> None:
        if self.is_down:
            raise OSError("scripted: no disk")
        self.pages.append(page)
        write = self.inner.write(page)
        await (self.acts.pop(0)(write) if self.acts else write)


async def lost(write: Coroutine[Any, Any, None]) -> None:
    """The page is not written."""
    write.close()
    raise OSError("scripted: disk full")


async def reply_lost(write: Coroutine[Any, Any, None]) -> None:
    """The page is written, but its result is not returned."""
    await write
    raise OSError("scripted: connection lost")


async def died(write: Coroutine[Any, Any, None]) -> None:
    """The process ends before the page is written."""
    write.close()
    raise KeyboardInterrupt


async def died_after(write: Coroutine[Any, Any, None]) -> None:
    """The process ends with the page written, before its result is returned."""
    await write
    raise KeyboardInterrupt


@contextmanager
def new_ledger(inner: MemoryLedger | None = None) -> Iterator[Ledger]:
    made = Ledger(inner)
    yield made
    run(made.database.close())


@pytest.fixture(params=["memory", "database"])
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    with new_ledger(MemoryLedger() if request.param == "memory" else None) as made:
        yield made


@pytest.fixture
def world(ledger: Ledger) -> World:
    return World(ledger=ledger)


def is_provably_expired(world: World, transaction: SignedTransaction) -> bool:
    height = world.height()
    return world.status(transaction) is None and height > transaction.last_valid_block_height


# --- What a restart keeps


def test_balances_statuses_and_time_survive_a_restart(world: World) -> None:
    source, recipient = world.account(1, 10), world.account(2)
    landed, failed = world.transfer(1, recipient, 3), world.transfer(1, recipient, 11)
    world.land(landed)
    failure = world.send(failed)
    assert failure is not None
    assert failure.failure is not None
    slot = world.chain._slot
    after = world.restarted()
    assert (after.balance(source), after.balance(recipient)) == (7, 3)
    assert (after.status(landed), after.status(failed)) == (LANDED, failure)
    assert failure.failure.reason is FailureReason.INSUFFICIENT_FUNDS
    assert after.chain._slot == slot
    # A restart begins a block.
    assert after.svm.get_clock().slot == blocks.slot_at(1)
    assert after.svm.get_clock().unix_timestamp == START_US // 1_000_000
    for address in (TREASURY, TEST_MINT_AUTHORITY):
        assert after.svm.get_account(after.pubkey(address)) == world.svm.get_account(world.pubkey(address))


def test_every_account_is_unchanged_after_a_restart(world: World) -> None:
    world.account(1, 10)
    world.freeze(world.account(2))
    world.account(3)
    world.close(3)
    world.land(
        world.write_record(
            1,
            PolicyRecord(account_id="acct_1", policy_version=2, policy_sha256="0" * 64, policy='{"a":1}'),
        )
    )
    after = world.restarted()
    addresses = [
        *(world.token_address(index) for index in (1, 2, 3)),
        *(world.owner(index) for index in (1, 2, 3)),
        world.usdc,
        world.custody.address(TREASURY),
        world.custody.address(record_key(1)),
    ]
    for address in addresses:
        pubkey = Pubkey.from_string(address)
        assert after.svm.get_account(pubkey) == world.svm.get_account(pubkey)
    assert after.record(1) == world.record(1)
    assert after.token_account(world.token_address(3)) is None
    # It can go on from there.
    after.account(3, 5)
    assert after.balance(after.token_address(3)) == 5
    assert after.restarted().balance(after.token_address(3)) == 5


def test_a_restart_does_not_refill_an_empty_treasury(world: World) -> None:
    treasury = world.pubkey(TREASURY)
    page = PersistedPage(
        before=world.chain._written,
        after=ChainState(genesis=world.chain._genesis, slot=9, height=9, height_since_us=START_US),
        first_accounts={str(treasury): None},
    )
    assert world.ledger is not None
    run(world.ledger.write(page))
    assert world.restarted().lamports(str(treasury)) == 0


def test_a_page_holds_only_the_writable_accounts_of_a_transaction(world: World, ledger: Ledger) -> None:
    source, recipient = world.account(1, 10), world.account(2)
    transaction = world.transfer(1, recipient, 3)
    world.land(transaction)
    page = ledger.pages[-1]
    assert set(page.accounts()) == {source, recipient, world.custody.address(TREASURY)}
    assert {name: status for name, (status, _) in page.signatures.items()} == {transaction.signature: LANDED}


# --- Replays: the traps of LiteSVM


def test_the_same_bytes_never_execute_again_after_a_restart(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    transaction = world.transfer(1, recipient, 3)
    world.land(transaction)
    after = world.restarted()
    assert after.send(transaction) == LANDED
    assert after.balance(recipient) == 3


def test_an_unsent_transaction_lands_after_a_restart_or_expires(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    sent, unsent = (world.transfer(1, recipient, 3, memo=memo) for memo in ("sent", "unsent"))
    after = world.restarted()
    assert after.send(sent) == LANDED
    after.now_us += 151 * BLOCK_US
    last = after.restarted(now_us=after.now_us)
    assert last.send(unsent) is None
    assert is_provably_expired(last, unsent)
    assert last.send(sent) == LANDED
    assert last.balance(recipient) == 3


def test_setting_the_clock_back_before_a_restart_revives_no_expired_transaction(
    world: World,
) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    unsent = world.transfer(1, recipient, 3)
    world.now_us += 151 * BLOCK_US
    assert is_provably_expired(world, unsent)
    # Nothing has landed since: that it was told is why the ledger knows.
    after = world.restarted(now_us=START_US)
    assert after.send(unsent) is None
    assert after.height() > unsent.last_valid_block_height
    assert after.balance(recipient) == 0


def test_a_refusal_survives_a_restart(world: World) -> None:
    """It was told to have expired, and may have been signed again: its bytes must never land."""
    world.account(1, 10)
    recipient = world.account(2)
    treasury = world.pubkey(TREASURY)
    purse = world.svm.get_account(treasury)
    assert purse is not None
    unpaid = world.transfer(1, recipient, 3)
    world.svm.set_account(treasury, Account(1, b"", instructions.SYSTEM_PROGRAM))
    assert world.send(unpaid) == REFUSED
    after = world.restarted()
    assert after.status(unpaid) == REFUSED
    assert after.send(unpaid) == REFUSED
    assert after.balance(recipient) == 0


def test_a_chain_in_memory_is_rebuilt_from_its_ledger_after_a_fault_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    source, recipient = world.account(1, 10), world.account(2)
    landed, unsent = world.transfer(1, recipient, 3), world.transfer(1, recipient, 4, memo="txn_2")
    world.land(landed)

    def moved(machine: LiteSVM, transaction: VersionedTransaction, **_: object) -> Executed:
        machine.send_transaction(transaction)
        raise OSError("scripted: a fault of the machine")

    with monkeypatch.context() as patch:
        patch.setattr(ledgered, "execute", moved)
        with pytest.raises(ChainUnreachableError):
            run(world.chain.send(unsent.raw))
    # The machine has moved the money; nothing was reported, so nothing has happened.
    assert world.status(unsent) is None
    assert (world.balance(source), world.balance(recipient)) == (7, 3)
    assert (world.send(landed), world.send(unsent)) == (LANDED, LANDED)
    assert world.balance(recipient) == 7


def test_deposits_can_be_read_again_until_the_reader_returns_with_a_later_cursor() -> None:
    """A batch can be read again from the cursor before it, however many batches were read since."""
    world = World()
    recipient = world.account(1)
    for _ in range(150):
        world.mint(recipient, 1)

    async def read(after: str | None) -> list[str]:
        return [batch.cursor async for batch in world.chain.deposits(recipient, after=after)]

    first, second = run(read(None))
    assert run(read(None)) == [first, second]
    assert run(read(first)) == [second]
    assert run(read(None)) == [second]


def test_statuses_evicted_from_memory_are_read_from_the_ledger(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "TRANSACTIONS_PER_BLOCK", 8)
    monkeypatch.setattr(ledgered, "_REMEMBERED_STATUSES", 10)
    world.account(1, 10)
    recipient = world.account(2)
    landed, failed = world.transfer(1, recipient, 3), world.transfer(1, recipient, 11)
    world.land(landed)
    failure = world.send(failed)
    world.fill(30)
    assert len(world.chain._statuses) == 10
    ledger.statuses_read = 0
    assert (world.status(landed), world.status(failed)) == (LANDED, failure)
    assert ledger.statuses_read == 2
    assert (world.send(landed), world.send(failed)) == (LANDED, failure)
    assert world.balance(recipient) == 3


def test_already_processed_is_not_treated_as_an_outcome(world: World, ledger: Ledger) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    landed, failed = world.transfer(1, recipient, 3), world.transfer(1, recipient, 11)
    world.land(landed)
    failure = world.send(failed)
    pages = len(ledger.pages)
    world.chain._statuses.clear()
    assert (world.send(failed), world.send(landed)) == (failure, LANDED)
    assert len(ledger.pages) == pages
    assert world.balance(recipient) == 3


# --- Pages that are not written


def test_the_chain_is_unavailable_while_the_ledger_is(world: World, ledger: Ledger) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    transaction = world.transfer(1, recipient, 3)
    ledger.is_down = True
    with pytest.raises(ChainUnreachableError):
        run(world.chain.send(transaction.raw))
    for read in (
        world.chain.latest_blockhash,
        world.chain.block_height,
        lambda: world.chain.signature_status(transaction.signature),
        lambda: world.chain.token_accounts([recipient]),
        lambda: world.chain.account_size(recipient),
        lambda: world.chain.send(transaction.raw),
    ):
        with pytest.raises(ChainUnreachableError):
            run(read())
    ledger.is_down = False
    # Transactions sent meanwhile may have been executed since: they were not reported as lost.
    world.land(transaction)
    assert world.balance(recipient) == 3


def test_a_process_that_another_has_overtaken_writes_nothing(world: World, ledger: Ledger) -> None:
    source, recipient = world.account(1, 10), world.account(2)
    stale = world.transfer(1, recipient, 3)
    second = world.restarted()
    second.land(second.transfer(1, recipient, 4))
    with pytest.raises(ChainUnreachableError) as caught:
        run(world.chain.send(stale.raw))
    assert isinstance(caught.value.__cause__, LedgerMovedError)
    # It takes the ledger up again, as it is now.
    assert world.status(stale) is None
    assert (world.balance(source), world.balance(recipient)) == (6, 4)
    assert world.send(stale) == LANDED
    assert (world.balance(source), world.balance(recipient)) == (3, 7)


def test_a_ledger_of_other_keys_is_refused(world: World) -> None:
    with pytest.raises(ForeignLedgerError):
        world.restarted(seed=bytes(64))


def test_a_transaction_with_look_up_tables_is_refused() -> None:
    """The accounts that it would change are not in its list."""
    world = World()
    payer = Keypair.from_seed(bytes(32))
    message = MessageV0(
        MessageHeader(1, 0, 0),
        [payer.pubkey()],
        Hash.from_string(world.blockhash().value),
        [],
        [MessageAddressTableLookup(Pubkey.default(), b"\x00", b"")],
    )
    raw = bytes(VersionedTransaction(message, [payer]))
    with pytest.raises(ValueError, match="look-up"):
        run(world.chain.send(raw))


STEPS = ["send", "lost", "reply lost", "died", "died after", "restart", "expire"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=10))
def test_a_transfer_lands_once_and_the_supply_is_constant_through_any_faults(steps: list[str]) -> None:
    """The settlement rules over a chain that fails anywhere: sent until landed or expired, then again."""
    acts = {"lost": lost, "reply lost": reply_lost, "died": died, "died after": died_after}
    with new_ledger() as ledger:
        world = World(ledger=ledger)
        source, recipient = world.account(1, 100), world.account(2)
        done, transaction = 0, world.transfer(1, recipient, 1)
        for number, step in enumerate(steps):
            if step in acts:
                ledger.acts.append(acts[step])
            if step == "restart":
                world = world.restarted()
            elif step == "expire":
                world.chain.expire_blockhash()
            else:
                try:
                    run(world.chain.send(transaction.raw))
                except ChainUnreachableError:
                    pass
                except KeyboardInterrupt:
                    world = world.restarted()
            ledger.acts.clear()
            if world.status(transaction) == LANDED:
                done += 1
                transaction = world.transfer(1, recipient, 1, memo=f"txn {number}")
            elif is_provably_expired(world, transaction):
                transaction = world.transfer(1, recipient, 1, memo=f"again {number}")
            assert (world.balance(source), world.balance(recipient)) == (100 - done, done)


# --- In a file, with others meanwhile


class Filed:
    """A chain whose ledger is a file."""

    def __init__(self, path: Path) -> None:
        self.custody = Custody(SEED)
        self.database = FileDatabase(path)
        self.ledger = DatabaseLedger(self.database)
        self.chain = EmbeddedChain(
            treasury=self.custody.address(TREASURY),
            mint_authority=self.custody.address(TEST_MINT_AUTHORITY),
            now_us=lambda: START_US,
            ledger=self.ledger,
        )

    def signed(self, blockhash: Blockhash, number: int) -> SignedTransaction:
        """Return a distinct transaction for each number."""
        treasury = Pubkey.from_string(self.custody.address(TREASURY))
        step = instructions.transfer_lamports(treasury, treasury, number)
        return sign_transaction(self.custody, blockhash, [step])


@asynccontextmanager
async def filed(path: Path) -> AsyncIterator[Filed]:
    made = Filed(path)
    await made.database.create_missing(metadata)
    try:
        yield made
    finally:
        await made.database.close()


def test_concurrent_sends_share_pages_and_reads_see_only_written_pages(tmp_path: Path) -> None:
    async def test() -> None:
        async with filed(tmp_path / "chain.sqlite3") as it:
            blockhash = await it.chain.latest_blockhash()
            turns: set[ChainState | None] = set()

            async def sent(number: int) -> SignatureStatus | None:
                signed = it.signed(blockhash, number)
                await it.chain.send(signed.raw)
                turns.add(it.chain._written)
                assert await it.ledger.status(signed.signature) == LANDED
                return await it.chain.signature_status(signed.signature)

            assert await asyncio.gather(*map(sent, range(1, 201))) == [LANDED] * 200
            assert len(turns) < 20

    asyncio.run(test())


def test_chain_and_ledger_agree_after_a_cancelled_send(tmp_path: Path) -> None:
    async def test() -> None:
        async with filed(tmp_path / "chain.sqlite3") as it:
            for number in range(1, 40):
                signed = it.signed(await it.chain.latest_blockhash(), number)
                task = asyncio.ensure_future(it.chain.send(signed.raw))
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                height = await it.chain.block_height()
                status = await it.chain.signature_status(signed.signature)
                assert status == await it.ledger.status(signed.signature)
                if status is None and height > signed.last_valid_block_height:
                    await it.chain.send(signed.raw)
                    assert await it.chain.signature_status(signed.signature) is None

    asyncio.run(test())
