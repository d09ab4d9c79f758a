"""What a server is, across its starts: the seed of its keys, its chain, its manual clock, its first operator.

All of it lies in the database, so that a database is one server's whole memory. The seed is sealed: whoever
has the database alone has no key.
"""

from typing import Final

from agentpay_server.clock import ManualClock
from agentpay_server.randomness import Randomness
from agentpay_server.services.vault import Vault, VaultError
from agentpay_server.store import state
from agentpay_server.store.connection import Connection
from agentpay_server.store.database import Database, StartRefusedError

SEED_BYTES: Final = 64
CUSTODY_SEED: Final = "custody_seed"
_GENESIS: Final = "genesis"
"""The chain that the database was written for."""
_CHAIN: Final = "chain"
"""The chain that is kept in the database."""
_CLOCK: Final = "manual_clock_us"
_STARTS: Final = "starts"


class WrongKeyError(StartRefusedError):
    """The encryption key is not the one that sealed the secrets of this database."""


class ForeignChainError(StartRefusedError):
    """The chain is not the one that this database was written for."""


async def count_start(database: Database) -> int:
    """Return how often a server was started on the database before, and count this start."""
    return await database.run(_count_start)


async def custody_seed(database: Database, vault: Vault, randomness: Randomness) -> bytes:
    """Return the seed of all keys that the server signs with, made at the first start.

    Raises:
        WrongKeyError: it was sealed under another key.
    """
    sealed = await database.run(_seed, vault, randomness)
    try:
        return bytes.fromhex(vault.open(sealed, CUSTODY_SEED))
    except VaultError:
        raise WrongKeyError(
            "the encryption key is not the one that this database was first started with; give that one"
        ) from None


async def check_genesis(database: Database, ledger: Database | None, randomness: Randomness) -> None:
    """Note the chain at the first start, and hold every later one against it.

    Args:
        database: the server's.
        ledger: where the embedded chain is kept, and its name with it; None for one that ends with the
            process, and is another one at each start.
        randomness: gives a new chain its name.

    Raises:
        ForeignChainError: it is another chain.
    """
    genesis = randomness.randbytes(16).hex()
    if ledger is not None:
        genesis = await ledger.run(_known_or, _CHAIN, genesis)
    known = await database.run(_known_or, _GENESIS, genesis)
    if known != genesis:
        raise ForeignChainError(
            f"this database belongs to the chain {known}, and the chain beside it is {genesis}: put back the "
            "one that it was written for, or start with neither"
        )


async def restore_clock(database: Database, clock: ManualClock) -> None:
    """Let a manual clock stand where it stood when the server was last stopped, or note where it stands."""
    clock.set_to(int(await database.run(_known_or, _CLOCK, str(clock.now_us()))))


async def note_clock(database: Database, now_us: int) -> None:
    """Store where a manual clock is about to stand."""
    await database.run(state.put, _CLOCK, str(now_us).encode("ascii"))


def _count_start(connection: Connection) -> int:
    before = int(state.get(connection, _STARTS) or b"0")
    state.put(connection, _STARTS, str(before + 1).encode("ascii"))
    return before


def _seed(connection: Connection, vault: Vault, randomness: Randomness) -> bytes:
    sealed = state.get(connection, CUSTODY_SEED)
    if sealed is None:
        sealed = vault.seal(randomness.randbytes(SEED_BYTES).hex(), CUSTODY_SEED)
        state.put(connection, CUSTODY_SEED, sealed)
    return sealed


def _known_or(connection: Connection, name: str, value: str) -> str:
    """Return what is stored under a name, or store `value` there and return it."""
    known = state.get(connection, name)
    if known is None:
        state.put(connection, name, value.encode("ascii"))
        return value
    return known.decode("ascii")
