"""The persistent identity of a server: the seed of its keys, its chain, its manual clock, its starts.

All of it is in the database. The seed is sealed: the database contains no usable key.
"""

from typing import Final

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.runner import Database, StartRefusedError, run_again_if_late
from agentpay_server.database.tables import StateRecord
from agentpay_server.ledger import transactions
from agentpay_server.platform.clock import ManualClock
from agentpay_server.platform.randomness import Randomness
from agentpay_server.platform.vault import Place, Vault, VaultError

SEED_BYTES: Final = 64
CUSTODY_SEED: Final = Place(table="server_state", column="value", row="custody_seed")
_GENESIS: Final = "genesis"
_MINT: Final = "usdc_mint"
"""The mint of its token accounts, if it is configurable."""
_CHAIN: Final = "chain"
_CLOCK: Final = "manual_clock_us"
_STARTS: Final = "starts"


class WrongKeyError(StartRefusedError):
    """The encryption key is not the one that sealed the secrets of this database."""


class ForeignChainError(StartRefusedError):
    """The chain is not the one that this database belongs to."""


async def count_start(database: Database) -> int:
    """Return the number of earlier starts on the database."""
    return await run_again_if_late(database, _count_start)


async def custody_seed(database: Database, vault: Vault, randomness: Randomness) -> bytes:
    """Return the seed of all signing keys, generated at the first start."""
    try:
        return bytes.fromhex(await run_again_if_late(database, _seed, vault, randomness))
    except VaultError:
        raise WrongKeyError(
            "the encryption key is not the one that this database was first started with; use the original"
        ) from None


async def embedded_genesis(ledger: Database | None, randomness: Randomness) -> str:
    """Return the permanent identity of the embedded chain; a chain in memory is new at each start."""
    genesis = randomness.randbytes(16).hex()
    return genesis if ledger is None else await run_again_if_late(ledger, _known_or, _CHAIN, genesis)


async def known_genesis(database: Database) -> str | None:
    """Return None before the first start."""
    known = await database.read(get, _GENESIS)
    return None if known is None else known.decode("ascii")


async def check_genesis(database: Database, genesis: str) -> None:
    """Store the chain's identity at the first start, and compare it at later ones."""
    known = await run_again_if_late(database, _known_or, _GENESIS, genesis)
    if known != genesis:
        raise ForeignChainError(
            f"this database belongs to the chain {known}, but the server would use {genesis}: restore the "
            "original chain, or start with a new database"
        )


async def check_mint(database: Database, usdc_mint: str) -> None:
    """Store the USDC mint at the first start on a cluster, and compare it at later ones.

    The accounts have no token accounts for another mint.
    """
    known = await run_again_if_late(database, _known_or, _MINT, usdc_mint)
    if known != usdc_mint:
        raise ForeignChainError(
            f"the accounts of this database hold the mint {known}, not {usdc_mint}: set that one, or use a "
            "new database"
        )


async def restore_clock(database: Database, clock: ManualClock) -> None:
    """Set a manual clock to the stored time; store its time at the first start.

    A server on the system's clock may have run since. Its transactions in flight could neither land nor
    expire before the blocks of their blockhashes, so the clock continues no earlier than they were signed.
    """
    clock.set_to(await run_again_if_late(database, _resumed_us, clock.now_us()))


async def note_clock(database: Database, now_us: int) -> None:
    """Store the time before a manual clock reaches it."""
    await database.run(put, _CLOCK, str(now_us).encode("ascii"))


def _count_start(connection: Connection) -> int:
    before = int(get(connection, _STARTS) or b"0")
    put(connection, _STARTS, str(before + 1).encode("ascii"))
    return before


def _seed(connection: Connection, vault: Vault, randomness: Randomness) -> str:
    sealed = get(connection, CUSTODY_SEED.row, lock=True)
    if sealed is not None:
        return vault.open(sealed, CUSTODY_SEED)
    seed = randomness.randbytes(SEED_BYTES).hex()
    add(connection, CUSTODY_SEED.row, vault.seal(seed, CUSTODY_SEED))
    return seed


def _resumed_us(connection: Connection, now_us: int) -> int:
    stored = int(get(connection, _CLOCK) or now_us)
    resumed_us = max(stored, transactions.newest_us(connection))
    put(connection, _CLOCK, str(resumed_us).encode("ascii"))
    return resumed_us


def _known_or(connection: Connection, name: str, value: str) -> str:
    """Return the stored value; if missing, store `value`."""
    known = get(connection, name)
    if known is None:
        add(connection, name, value.encode("ascii"))
        return value
    return known.decode("ascii")


STATE: Final = Rows(StateRecord, "name")


def get(connection: Connection, name: str, *, lock: bool = False) -> bytes | None:
    found = STATE.get(connection, name, lock=lock)
    return None if found is None else bytes(found.value)


def add(connection: Connection, name: str, value: bytes) -> None:
    """Store a value; `ConflictError` if the name has one."""
    STATE.insert(connection, StateRecord(name, value))


def put(connection: Connection, name: str, value: bytes) -> None:
    if STATE.change(connection, name, value=value) is None:
        add(connection, name, value)
