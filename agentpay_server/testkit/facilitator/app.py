"""The local facilitator over HTTP, for sellers' x402 packages. It needs no key.

Served only for test chains and on loopback. Web pages cannot use it: a request with a body must declare JSON.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from agentpay.contract import json_text
from agentpay.contract.endpoints import EXTENSIONS
from agentpay_server.http.requests import DisconnectedError, read_body, require_json
from agentpay_server.http.responses import Header, respond
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log
from agentpay_server.sandbox.request_faults import RequestFaults
from agentpay_server.testkit.facilitator.fee_payer import FeePayer, keypair_of, rpc_of
from agentpay_server.testkit.facilitator.service import Facilitator, MalformedRequestError
from agentpay_server.testkit.node.methods import Node

PATH: Final = EXTENSIONS + "/sandbox/x402"
"""The base path, to which sellers' packages append `/supported`, `/verify` and `/settle`."""

logger: logging.Logger = logging.getLogger(__name__)


class FacilitatorHttp:
    def __init__(self, facilitator: Facilitator, *, body_timeout_seconds: float) -> None:
        self._facilitator = facilitator
        self._body_timeout_seconds = body_timeout_seconds
        self._takes_body: Mapping[str, Callable[[bytes], Awaitable[dict[str, Any]]]] = {
            "/verify": facilitator.verify,
            "/settle": facilitator.settle,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"].removeprefix(PATH), scope["method"]
        if path == "/supported":
            if method == "GET":
                await _respond(send, 200, self._facilitator.supported())
            else:
                await _respond(send, 405, {"error": "This path takes GET."}, [(b"allow", b"GET")])
        elif path in self._takes_body:
            if method == "POST":
                await self._post(path, scope, receive, send)
            else:
                await _respond(send, 405, {"error": "This path takes POST."}, [(b"allow", b"POST")])
        else:
            await _respond(send, 404, {"error": f"The facilitator is at {PATH}/supported, /verify, /settle."})

    async def _post(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = await read_body(headers, receive, timeout_seconds=self._body_timeout_seconds)
            # A web page can send a request without a Content-Type without a CORS preflight.
            require_json({**headers, "content-type": headers.get("content-type", "")})
            result = await self._takes_body[path](body)
        except DisconnectedError:
            return
        except Problem as problem:
            await _respond(send, problem.http_status, {"error": problem.message})
        except MalformedRequestError as error:
            await _respond(send, 400, {"error": f"Not an x402 request: {error}."})
        except Exception as error:  # noqa: BLE001 - a fault of the server, whatever it is
            log(logger, logging.ERROR, "facilitator.failed", exception=error)
            await _respond(send, 500, {"error": "The facilitator failed; the log of the server says why."})
        else:
            await _respond(send, 200, result)


def facilitator_of(
    node: Node, *, body_timeout_seconds: float, faults: RequestFaults | None = None
) -> FacilitatorHttp:
    """Its key is derived from the chain, so that challenges issued before a restart remain valid."""
    fee_payer = FeePayer(keypair_of("facilitator", node.chain.genesis_hash), rpc_of(node))
    return FacilitatorHttp(Facilitator(fee_payer, faults), body_timeout_seconds=body_timeout_seconds)


async def _respond(send: Send, status: int, content: dict[str, Any], headers: Sequence[Header] = ()) -> None:
    await respond(send, status, json_text.print_json(content), headers)
