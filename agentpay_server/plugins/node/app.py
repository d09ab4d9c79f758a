"""JSON-RPC of the embedded chain over HTTP and WebSocket, for Solana clients. It needs no key.

Served only for test chains and on loopback. A caller can spend only its own money, and can get test SOL. Web
pages cannot use it: HTTP requests must declare JSON, which needs a CORS permission that browsers do not get,
and a WebSocket's origin must be on this machine.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from solders.account import Account
from solders.pubkey import Pubkey
from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.contract import json_text
from agentpay.contract.endpoints import EXTENSIONS
from agentpay.contract.requests import BODY_MAX_BYTES
from agentpay_server.assembly.server import Server
from agentpay_server.chain import transactions
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.virtual_machine import Executed
from agentpay_server.http.requests import REFUSED, DisconnectedError, read_body, require_json
from agentpay_server.http.responses import REQUEST_PREFIX, identified, respond
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import REQUEST_ID, log
from agentpay_server.platform.randomness import Identifiers, SystemRandomness
from agentpay_server.plugins.facilitator.service import PATH as FACILITATOR_PATH
from agentpay_server.plugins.facilitator.service import Facilitator
from agentpay_server.plugins.node.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Params,
    RpcCall,
    RpcError,
    RpcRequest,
    answer,
    invalid_params,
    read_request,
    refusal,
)
from agentpay_server.plugins.node.methods import Node, decimals_on
from agentpay_server.plugins.node.rendering import AccountForm, account_form, account_json, error_json

PATH: Final = EXTENSIONS + "/sandbox/rpc"

_MOST_WAITING: Final = 10_000
_LOCAL_HOSTS: Final = ("127.0.0.1", "::1", "localhost")
_POLICY_VIOLATION: Final = 1008
_MOST_CONNECTIONS: Final = 64
_TRY_AGAIN_LATER: Final = 1013

MOST_SUBSCRIPTIONS: Final = 10_000
"""Maximum per connection: clients seldom cancel subscriptions to signatures."""

_SLOT_SECONDS: Final = 0.1

_Answered = tuple[Any, Callable[[], None] | None]
"""The result of a call, and an action to run after it was sent; None for none."""

logger: logging.Logger = logging.getLogger(__name__)


class ChainRpc:
    def __init__(self, node: Node, *, body_timeout_seconds: float) -> None:
        self._node = node
        self._body_timeout_seconds = body_timeout_seconds
        self._connections = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    # --- HTTP

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await respond(send, 405, _text("JSON-RPC requires POST."), [(b"allow", b"POST")])
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = await read_body(headers, receive, timeout_seconds=self._body_timeout_seconds)
            _require_json(headers)
        except DisconnectedError:
            return
        except Problem as problem:
            await respond(send, problem.http_status, _text(problem.message))
            return
        request = read_request(body)
        answers = [(await self._answer(call, self._result))[0] for call in request.calls]
        printed = [response for response in answers if response is not None]
        body = b"" if not printed else json_text.print_json(printed if request.is_batch else printed[0])
        await respond(send, 200, body)

    async def _result(self, call: RpcCall) -> _Answered:
        return await self._node.result(call), None

    async def _answer(
        self, call: RpcCall, result: Callable[[RpcCall], Awaitable[_Answered]]
    ) -> tuple[dict[str, object] | None, Callable[[], None] | None]:
        """Return the response to a call, None to a notification, and what to do after it was sent."""
        follow_up = None
        try:
            found, follow_up = await result(call)
            response = answer(call, found)
        except RpcError as error:
            response = refusal(call, error)
        except Exception as error:  # noqa: BLE001 - a fault of the server, whatever it is
            log(logger, logging.ERROR, "chain_rpc.failed", exception=error, method=call.method[:64])
            response = refusal(call, RpcError(INTERNAL_ERROR, "Internal error"))
        return None if call.is_notification else response, follow_up

    # --- WebSocket

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if not _is_local(scope["headers"]):
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        if self._connections >= _MOST_CONNECTIONS:
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
            return
        self._connections += 1
        try:
            await send({"type": "websocket.accept"})
            await self._exchange(receive, send)
        finally:
            self._connections -= 1

    async def _exchange(self, receive: Receive, send: Send) -> None:
        outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_WAITING)
        loop = asyncio.get_running_loop()
        writer = loop.create_task(_write(outgoing, send))

        def enqueue(message: dict[str, Any]) -> None:
            try:
                outgoing.put_nowait(message)
            except asyncio.QueueFull:
                # The client does not read its messages.
                writer.cancel()

        subscriptions = Subscriptions(self._node, enqueue)
        reader = loop.create_task(self._read(receive, subscriptions, outgoing))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            subscriptions.close()
            for task in (reader, writer):
                task.cancel()
            await asyncio.wait({reader, writer})
        if not reader.cancelled() and reader.exception() is None and not reader.result():
            return
        # The client may have closed the connection.
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    async def _read(
        self, receive: Receive, subscriptions: "Subscriptions", outgoing: "asyncio.Queue[dict[str, Any]]"
    ) -> bool:
        """Return False once the client disconnects, True if it must be disconnected."""
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            body = message.get("bytes") or b"" if text is None else text.encode("utf-8", "surrogatepass")
            if len(body) > BODY_MAX_BYTES:
                return True
            await self._handle(read_request(body), subscriptions, outgoing)
        return False

    async def _handle(
        self, request: RpcRequest, subscriptions: "Subscriptions", outgoing: "asyncio.Queue[dict[str, Any]]"
    ) -> None:
        """Each response is a separate message."""
        for call in request.calls:
            response, follow_up = await self._answer(call, subscriptions.result)
            if response is not None:
                await outgoing.put(response)
            if follow_up is not None:
                # After the response, which carries the subscription's number.
                follow_up()


async def _write(outgoing: "asyncio.Queue[dict[str, Any]]", send: Send) -> None:
    # After a disconnect, reading ends the connection.
    with contextlib.suppress(OSError, RuntimeError):
        while True:
            text = json_text.print_json(await outgoing.get()).decode("ascii")
            await send({"type": "websocket.send", "text": text})


class Mounted:
    """Serves the RPC node and the facilitator; `app` handles all other paths, None responds 404.

    `request_ids` identify the requests that `app` does not handle.
    """

    def __init__(
        self,
        rpc: ChainRpc,
        facilitator: Facilitator | None = None,
        app: ASGIApp | None = None,
        request_ids: Identifiers | None = None,
    ) -> None:
        self._rpc = rpc
        self._facilitator = facilitator
        self._app = app
        self._request_ids = request_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None and (scope.get(REFUSED) is not None or self._own(scope) is None):
            await self._app(scope, receive, send)
        elif self._request_ids is None or scope["type"] != "http":
            await self._answer(scope, receive, send)
        else:
            request_id = self._request_ids.new(REQUEST_PREFIX)
            token = REQUEST_ID.set(request_id)
            try:
                await self._answer(scope, receive, identified(send, request_id))
            finally:
                REQUEST_ID.reset(token)

    def _own(self, scope: Scope) -> ASGIApp | None:
        path, kind = scope.get("path", ""), scope["type"]
        if path == PATH and kind in ("http", "websocket"):
            return self._rpc
        return self._facilitator if path.startswith(f"{FACILITATOR_PATH}/") and kind == "http" else None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Problem | None = scope.get(REFUSED)
        own = self._own(scope)
        if refused is not None:
            await respond(send, refused.http_status, _text(refused.message))
        elif own is not None:
            await own(scope, receive, send)
        elif scope["type"] == "http":
            await respond(send, 404, _text(f"Only JSON-RPC at {PATH} and x402 are available here."))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})


def node_of(server: Server) -> Node:
    """ValueError on a cluster."""
    chain, context = server.chain, server.context
    if not isinstance(chain, EmbeddedChain):
        raise ValueError("the server works on a cluster, whose nodes answer JSON-RPC: ask one of them")
    numbers = itertools.count(1)

    async def airdrop(address: str, lamports: int) -> str:
        signed = transactions.airdrop(
            context.signer,
            await chain.latest_blockhash(),
            recipient=address,
            lamports=lamports,
            # Equal transactions with one blockhash would be the same transaction.
            memo=f"airdrop {next(numbers)}",
        )
        await chain.send(signed.raw)
        return signed.signature

    return Node(chain, airdrop)


def mounted(server: Server, node: Node, app: ASGIApp | None = None) -> Mounted:
    timeout_seconds = server.context.settings.body_timeout_seconds
    faults = None if server.faults is None else server.faults.facilitator
    facilitator = Facilitator(node, body_timeout_seconds=timeout_seconds, faults=faults)
    rpc = ChainRpc(node, body_timeout_seconds=timeout_seconds)
    # A separate source, so that requests of Solana clients do not change seeded identifiers.
    return Mounted(rpc, facilitator, app, Identifiers(server.context.clock, SystemRandomness()))


def _require_json(headers: Mapping[str, str]) -> None:
    # A web page can send a request without a Content-Type without a CORS preflight.
    require_json({**headers, "content-type": headers.get("content-type", "")})


def _is_local(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a program, or a page of this machine, opened a WebSocket."""
    origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
    try:
        return all(urlsplit(origin).hostname in _LOCAL_HOSTS for origin in origins)
    except ValueError:
        return False


