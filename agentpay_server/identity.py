"""What a server is, across its starts: the seed of its keys, its chain, its manual clock, its first operator.

All of it lies in the database, so that a database is one server's whole memory. The seed is sealed: whoever
has the database alone has no key.
"""

from typing import Final

from agentpay_server import identity_store as state
from agentpay_server.clock import ManualClock
from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import Database, StartRefusedError, run_again_if_late
from agentpay_server.randomness import Randomness
from agentpay_server.resealing import CUSTODY_SEED, opened_seed
from agentpay_server.vault import Vault, VaultError

SEED_BYTES: Final = 64
_GENESIS: Final = "genesis"
"""The chain that the database was written for."""
_MINT: Final = "usdc_mint"
"""The mint of its token accounts, where that is a setting."""
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
    return await run_again_if_late(database, _count_start)


async def custody_seed(database: Database, vault: Vault, randomness: Randomness) -> bytes:
    """Return the seed of all keys that the server signs with, made at the first start.

    Raises:
        WrongKeyError: it was sealed under another key.
    """
    try:
        return bytes.fromhex(await run_again_if_late(database, _seed, vault, randomness))
    except VaultError:
        raise WrongKeyError(
            "the encryption key is not the one that this database was first started with; give that one"
        ) from None


async def embedded_genesis(ledger: Database | None, randomness: Randomness) -> str:
    """Return what names the embedded chain for good.

    Args:
        ledger: where the chain is kept, and its name with it; None for one that ends with the process, and is
            another one at each start.
        randomness: gives a new chain its name.
    """
    genesis = randomness.randbytes(16).hex()
    return genesis if ledger is None else await run_again_if_late(ledger, _known_or, _CHAIN, genesis)


async def known_genesis(database: Database) -> str | None:
    """Return what names the chain that the database was written for; None before the first start."""
    known = await database.read(state.get, _GENESIS)
    return None if known is None else known.decode("ascii")


async def check_genesis(database: Database, genesis: str) -> None:
    """Note the chain at the first start, and hold every later one against it.

    Raises:
        ForeignChainError: it is another chain.
    """
    known = await run_again_if_late(database, _known_or, _GENESIS, genesis)
    if known != genesis:
        raise ForeignChainError(
            f"this database belongs to the chain {known}, and the chain that it would be used with is "
            f"{genesis}: put back the one that it was written for, or start with neither"
        )


async def check_mint(database: Database, usdc_mint: str) -> None:
    """Note the USDC mint at the first start on a cluster, and hold every later one against it.

    Raises:
        ForeignChainError: it is another mint, of which no account of the database has a token account.
    """
    known = await run_again_if_late(database, _known_or, _MINT, usdc_mint)
    if known != usdc_mint:
        raise ForeignChainError(
            f"the accounts of this database hold the mint {known}, not {usdc_mint}: name that one, or use a "
            "new database"
        )


async def restore_clock(database: Database, clock: ManualClock) -> None:
    """Let a manual clock stand where it stood when the server was last stopped, or note where it stands."""
    clock.set_to(int(await run_again_if_late(database, _known_or, _CLOCK, str(clock.now_us()))))


async def note_clock(database: Database, now_us: int) -> None:
    """Store where a manual clock is about to stand."""
    await database.run(state.put, _CLOCK, str(now_us).encode("ascii"))


def _count_start(connection: Connection) -> int:
    before = int(state.get(connection, _STARTS) or b"0")
    state.put(connection, _STARTS, str(before + 1).encode("ascii"))
    return before


def _seed(connection: Connection, vault: Vault, randomness: Randomness) -> str:
    sealed = state.get(connection, CUSTODY_SEED.row, lock=True)
    if sealed is not None:
        return opened_seed(connection, vault, sealed)
    seed = randomness.randbytes(SEED_BYTES).hex()
    state.add(connection, CUSTODY_SEED.row, vault.seal(seed, CUSTODY_SEED))
    return seed


def _known_or(connection: Connection, name: str, value: str) -> str:
    """Return what is stored under a name, or store `value` there and return it."""
    known = state.get(connection, name)
    if known is None:
        state.add(connection, name, value.encode("ascii"))
        return value
    return known.decode("ascii")
