"""JSON-RPC calls: each returns a result in time, or raises `ChainUnreachableError`.

Nothing is retried, no other exception escapes, and no error or log line contains the URL, where providers put
their keys. A response must have the number of its request. While the endpoint limits the rate, calls fail
without a request.
"""

import asyncio
import itertools
import json
import secrets
from typing import Any, Final, Protocol

from agentpay.contract.bodies import BodyError
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.chain.rpc.http import HttpEndpoint, HttpError, Response

_QUIET_SECONDS: Final = 1.0
_LONGEST_QUIET_SECONDS: Final = 10.0
_BUSY_STATUSES: Final = frozenset({429, 503})
_REFUSING_STATUSES: Final = frozenset({401, 403, 404, 405})
_MAX_DETAIL: Final = 300
_OK: Final = 200

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest response that is read, in bytes before and after decompression; usual ones are far smaller."""


class EndpointRefusesError(ChainUnreachableError):
    """The endpoint refuses every request because its key or path is wrong. Waiting does not help."""


class RpcRefusalError(ChainUnreachableError):
    """The node returned a JSON-RPC error, with its `code`, message and additional data.

    Callers that do not handle it see an unavailable chain.
    """

    def __init__(self, method: str, code: int, detail: str, data: object) -> None:
        super().__init__(f"{method}: the node answered with error {code}: {detail[:_MAX_DETAIL]}")
        self.code = code
        self.detail = detail
        self.data = data


class RpcCaller(Protocol):
    """Makes JSON-RPC calls: `RpcClient`, or a replacement without a network."""

    async def call(self, method: str, /, *params: object) -> object:
        """Return the result of a call, as `RpcClient.call` does."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class RpcClient:
    """Calls an endpoint. Bound to the event loop on which it is first used.

    `timeout_seconds` includes the wait for a connection.
    """

    def __init__(self, url: str, *, timeout_seconds: float, max_connections: int) -> None:
        self._timeout_seconds = timeout_seconds
        self._quiet_until = 0.0
        # Not from 1: of a proxy that mixes up connections, the response to another client must not fit.
        self._numbers = itertools.count(secrets.randbits(48))
        self._endpoint = HttpEndpoint(url, max_connections=max_connections, max_bytes=BODY_MAX_BYTES)

    async def call(self, method: str, *params: object) -> object:
        """Return the result of a call: JSON, unchecked.

        Raises:
            RpcRefusalError: the node returned an error.
            ChainUnreachableError: there was no response in time, or it was not JSON-RPC.
        """
        if asyncio.get_running_loop().time() < self._quiet_until:
            raise ChainUnreachableError(f"{method}: not sent, because the node asked for fewer requests")
        number = next(self._numbers)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        content = json.dumps(request, separators=(",", ":")).encode()

        def read(response: Response) -> dict[str, Any]:
            if response.status != _OK:
                raise self._unavailable(method, response)
            return _reply(method, number, json.loads(response.body))

        try:
            async with asyncio.timeout(self._timeout_seconds):
                reply = await self._endpoint.post(content, read)
            return _result(method, reply)
        except ChainUnreachableError:
            raise
        except TimeoutError:
            failure = ChainUnreachableError(f"{method}: no answer within {self._timeout_seconds} s")
        except BodyError as error:
            failure = ChainUnreachableError(f"{method}: the answer {error}")
        except HttpError as error:
            failure = ChainUnreachableError(f"{method}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever is raised below is one thing here
            failure = ChainUnreachableError(f"{method}: {type(error).__name__}")
        # Outside the handlers, because the context of the caught exception may contain the host.
        raise failure

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()
        await asyncio.sleep(0)  # They close in the next turn of the event loop.

    def _unavailable(self, method: str, response: Response) -> ChainUnreachableError:
        if response.status in _BUSY_STATUSES:
            quiet_seconds = _retry_after_seconds(response.retry_after)
            self._quiet_until = asyncio.get_running_loop().time() + quiet_seconds
        kind = EndpointRefusesError if response.status in _REFUSING_STATUSES else ChainUnreachableError
        return kind(f"{method}: the node answered with HTTP status {response.status}")


def _reply(method: str, number: int, reply: object) -> dict[str, Any]:
    """Return a response to request `number`, with either a result or an error.

    Raises:
        ChainUnreachableError: it is not a response to this request.
    """
    if not isinstance(reply, dict) or ("result" in reply) == (reply.get("error") is not None):
        raise ChainUnreachableError(f"{method}: the answer is not JSON-RPC")
    # A node that cannot read a request does not know its number.
    if reply.get("id") != number and not (reply.get("error") is not None and reply.get("id") is None):
        raise ChainUnreachableError(f"{method}: the answer is that to another request")
    return reply


def _result(method: str, reply: dict[str, Any]) -> object:
    """Return the result in a response.

    Raises:
        RpcRefusalError: it is an error.
        ChainUnreachableError: its error is malformed.
    """
    error = reply.get("error")
    if error is None:
        return reply["result"]
    if not (isinstance(error, dict) and type(error.get("code")) is int and type(error.get("message")) is str):
        raise ChainUnreachableError(f"{method}: the answer is not JSON-RPC")
    raise RpcRefusalError(method, error["code"], error["message"], error.get("data"))


def _retry_after_seconds(header: str) -> float:
    # The header's other form, a date, is ignored, because clocks differ.
    if not (header.isascii() and header.isdigit() and len(header) < 9):
        return _QUIET_SECONDS
    return min(float(header), _LONGEST_QUIET_SECONDS)
