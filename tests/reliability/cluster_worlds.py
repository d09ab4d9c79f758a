"""A whole server on a cluster in memory, on the event loop's own time: `clusters.py` is what it talks to."""

import asyncio
import struct
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import rpc_world
import stores
import worlds
from clusters import Cluster, Node
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from worlds import InterruptedDatabase, Party, World, micro

from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage
from agentpay_server.assembly.server import Server, start_server
from agentpay_server.chain import transactions
from agentpay_server.chain.custody import (
    TEST_MINT_AUTHORITY,
    TREASURY,
    record_key,
    sign_transaction,
    spending_key,
)
from agentpay_server.chain.instructions import TOKEN_PROGRAM, transfer_checked
from agentpay_server.chain.protocol import Blockhash
from agentpay_server.platform import clock
from agentpay_server.platform.clock import SystemClock
from agentpay_server.platform.settings import Settings
from agentpay_server.plugins.cluster import chain
from agentpay_server.plugins.cluster.chain_head import ChainHead
from agentpay_server.plugins.cluster.settings import RpcSettings

_START_NS = 1_767_225_600 * 10**9


class ClusterWorld(World):
    """A server, the cluster that it works on, and what a test asks of both."""

    def __init__(self, runtime: Server, cluster: Cluster) -> None:
        super().__init__(runtime, None)  # type: ignore[arg-type]
        self.cluster = cluster

    def balance(self, party: Party) -> int:
        return self.cluster.balance(party.token_account)

    async def account(self, amount: str = "0", name: str = "Payer") -> Party:
        """Create an account, and let a third party fund it; the deposit is posted on return."""
        party = await super().account(name=name)
        if micro(amount):
            await self.mint(party, amount)
            for _ in range(100):
                (row,) = await self.rows("accounts", account_id=party.account_id)
                if row["balance"] == micro(amount):
                    return party
                await asyncio.sleep(1)
            raise AssertionError("the deposit was not posted")
        return party

    async def mint(self, party: Party, amount: str) -> str:
        """Let money come to an account from outside, which is posted later, and return the signature."""
        self._signed += 1
        cluster, context = self.cluster, self.runtime.context
        signed = transactions.mint(
            context.signer,
            self._blockhash(),
            usdc_mint=cluster.usdc_mint,
            token_account=party.token_account,
            amount_micro=micro(amount),
            memo=f"mint {self._signed}",
        )
        cluster.submit(signed.raw)
        await asyncio.sleep(2 * cluster.slot_seconds)
        return signed.signature

    async def drain_elsewhere(self, source: Party, to: Party, amount: str) -> None:
        """Move money with the spending key itself, behind the back of the service."""
        self._signed += 1
        signed = transactions.transfer(
            self.runtime.context.signer,
            self._blockhash(),
            usdc_mint=self.cluster.usdc_mint,
            account_index=source.index,
            source=source.token_account,
            recipient=to.token_account,
            amount_micro=micro(amount),
            memo=f"drain {self._signed}",
        )
        self.cluster.submit(signed.raw)
        await asyncio.sleep(2 * self.cluster.slot_seconds)

    async def drain_by_delegate(self, source: Party, to: Party, amount: str) -> None:
        """Make another key the delegate of a token account, which then moves money without the owner."""
        signer, delegate = self.runtime.context.signer, record_key(source.index)
        token_account, key = Pubkey.from_string(source.token_account), spending_key(source.index)
        address, owner = (Pubkey.from_string(signer.address(each)) for each in (delegate, key))
        approve = Instruction(
            TOKEN_PROGRAM,
            struct.pack("<BQ", 4, micro(amount)),
            [
                AccountMeta(token_account, is_signer=False, is_writable=True),
                AccountMeta(address, is_signer=False, is_writable=False),
                AccountMeta(owner, is_signer=True, is_writable=False),
            ],
        )
        move = transfer_checked(
            source=token_account,
            destination=Pubkey.from_string(to.token_account),
            owner=address,
            mint=Pubkey.from_string(self.cluster.usdc_mint),
            amount_micro=micro(amount),
        )
        for instruction, cosigner in ((approve, key), (move, delegate)):
            self.cluster.submit(sign_transaction(signer, self._blockhash(), [instruction], cosigner).raw)
            await asyncio.sleep(2 * self.cluster.slot_seconds)

    def _blockhash(self) -> Blockhash:
        return _newest_blockhash(self.cluster)

    async def settled(self, key: str, source: Party, to: Party, amount: str) -> str:
        """Send one key until the response is not a 503, and return the transfer_id."""
        for _ in range(200):
            answer = await self.transfer(key, source, to, amount)
            if answer.status != 503:
                assert (answer.status, answer.body["status"]) == (200, "settled"), answer
                return str(answer.body["transfer_id"])
            await asyncio.sleep(1)
        raise AssertionError(f"no end in sight: {answer}")


def patched(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    """Let servers reach a cluster, and let their clocks go with the event loop's time."""

    def time_ns() -> int:
        return _START_NS + int(asyncio.get_running_loop().time() * 1e9)

    monkeypatch.setattr(chain, "RpcClient", lambda *_, **__: Node(cluster))
    monkeypatch.setattr(clock, "time", types.SimpleNamespace(time_ns=time_ns))


def new_cluster(**options: Any) -> Cluster:
    """Return a cluster for the keys that `serving` gives its servers."""
    custody = rpc_world.new_custody()
    return Cluster(
        treasury=custody.address(TREASURY), mint_authority=custody.address(TEST_MINT_AUTHORITY), **options
    )


def _newest_blockhash(cluster: Cluster) -> Blockhash:
    slot = cluster.newest_block(cluster.slot() - 1)
    return Blockhash(value=cluster.blockhash(slot), last_valid_block_height=cluster.height(slot) + 150)


def mint(cluster: Cluster, token_account: str, amount_micro: int) -> None:
    """Let USDC come to a token account from outside."""
    signed = transactions.mint(
        rpc_world.new_custody(),
        _newest_blockhash(cluster),
        usdc_mint=cluster.usdc_mint,
        token_account=token_account,
        amount_micro=amount_micro,
        memo="mint",
    )
    cluster.submit(signed.raw)


def believe_heights(patch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Let servers believe the block heights of a node, as a new one that knows no pace of its cluster."""
    patch.setattr(ChainHead, "_is_new", lambda *_: True)
    patch.setattr(ChainHead, "_do_slots_fit", lambda *_: True)
    for name, fact in facts.items():
        patch.setattr(ChainHead, name, fact)


@asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster | None = None, **rpc: Any
) -> AsyncIterator[ClusterWorld]:
    """Serve on a cluster in memory, a new one unless one is given; `rpc` are settings of the cluster."""
    cluster = cluster or new_cluster()
    patched(monkeypatch, cluster)
    settings = Settings(settlement_wait_seconds=20)
    with worlds._real_time():
        database = InterruptedDatabase(await stores.new_database(), None)
    runtime = await start_server(
        ServerConfig(
            clock=SystemClock(),
            rpc=RpcSettings(
                url="http://cluster.invalid",
                fee_payer_key=rpc_world.GIVEN[TREASURY],
                mint_authority_key=rpc_world.GIVEN[TEST_MINT_AUTHORITY],
                **rpc,
            ),
        ),
        Storage(database=database, ledger=None, settings=settings),
    )
    world = ClusterWorld(runtime, cluster)
    try:
        yield world
    finally:
        await world.http.aclose()
        await runtime.stop(within_seconds=0)
