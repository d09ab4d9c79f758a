"""The RPC node: dispatches calls to methods by name.

It matches Solana's node in what clients rely on: names, defaults, error codes, and `null` for missing
accounts and transactions.
"""

from collections.abc import Mapping
from typing import Final

from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.testkit.node.account_methods import AccountMethods
from agentpay_server.testkit.node.block_methods import BlockMethods
from agentpay_server.testkit.node.chain_methods import ChainMethods
from agentpay_server.testkit.node.errors import METHOD_NOT_FOUND, NODE_UNHEALTHY, RpcError
from agentpay_server.testkit.node.group import Json, Method
from agentpay_server.testkit.node.history_methods import HistoryMethods
from agentpay_server.testkit.node.params import Params
from agentpay_server.testkit.node.requests import RpcCall
from agentpay_server.testkit.node.transaction_methods import Airdrop, TransactionMethods


class Node:
    """Handles calls, on the thread of the chain. Without `airdrop`, it refuses airdrops."""

    def __init__(self, chain: EmbeddedChain, airdrop: Airdrop | None = None) -> None:
        self.chain: Final = chain
        groups = (
            AccountMethods(chain),
            BlockMethods(chain),
            ChainMethods(chain),
            HistoryMethods(chain),
            TransactionMethods(chain, airdrop),
        )
        self.methods: Mapping[str, Method] = {
            name: method for group in groups for name, method in group.methods.items()
        }

    async def result(self, call: RpcCall) -> Json:
        """Return the result of a call.

        Raises:
            RpcError: the call is refused.
        """
        if call.error is not None:
            raise call.error
        method = self.methods.get(call.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, "Method not found")
        try:
            await self.chain.recall()
            return await method(Params(call.params))
        except ChainUnreachableError:
            raise RpcError(NODE_UNHEALTHY, "Node is unhealthy: its ledger does not respond") from None
