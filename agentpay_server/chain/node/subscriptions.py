"""Subscriptions of one WebSocket connection to the RPC node: to a transaction's status, to slots.

Messages arrive as calls, and are sent by a callable that never blocks.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

from agentpay_server.chain.embedded.executed import Executed
from agentpay_server.chain.node.errors import INVALID_REQUEST, RpcError, invalid_params
from agentpay_server.chain.node.methods import Node
from agentpay_server.chain.node.params import Params
from agentpay_server.chain.node.requests import RpcCall
from agentpay_server.chain.node.transaction_errors import error_json

MOST_SUBSCRIPTIONS: Final = 10_000
"""Maximum per connection: clients seldom cancel subscriptions to signatures."""

_SLOT_SECONDS: Final = 0.1

Send = Callable[[dict[str, Any]], None]
"""Sends a message to the client."""


class Subscriptions:
    """The subscriptions of one connection; `send` sends a message to the client."""

    def __init__(self, node: Node, send: Send) -> None:
        self._node = node
        self._chain = node.chain
        self._send = send
        self._numbers = itertools.count(1)
        self._signatures: dict[int, str] = {}
        self._numbers_of: dict[str, list[int]] = {}
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._end_listening = self._chain.history.listen(self._executed)

    async def result(self, call: RpcCall) -> tuple[Any, Callable[[], None] | None]:
        """Return the result of a call, and an action to run after the result was sent; None for none.

        Raises:
            RpcError: the call is refused.
        """
        if call.error is not None:
            raise call.error
        params = Params(call.params)
        match call.method:
            case "signatureSubscribe":
                return self._subscribe_to_signature(params)
            case "signatureUnsubscribe":
                return self._end_signature(params.count(0)), None
            case "slotSubscribe":
                return self._subscribe_to_slots(), None
            case "slotUnsubscribe":
                return self._end_slots(params.count(0)), None
            case _:
                return await self._node.result(call), None

    def close(self) -> None:
        """Cancel all subscriptions."""
        self._end_listening()
        for number in list(self._slots):
            self._end_slots(number)
        self._signatures.clear()
        self._numbers_of.clear()

    def _subscribe_to_signature(self, params: Params) -> tuple[int, Callable[[], None]]:
        signature, options = params.signature(0), params.options(1)
        options.commitment()
        number = self._number()
        self._signatures[number] = signature
        self._numbers_of.setdefault(signature, []).append(number)

        def notify_if_executed() -> None:
            executed = self._chain.history.get(signature)
            if executed is not None:
                self._executed(executed)

        return number, notify_if_executed

    def _subscribe_to_slots(self) -> int:
        number = self._number()
        self._slots[number] = asyncio.get_running_loop().create_task(self._notify_of_slots(number))
        return number

    def _number(self) -> int:
        if len(self._signatures) + len(self._slots) >= MOST_SUBSCRIPTIONS:
            raise RpcError(
                INVALID_REQUEST, f"A connection has {MOST_SUBSCRIPTIONS} subscriptions at most; end some"
            )
        return next(self._numbers)

    def _end_signature(self, number: int) -> bool:
        signature = self._signatures.pop(number, None)
        if signature is None:
            raise invalid_params("Invalid subscription id.")
        its = self._numbers_of[signature]
        its.remove(number)
        if not its:
            del self._numbers_of[signature]
        return True

    def _end_slots(self, number: int) -> bool:
        task = self._slots.pop(number, None)
        if task is None:
            raise invalid_params("Invalid subscription id.")
        task.cancel()
        return True

    def _executed(self, executed: Executed) -> None:
        # The first notification of a signature ends its subscription.
        for number in list(self._numbers_of.get(executed.signature, ())):
            self._end_signature(number)
            error = None if executed.error is None else error_json(executed.error)
            self._notify("signatureNotification", number, self._in_context({"err": error}))

    async def _notify_of_slots(self, number: int) -> None:
        slot = self._chain.slot
        while True:
            await asyncio.sleep(_SLOT_SECONDS)
            if self._chain.slot != slot:
                parent, slot = slot, self._chain.slot
                self._notify("slotNotification", number, {"parent": parent, "root": slot, "slot": slot})

    def _notify(self, method: str, number: int, result: object) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": {"result": result, "subscription": number}})

    def _in_context(self, value: object) -> dict[str, object]:
        return {"context": {"slot": self._chain.slot}, "value": value}
