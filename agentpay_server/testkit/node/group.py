"""The base class of the method groups of the RPC node."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.testkit.node import parsed
from agentpay_server.testkit.node.errors import CONTEXT_SLOT_NOT_REACHED, RpcError
from agentpay_server.testkit.node.params import Options, Params

VERSION = "3.0.0"
"""The Solana version that this node emulates."""

Json = Any

Method = Callable[[Params], Awaitable[Json]]


class MethodGroup:
    """A group of methods that read or change a chain."""

    def __init__(self, chain: EmbeddedChain) -> None:
        self.chain = chain

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        raise NotImplementedError

    def check(self, options: Options) -> None:
        """Validate the common options: the commitment, and the minimum context slot."""
        options.commitment()
        least = options.count("minContextSlot")
        if least is not None and least > self.chain.slot:
            raise RpcError(
                CONTEXT_SLOT_NOT_REACHED,
                "Minimum context slot has not been reached",
                {"contextSlot": self.chain.slot},
            )

    def in_context(self, value: Json) -> Json:
        """Return a value with its context: the slot that it is from."""
        return {"context": {"slot": self.chain.slot, "apiVersion": VERSION}, "value": value}


def decimals_on(svm: LiteSVM) -> parsed.Decimals:
    """Return a function from a mint to its decimals; 0 if the mint is missing."""

    def decimals(mint: Pubkey) -> int:
        account = svm.get_account(mint)
        issued = None if account is None else parsed.mint(account)
        return 0 if issued is None else issued.decimals

    return decimals