def _text(message: str) -> bytes:
    return json_text.print_json({"error": message})


class Subscriptions:
    """The subscriptions of one connection: to transactions, accounts and slots.

    Messages arrive as calls; `send` sends a message to the client, and never blocks.
    """

    def __init__(self, node: Node, send: Callable[[dict[str, Any]], None]) -> None:
        self._node = node
        self._chain = node.chain
        self._send = send
        self._numbers = itertools.count(1)
        # By number: the method that began it, and what ends it.
        self._ends: dict[int, tuple[str, Callable[[], object]]] = {}
        self._numbers_of: dict[str, list[int]] = {}
        self._watchers: dict[int, Callable[[Executed], None]] = {}
        self._end_listening = self._chain.history.listen(self._executed)
        self._begins: Mapping[str, Callable[[Params], _Answered]] = {
            "accountSubscribe": self._subscribe_to_account,
            "signatureSubscribe": self._subscribe_to_signature,
            "slotSubscribe": lambda _: self._subscribe_to_slots(),
        }

    async def result(self, call: RpcCall) -> _Answered:
        """Return the result of a call, and an action to run after the result was sent.

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

    def _subscribe_to_signature(self, params: Params) -> _Answered:
        signature, options = params.signature(0), params.options(1)
        options.commitment()
        number = self._begun("signatureSubscribe", lambda number: self._forget_signature(signature, number))
        self._numbers_of.setdefault(signature, []).append(number)

        def notify_if_executed() -> None:
            executed = self._chain.history.get(signature)
            if executed is not None:
                self._notify_of_signature(executed)

        return number, notify_if_executed

    def _subscribe_to_account(self, params: Params) -> _Answered:
        wanted, options = params.address(0), params.options(1)
        options.commitment()
        form = account_form(options)

        def changed(number: int, executed: Executed) -> None:
            if wanted in executed.after and _has_changed(executed, wanted):
                shown = self._shown(executed.after[wanted], form) or _DELETED
                self._notify("accountNotification", number, self._in_context(shown))

        number = self._begun("accountSubscribe", self._watchers.pop)
        self._watchers[number] = lambda executed: changed(number, executed)
        return number, None

    def _subscribe_to_slots(self) -> _Answered:
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
            without_data = account_json(account, (form[0], slice(0)), decimals)
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
