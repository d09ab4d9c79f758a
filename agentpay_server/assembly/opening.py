"""Opens what a server stands on: its database, the keys that sign for it, and its chain.

The storage is in memory, in a directory, or in PostgreSQL. A directory contains `store.sqlite3`,
`chain.sqlite3` for the embedded chain, and, unless one is given, `key`, which seals all secrets in the
databases, readable only by its owner.

The chain is an embedded one or a cluster. Refused are a cluster that is dangerous with the configuration, and
a chain that the database does not belong to.
"""

import asyncio
import logging
import os
import shlex
import stat
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from agentpay_server import features
from agentpay_server.assembly import identity
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.chain.clusters import ClusterRefusedError
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, Custody, KeyPath
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.persistence import ForeignLedgerError
from agentpay_server.chain.embedded.store import DatabaseLedger
from agentpay_server.chain.protocol import ChainUnreachableError, OpenedChain
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.runner import (
    Database,
    DatabaseUnavailableError,
    StartRefusedError,
)
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.platform.clock import Clock
from agentpay_server.platform.logs import log
from agentpay_server.platform.randomness import Randomness, SeededRandomness
from agentpay_server.platform.settings import DATABASE_SCHEMA, Settings
from agentpay_server.platform.settings import KEY_VARIABLE as KEY_VARIABLE
from agentpay_server.platform.vault import KEY_BYTES, Vault

logger: logging.Logger = logging.getLogger(__name__)

_STORE_NAME: Final = "store.sqlite3"
_LEDGER_NAME: Final = "chain.sqlite3"
_KEY_NAME: Final = "key"


class EncryptionKeyError(StartRefusedError): ...


class ExposedDirectoryError(StartRefusedError):
    """Other users of the machine can write to the data directory."""


class NoDataError(StartRefusedError):
    """No server has kept data in the directory."""


@frozen(kw_only=True)
class Storage:
    """The opener closes it or passes it to a server.

    Attributes:
        ledger: where the embedded chain is stored; None if it ends with the process.
        is_alone: the server has exclusive use of the database, by a lock. With an embedded chain it must;
            servers on a cluster may share a PostgreSQL database.
        now_us: reads the clock of the database's machine; None if it is this machine's.
        lost: set if that lock is lost with its connection to PostgreSQL. The database then refuses all work
            until a restart, because another server may use it.
    """

    database: Database
    ledger: Database | None
    settings: Settings
    is_alone: bool = True
    now_us: Callable[[], Awaitable[int]] | None = None
    lost: asyncio.Event = field(factory=asyncio.Event)

    async def close(self) -> None:
        try:
            if self.ledger is not None and self.ledger is not self.database:
                await self.ledger.close()
        finally:
            await self.database.close()


async def open_storage(config: ServerConfig) -> Storage:
    """Open the database of a server and migrate it to this version.

    Raises:
        StartRefusedError: another server uses the database, a newer version migrated it, the key is missing,
            or the schema holds tables of other software.
        DatabaseUnavailableError: it cannot be reached or used.
        ValueError: the URL is invalid.
    """
    settings, keeps_chain = config.settings, config.rpc is None
    settings = evolve(settings, encryption_key=settings.encryption_key or _key_of_environment())
    if config.data_dir is not None:
        return await _in_directory(settings, config.data_dir, keeps_chain=keeps_chain)
    if config.database_url is not None:
        return await _in_postgres(
            settings, config.database_url, config.database_schema, keeps_chain=keeps_chain
        )
    return Storage(database=MemoryDatabase(), ledger=None, settings=settings)


