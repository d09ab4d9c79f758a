"""The seller as an ASGI application, for any event loop: it runs requests on the seller's own loop."""

from typing import Final
from urllib.parse import urlsplit

from starlette.types import Receive, Scope, Send

from agentpay.contract import json_text
from agentpay.contract.errors import FieldError
from agentpay_server.http.requests import REFUSED, WHOLE
from agentpay_server.http.responses import Headers, drop, rendered
from agentpay_server.platform.errors import Problem, invalid
from agentpay_server.platform.metrics import Metrics
from agentpay_server.platform.settings import Settings
from agentpay_server.testkit.embedded.owner_thread import LoopOwner
from agentpay_server.testkit.facilitator.fee_payer import FailedOnChainError, NotConfirmedError
from agentpay_server.testkit.node.jsonrpc import RpcError
from agentpay_server.testkit.paywall.seller import LostReplyError, Seller, SellerReply

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class SellerApp:
    def __init__(self, seller: Seller, owner: LoopOwner) -> None:
        self.settings: Settings = Settings()
        self.metrics: Metrics = Metrics()
        self._seller = seller
        self._owner = owner

    def refusal(self, problem: Problem) -> tuple[int, Headers, bytes]:
        status, headers, body = rendered(problem, "none")
        return status, [*headers, (b"content-length", str(len(body)).encode("ascii"))], body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused: Problem | None = scope.get(REFUSED) or _host_fault(scope)
        if refused is not None:
            status, headers, content = self.refusal(refused)
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})
            return
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if not message.get("more_body", False):
                break
        fields = _fields(scope)
        work = self._seller.respond(scope["method"], _url(scope, dict(fields)), fields)
        try:
            reply = await self._owner.call_async(work)
        except LostReplyError:
            if not await drop(scope, receive) and WHOLE not in scope:
                # Not our port or transport: other ASGI servers end the connection on an error.
                raise ConnectionResetError("the seller dropped the connection (mode lose_reply)") from None
            return
        except (RpcError, NotConfirmedError, FailedOnChainError) as error:
            content = json_text.print_json({"error": "chain_unavailable", "message": str(error)})
            reply = SellerReply(503, [("content-type", "application/json")], content)
        await _send(reply, send)


async def _send(reply: SellerReply, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    headers.append((b"content-length", str(len(reply.body)).encode("ascii")))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _fields(scope: Scope) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]


def _host_fault(scope: Scope) -> Problem | None:
    """Refuse a malformed host, as a port does itself."""
    try:
        _ = urlsplit(_url(scope, dict(_fields(scope)))).port
    except ValueError:
        return invalid(FieldError(field="host", message="must be one host name or IP address"))
    return None


def _url(scope: Scope, headers: dict[str, str]) -> str:
    query = scope["query_string"].decode("latin-1")
    host = headers.get("host")
    if host is None:
        name, port = scope.get("server") or ("localhost", None)
        default = _DEFAULT_PORTS.get(scope["scheme"])
        host = name if port in (None, default) else f"{name}:{port}"
    path = scope.get("raw_path") or scope["path"].encode()
    return f"{scope['scheme']}://{host}{path.decode('latin-1')}{'?' if query else ''}{query}"
