"""Subscriptions of one WebSocket connection to the RPC node: to transactions, accounts and slots.

Messages arrive as calls, and are sent by a callable that never blocks.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve
from solders.account import Account
from solders.pubkey import Pubkey

from agentpay_server.chain.embedded.executed import Executed
from agentpay_server.platform.logs import log
from agentpay_server.testkit.node.errors import INVALID_REQUEST, RpcError, invalid_params
from agentpay_server.testkit.node.group import decimals_on
from agentpay_server.testkit.node.methods import Node
from agentpay_server.testkit.node.params import Params
from agentpay_server.testkit.node.rendering import AccountForm, account_form, account_json
from agentpay_server.testkit.node.requests import RpcCall
from agentpay_server.testkit.node.transaction_errors import error_json

MOST_SUBSCRIPTIONS: Final = 10_000
"""Maximum per connection: clients seldom cancel subscriptions to signatures."""

_SLOT_SECONDS: Final = 0.1

Send = Callable[[dict[str, Any]], None]
"""Sends a message to the client."""

logger: logging.Logger = logging.getLogger(__name__)

_Begun = tuple[int, Callable[[], None] | None]
"""The number of a subscription, and an action to run after the number was sent."""


class Subscriptions:
    """The subscriptions of one connection; `send` sends a message to the client."""

    def __init__(self, node: Node, send: Send) -> None:
        self._node = node
        self._chain = node.chain
        self._send = send
        self._numbers = itertools.count(1)
        # By number: the method that began it, and what ends it.
        self._ends: dict[int, tuple[str, Callable[[], object]]] = {}
        self._numbers_of: dict[str, list[int]] = {}
        self._watchers: dict[int, Callable[[Executed], None]] = {}
        self._end_listening = self._chain.history.listen(self._executed)
        self._begins: Mapping[str, Callable[[Params], _Begun]] = {
            "accountSubscribe": self._subscribe_to_account,
            "signatureSubscribe": self._subscribe_to_signature,
            "slotSubscribe": lambda _: self._subscribe_to_slots(),
        }

    async def result(self, call: RpcCall) -> tuple[Any, Callable[[], None] | None]:
        """Return the result of a call, and an action to run after the result was sent; None for none.

        Raises:
            RpcError: the call is refused.
        """
        if call.error is not None:
            raise call.error
        params = Params(call.params)
        begin = self._begins.get(call.method)
        if begin is not None:
            await self._chain.recall()
            return begin(params)
        ended = call.method.replace("Unsubscribe", "Subscribe")
        if ended in self._begins:
            return self._end(ended, params.count(0)), None
        return await self._node.result(call), None

    def close(self) -> None:
        """Cancel all subscriptions."""
        self._end_listening()
        for _, end in list(self._ends.values()):
            end()
        self._ends.clear()

    # --- What is subscribed to

    def _subscribe_to_signature(self, params: Params) -> _Begun:
        signature, options = params.signature(0), params.options(1)
        options.commitment()
        number = self._begun("signatureSubscribe", lambda number: self._forget_signature(signature, number))
        self._numbers_of.setdefault(signature, []).append(number)

        def notify_if_executed() -> None:
            executed = self._chain.history.get(signature)
            if executed is not None:
                self._notify_of_signature(executed)

        return number, notify_if_executed

    def _subscribe_to_account(self, params: Params) -> _Begun:
        wanted, options = params.address(0), params.options(1)
        options.commitment()
        form = account_form(options)

        def changed(number: int, executed: Executed) -> None:
            if wanted in executed.after and _has_changed(executed, wanted):
                shown = self._shown(executed.after[wanted], form) or _DELETED
                self._notify("accountNotification", number, self._in_context(shown))

        return self._watch("accountSubscribe", changed), None

    def _subscribe_to_slots(self) -> _Begun:
        async def follow(number: int) -> None:
            slot = self._chain.slot
            while True:
                await asyncio.sleep(_SLOT_SECONDS)
                if self._chain.slot != slot:
                    parent, slot = slot, self._chain.slot
                    shown = {"parent": parent, "root": slot, "slot": slot}
                    self._notify("slotNotification", number, shown)

        tasks: list[asyncio.Task[None]] = []
        number = self._begun("slotSubscribe", lambda _: tasks[0].cancel())
        tasks.append(asyncio.get_running_loop().create_task(follow(number)))
        return number, None

    # --- Beginning and ending

    def _begun(self, method: str, end: Callable[[int], object]) -> int:
        if len(self._ends) >= MOST_SUBSCRIPTIONS:
            raise RpcError(
                INVALID_REQUEST, f"A connection has {MOST_SUBSCRIPTIONS} subscriptions at most; end some"
            )
        number = next(self._numbers)
        self._ends[number] = method, lambda: end(number)
        return number

    def _watch(self, method: str, notify: Callable[[int, Executed], None]) -> int:
        number = self._begun(method, self._watchers.pop)
        self._watchers[number] = lambda executed: notify(number, executed)
        return number

    def _end(self, method: str, number: int) -> bool:
        begun, end = self._ends.get(number, ("", lambda: None))
        if begun != method:
            raise invalid_params("Invalid subscription id.")
        del self._ends[number]
        end()
        return True

    def _forget_signature(self, signature: str, number: int) -> None:
        its = self._numbers_of[signature]
        its.remove(number)
        if not its:
            del self._numbers_of[signature]

    # --- Notifying

    def _executed(self, executed: Executed) -> None:
        self._notify_of_signature(executed)
        for notify in tuple(self._watchers.values()):
            try:
                notify(executed)
            except Exception as error:  # noqa: BLE001 - the chain notifies, and must go on
                log(logger, logging.ERROR, "chain_rpc.failed", exception=error, method="notify")

    def _notify_of_signature(self, executed: Executed) -> None:
        # The first notification of a signature ends its subscription.
        for number in list(self._numbers_of.get(executed.signature, ())):
            self._end("signatureSubscribe", number)
            self._notify("signatureNotification", number, self._in_context({"err": _error(executed)}))

    def _notify(self, method: str, number: int, result: object) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": {"result": result, "subscription": number}})

    def _shown(self, account: Account | None, form: AccountForm) -> dict[str, Any] | None:
        decimals = self._chain.query(decimals_on)
        try:
            return account_json(account, form, decimals)
        except RpcError:
            # The encoding was requested before it was known which data it must show.
            without_data = account_json(account, evolve(form, offset=0, length=0), decimals)
            return None if without_data is None else {**without_data, "data": _TOO_LARGE}

    def _in_context(self, value: object) -> dict[str, object]:
        return {"context": {"slot": self._chain.slot}, "value": value}


_TOO_LARGE: Final = "error: data too large for bs58 encoding"
"""What Solana's node reports in place of data that an encoding cannot show."""

_DELETED: Final = {
    "data": ["", "base64"],
    "executable": False,
    "lamports": 0,
    "owner": "11111111111111111111111111111111",
    "rentEpoch": 0,
    "space": 0,
}
"""A deleted account in a notification."""


def _has_changed(executed: Executed, at: Pubkey) -> bool:
    before, after = executed.before[at], executed.after[at]
    return (before is None) != (after is None) or bytes(before or b"") != bytes(after or b"")


def _error(executed: Executed) -> object:
    return None if executed.error is None else error_json(executed.error)
