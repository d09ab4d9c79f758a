"""Connecting to a cluster: identifies it, and checks that a server may run on it."""

import logging
from collections.abc import Callable
from typing import Final

from solders.token.state import Mint

from agentpay_server.chain.clusters import Cluster, ClusterRefusedError, choose_cluster
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_DECIMALS
from agentpay_server.chain.rpc import replies
from agentpay_server.chain.rpc.chain import RpcChain
from agentpay_server.chain.rpc.client import EndpointRefusesError, RpcCaller, RpcClient
from agentpay_server.chain.rpc.replies import ChainAccount
from agentpay_server.chain.rpc.settings import RpcSettings

_OPTIONS: Final = {"encoding": "base64", "commitment": "confirmed"}

logger: logging.Logger = logging.getLogger(__name__)


def http_client(settings: RpcSettings) -> RpcCaller:
    """Return a client that calls the endpoint of the settings over HTTP."""
    return RpcClient(
        settings.url, timeout_seconds=settings.timeout_seconds, max_connections=settings.max_connections
    )


async def connect(
    settings: RpcSettings,
    *,
    stored_genesis_hash: str | None,
    treasury: str,
    mint_authority: str,
    make_client: Callable[[RpcSettings], RpcCaller] | None = None,
) -> RpcChain:
    """Connect to the cluster behind an endpoint, if a server may run on it.

    For a new database, `stored_genesis_hash` is None, and the caller must store `RpcChain.genesis_hash`
    before anything is signed. Warnings are logged if the treasury has no SOL, or if `mint_authority` cannot
    mint on a private cluster. `make_client` None means a client over HTTP.

    Raises:
        ClusterRefusedError: the server must not run on this cluster with these settings, or the endpoint
            refuses every request.
        ChainUnreachableError: the endpoint did not respond.
    """
    client = (make_client or http_client)(settings)
    try:
        cluster = choose_cluster(
            replies.read_hash(await client.call("getGenesisHash")),
            stored_genesis_hash=stored_genesis_hash,
            usdc_mint=settings.usdc_mint,
            allow_mainnet=settings.allow_mainnet,
        )
        reply = await client.call("getMultipleAccounts", [cluster.usdc_mint, treasury], _OPTIONS)
        mint, payer = replies.read_accounts(reply, 2)
        _check_mint(cluster, mint, mint_authority)
        if payer is None or not payer.lamports:
            logger.warning("the fee payer %s holds no SOL: until it does, no transaction lands", treasury)
        is_surfpool = not cluster.is_public and replies.read_is_surfpool(await client.call("getVersion"))
    except BaseException as error:
        await client.close()
        if isinstance(error, EndpointRefusesError):
            message = f"the RPC endpoint refuses to be used: {error}; check --rpc-url"
            raise ClusterRefusedError(message) from error
        raise
    return RpcChain(client, settings, cluster, is_surfpool=is_surfpool)


def _check_mint(cluster: Cluster, account: ChainAccount | None, mint_authority: str) -> None:
    if account is None:
        raise ClusterRefusedError(
            f"the cluster has no USDC mint at {cluster.usdc_mint}: create one there, with {USDC_DECIMALS} "
            f"decimals and {mint_authority} as its authority, or set another mint"
        )
    if account.program != str(TOKEN_PROGRAM):
        raise ClusterRefusedError(f"{cluster.usdc_mint} is not a mint of the Token program")
    try:
        mint = Mint.from_bytes(account.data)
    except ValueError:
        raise ClusterRefusedError(f"{cluster.usdc_mint} is not a mint") from None
    if mint.decimals != USDC_DECIMALS:
        raise ClusterRefusedError(
            f"the mint {cluster.usdc_mint} has {mint.decimals} decimals, USDC has {USDC_DECIMALS}"
        )
    if not cluster.is_public and str(mint.mint_authority) != mint_authority:
        logger.warning(
            "the authority of the mint %s is %s, not %s: the sandbox cannot fund accounts",
            cluster.usdc_mint,
            mint.mint_authority,
            mint_authority,
        )
