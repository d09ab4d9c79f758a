"""Opens the chain of a server, an embedded one or a cluster, and the keys that sign for it.

Refuses a cluster that is dangerous with the configuration, and a chain that the database does not belong to.
"""

from agentpay_server import features
from agentpay_server.assembly import identity
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.storage import Storage
from agentpay_server.chain.clusters import ClusterRefusedError
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY, Custody, KeyPath
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.persistence import ForeignLedgerError
from agentpay_server.chain.embedded.store import DatabaseLedger
from agentpay_server.chain.protocol import ChainUnreachableError, OpenedChain
from agentpay_server.database.runner import Database, StartRefusedError
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.platform.clock import Clock
from agentpay_server.platform.randomness import Randomness, SeededRandomness
from agentpay_server.platform.vault import Vault


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
