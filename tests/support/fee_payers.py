"""The fee payers of local sellers and of the local facilitator, which broadcast payments."""

import pytest
from solders.transaction import VersionedTransaction

from agentpay_server.plugins.facilitator.settling import FeePayer
from agentpay_server.plugins.node.jsonrpc import RpcError


def lose_replies_to_fee_payers(patch: pytest.MonkeyPatch, *, is_sent: bool = True) -> None:
    """Let a fee payer get no reply from its node, which gets the transaction if `is_sent`."""
    broadcast = FeePayer.broadcast

    async def loses_reply(fee_payer: FeePayer, transaction: VersionedTransaction) -> str:
        if is_sent:
            await broadcast(fee_payer, transaction)
        raise RpcError(-32000, "scripted: the node does not respond")

    patch.setattr(FeePayer, "broadcast", loses_reply)