async def open_database(
    *,
    data_dir: Path | None = None,
    database_url: str | None = None,
    database_schema: str = DATABASE_SCHEMA,
) -> Database:
    """Open a server's database without the server. The caller closes it.

    It opens no secrets, so it needs no encryption key. It creates missing tables in PostgreSQL, and migrates
    none of another version there, because servers may be using them. No server may be using `data_dir`.
    Raises as `open_storage` does, for PostgreSQL tables of another version, and for a directory in which no
    server has kept data: a mistyped path must not become a second store.
    """
    if (data_dir is None) == (database_url is None):
        raise ValueError("give a data_dir or a database_url")
    async with AsyncExitStack() as opened:
        database: Database
        if data_dir is not None:
            if not (data_dir / _STORE_NAME).exists():
                raise NoDataError(
                    f"{data_dir} has no data of a server: check the path, or start one first, with "
                    f"agentpay-server serve --data-dir {shlex.quote(str(data_dir))}"
                )
            _make_directory(data_dir)
            database = file = FileDatabase(data_dir / _STORE_NAME)
            opened.push_async_callback(file.close)
            await features.upgrade(file)
        else:
            assert database_url is not None  # noqa: S101 - one of them is given
            database = postgres = features.postgres(database_url, database_schema)
            opened.push_async_callback(postgres.close)
            await features.upgrade(postgres, only_if_empty=True)
        opened.pop_all()
    return database


async def _in_directory(settings: Settings, directory: Path, *, keeps_chain: bool) -> Storage:
    _make_directory(directory)
    async with AsyncExitStack() as opened:
        # Locks the whole directory against other servers.
        database = FileDatabase(directory / _STORE_NAME)
        opened.push_async_callback(database.close)
        await features.upgrade(database)
        ledger = None
        if keeps_chain:
            ledger = FileDatabase(directory / _LEDGER_NAME)
            opened.push_async_callback(ledger.close)
            await features.upgrade(ledger)
        is_first_start = await database.read(identity.get, identity.CUSTODY_SEED.row) is None
        key = settings.encryption_key or _key_in(directory, may_make=is_first_start)
        opened.pop_all()
    return Storage(database=database, ledger=ledger, settings=evolve(settings, encryption_key=key))


async def _in_postgres(settings: Settings, url: str, schema: str, *, keeps_chain: bool) -> Storage:
    if settings.encryption_key is None:
        raise EncryptionKeyError(
            f"a server on PostgreSQL needs an encryption key that outlives it: set {KEY_VARIABLE} to 64 "
            "hexadecimal digits, and keep them"
        )
    lost = asyncio.Event()

    def lose() -> None:
        lost.set()
        log(logger, logging.ERROR, "database.lost")

    async with AsyncExitStack() as opened:
        database = features.postgres(url, schema)
        opened.push_async_callback(database.close)
        if keeps_chain:
            # Before any change, because an embedded chain needs exclusive use of the schema.
            await database.hold_alone(lose)
        await features.upgrade(database)
        opened.pop_all()
    ledger = database if keeps_chain else None
    return Storage(
        database=database,
        ledger=ledger,
        settings=settings,
        is_alone=keeps_chain,
        now_us=database.now_us,
        lost=lost,
    )


