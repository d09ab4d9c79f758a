"""The base class of the groups of methods of the RPC node."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.node import parsed
from agentpay_server.chain.node.errors import CONTEXT_SLOT_NOT_REACHED, RpcError
from agentpay_server.chain.node.params import Options, Params

VERSION = "3.0.0"
"""The version of Solana whose answers these are."""

Json = Any

Method = Callable[[Params], Awaitable[Json]]


class MethodGroup:
    """Some methods of a node.

    Args:
        chain: the chain that they look at.
    """

    def __init__(self, chain: EmbeddedChain) -> None:
        self.chain = chain

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by their names."""
        raise NotImplementedError

    def check(self, options: Options) -> None:
        """Refuse options that no answer of now can meet."""
        options.commitment()
        least = options.count("minContextSlot")
        if least is not None and least > self.chain.slot:
            raise RpcError(
                CONTEXT_SLOT_NOT_REACHED,
                "Minimum context slot has not been reached",
                {"contextSlot": self.chain.slot},
            )

    def in_context(self, value: Json) -> Json:
        """Return a value with the slot that it is of."""
        return {"context": {"slot": self.chain.slot, "apiVersion": VERSION}, "value": value}


def decimals_on(svm: LiteSVM) -> parsed.Decimals:
    """Return what tells the decimals of a mint, 0 where there is none."""

    def decimals(mint: Pubkey) -> int:
        account = svm.get_account(mint)
        issued = None if account is None else parsed.mint(account)
        return 0 if issued is None else issued.decimals

    return decimals
