"""JSON-RPC calls: each returns a result in time, or raises `ChainUnreachableError`.

Nothing is retried, no exception of an HTTP library escapes, and no error or log line contains the URL, where
providers put their keys. While the endpoint limits the rate, calls fail without a request.
"""

import asyncio
import logging
import ssl
from functools import cache
from typing import Final, Protocol

import httpx2
from solana.rpc.jsonrpc import JsonRpcRequest, JsonRpcResponseEnvelope, SolanaJsonRpcError

from agentpay.contract.bodies import Body, BodyError
from agentpay_server.chain.protocol import ChainUnreachableError

_QUIET_SECONDS: Final = 1.0
_LONGEST_QUIET_SECONDS: Final = 10.0
_BUSY_STATUSES: Final = frozenset({429, 503})
_REFUSING_STATUSES: Final = frozenset({401, 403, 404, 405})
_MAX_DETAIL: Final = 300
_HEADERS: Final = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}

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
        self._url = url
        # No automatic retries, because resending a transaction must be an explicit decision.
        self._http = httpx2.AsyncClient(
            verify=_ssl_context(),
            timeout=timeout_seconds,
            limits=httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
        )
        self._hidden = _HideUrl(httpx2.URL(url))
        logging.getLogger("httpx2").addFilter(self._hidden)

    async def call(self, method: str, *params: object) -> object:
        """Return the result of a call: JSON, unchecked.

        Raises:
            RpcRefusalError: the node returned an error.
            ChainUnreachableError: there was no response in time, or it was not JSON-RPC.
        """
        if asyncio.get_running_loop().time() < self._quiet_until:
            raise ChainUnreachableError(f"{method}: not sent, because the node asked for fewer requests")
        request = JsonRpcRequest(method=method, params=list(params))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                reply = JsonRpcResponseEnvelope.model_validate_json(await self._post(request.to_json()))
                return reply.unwrap_result(method=method)
        except SolanaJsonRpcError as error:
            failure: ChainUnreachableError = RpcRefusalError(method, error.code, error.message, error.data)
        except TimeoutError:
            failure = ChainUnreachableError(f"{method}: no answer within {self._timeout_seconds} s")
        except BodyError as error:
            failure = ChainUnreachableError(f"{method}: the answer {error}")
        except Exception as error:  # noqa: BLE001 - whatever the libraries below raise is one thing here
            failure = self._unavailable(method, error)
        # Outside the handlers, because the caught exception contains the URL and would be shown as context.
        raise failure

    async def close(self) -> None:
        """Close the connections."""
        logging.getLogger("httpx2").removeFilter(self._hidden)
        await self._http.aclose()

    async def _post(self, content: str) -> bytes:
        async with self._http.stream("POST", self._url, content=content, headers=_HEADERS) as response:
            response.raise_for_status()
            body = Body(response.headers.get("content-encoding", ""), limit=BODY_MAX_BYTES)
            async for chunk in response.aiter_raw():
                body.feed(chunk)
            return body.finish()

    def _unavailable(self, method: str, error: Exception) -> ChainUnreachableError:
        if not isinstance(error, httpx2.HTTPStatusError):
            return ChainUnreachableError(f"{method}: {type(error).__name__}")
        status = error.response.status_code
        if status in _BUSY_STATUSES:
            quiet_seconds = _retry_after_seconds(error.response.headers.get("retry-after", ""))
            self._quiet_until = asyncio.get_running_loop().time() + quiet_seconds
        kind = EndpointRefusesError if status in _REFUSING_STATUSES else ChainUnreachableError
        return kind(f"{method}: the node answered with HTTP status {status}")


class _HideUrl(logging.Filter):
    def __init__(self, url: httpx2.URL) -> None:
        super().__init__()
        self._url = url

    def filter(self, record: logging.LogRecord) -> bool:
        return not (isinstance(record.args, tuple) and self._url in record.args)


@cache
def _ssl_context() -> ssl.SSLContext:
    """Shared in this process: loading the CA files takes 20 ms or more."""
    return httpx2.create_ssl_context()


def _retry_after_seconds(header: str) -> float:
    # The header's other form, a date, is ignored, because clocks differ.
    if not (header.isascii() and header.isdigit() and len(header) < 9):
        return _QUIET_SECONDS
    return min(float(header), _LONGEST_QUIET_SECONDS)