def _make_directory(path: Path) -> None:
    """Create a directory that only its owner can write to, or accept an existing one.

    Another user with write access could replace the database, and so steal the money.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode
    except OSError as error:
        raise DatabaseUnavailableError(f"{path} cannot be created: {error.strerror}") from error
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ExposedDirectoryError(
            f"other users can write to the data directory {path}: chmod go-w {shlex.quote(str(path))}"
        )


def _key_in(directory: Path, *, may_make: bool) -> bytes:
    path = directory / _KEY_NAME
    try:
        return _key_of(path.read_text("ascii").strip(), str(path))
    except FileNotFoundError:
        if not may_make:
            raise EncryptionKeyError(
                f"{path} is missing, but the data next to it is encrypted with its key: restore the file, or "
                f"set {KEY_VARIABLE} to the key"
            ) from None
        key = os.urandom(KEY_BYTES)
    # Write a temporary file and rename it, so that an aborted start leaves no partial key.
    draft = directory / f"{_KEY_NAME}.new"
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{key.hex()}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    if os.name == "posix":
        _sync_directory(directory)
    return key


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _key_of_environment() -> bytes | None:
    text = os.environ.get(KEY_VARIABLE)
    return None if not text else _key_of(text, KEY_VARIABLE)


def _key_of(text: str, place: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise EncryptionKeyError(f"{place} does not hold {2 * KEY_BYTES} hexadecimal digits")
    return key


class ClusterError(StartRefusedError):
    """The server must not run on this cluster with this configuration, or the cluster does not respond."""


class ClusterAwayError(ClusterError):
    """The cluster does not respond now but may later: a starting server waits for it."""


async def open_custody(
    config: ServerConfig, database: Database, vault: Vault, randomness: Randomness
) -> Custody:
    """Return the signing keys. Their seed is generated, sealed and stored at the first start.

    Keys in the settings of a cluster take precedence.
    """
    rpc, given = config.rpc, dict[KeyPath, bytes | None]()
    if rpc is not None:
        given = {TREASURY: rpc.fee_payer_key, TEST_MINT_AUTHORITY: rpc.mint_authority_key}
    return Custody(
        await identity.custody_seed(database, vault, randomness),
        given={path: secret for path, secret in given.items() if secret is not None},
    )


async def open_chain(
    config: ServerConfig, storage: Storage, custody: Custody, source: Randomness
) -> OpenedChain:
    """The caller closes the chain."""
    if config.rpc is None:
        return await _embedded_chain(config, storage, custody, source)
    return await _cluster(config, storage, custody, source)


async def _embedded_chain(
    config: ServerConfig, storage: Storage, custody: Custody, source: Randomness
) -> EmbeddedChain:
    genesis = await identity.embedded_genesis(storage.ledger, source)
    await identity.check_genesis(storage.database, genesis)
    try:
        chain = EmbeddedChain(
            treasury=custody.address(TREASURY),
            mint_authority=custody.address(TEST_MINT_AUTHORITY),
            now_us=config.clock.now_us,
            ledger=None if storage.ledger is None else DatabaseLedger(storage.ledger),
            channel_program=config.channel_program,
        )
    except ValueError as error:
        raise StartRefusedError(f"the program of payment channels cannot run: {error}") from error
    try:
        await chain.restore()
    except ForeignLedgerError as error:
        raise identity.ForeignChainError(str(error)) from error
    return chain


async def _cluster(
    config: ServerConfig, storage: Storage, custody: Custody, source: Randomness
) -> OpenedChain:
    connect = features.cluster()
    try:
        chain = await connect(
            config.rpc,
            stored_genesis_hash=await identity.known_genesis(storage.database),
            treasury=custody.address(TREASURY),
            mint_authority=custody.address(TEST_MINT_AUTHORITY),
            make_client=config.edge.rpc_client,
        )
    except ClusterRefusedError as error:
        raise ClusterError(str(error)) from error
    except ChainUnreachableError as error:
        message = f"the RPC endpoint did not respond: {error}; start the server again once it responds"
        raise ClusterAwayError(message) from error
    try:
        _check_use(chain, storage, config.clock, source)
        # Before anything is signed for the cluster.
        await identity.check_genesis(storage.database, chain.genesis_hash)
        await identity.check_mint(storage.database, chain.usdc_mint)
    except BaseException:
        await chain.close()
        raise
    return chain


def _check_use(chain: OpenedChain, storage: Storage, clock: Clock, source: Randomness) -> None:
    if chain.is_test_chain:
        return
    if clock.is_manual:
        raise ClusterError("limits on a public cluster must follow real time: start without a manual clock")
    if isinstance(source, SeededRandomness):
        raise ClusterError(
            "keys made from a seed are predictable, and on a public cluster they would hold real "
            "money: start without a seed"
        )
    if isinstance(storage.database, MemoryDatabase):
        raise ClusterError(
            "a server in memory forgets the keys of its accounts when it ends, and on a public cluster their "
            "money would be lost: set a data directory or a database"
        )
