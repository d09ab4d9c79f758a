"""One JSON-RPC call: an answer within a time, or `ChainUnavailableError`. It knows no method.

Nothing is sent twice, nothing of the libraries below is let through, and no error or log line says the URL,
where providers put their keys. While an endpoint limits our rate, calls fail here, without asking it.
"""

import asyncio
import logging
from typing import Any, Final

import httpx2
from solana.rpc.async_api import AsyncClient
from solana.rpc.jsonrpc import JsonRpcRequest, SolanaJsonRpcError

from agentpay_server.chain.base import ChainUnavailableError

_QUIET_SECONDS: Final = 1.0
_LONGEST_QUIET_SECONDS: Final = 10.0
_BUSY_STATUSES: Final = frozenset({429, 503})
_REFUSING_STATUSES: Final = frozenset({401, 403, 404, 405})
_MAX_DETAIL: Final = 300


class EndpointRefusesError(ChainUnavailableError):
    """The endpoint refuses every request: its key or its path is wrong, and waiting does not help."""


class RpcRefusalError(ChainUnavailableError):
    """The node answered with a JSON-RPC error. To whom that means nothing more, it is an unavailable chain.

    Attributes:
        code: of the error.
        detail: its message, as the node says it.
        data: what the node adds.
    """

    def __init__(self, method: str, code: int, detail: str, data: object) -> None:
        super().__init__(f"{method}: the node answered with error {code}: {detail[:_MAX_DETAIL]}")
        self.code = code
        self.detail = detail
        self.data = data


class RpcClient:
    """Calls an endpoint. It belongs to the event loop on which it is first used.

    Args:
        url: of the endpoint.
        timeout_seconds: how long a call may take, waiting for a connection included.
        max_connections: connections at most.
    """

    def __init__(self, url: str, *, timeout_seconds: float, max_connections: int) -> None:
        self._timeout_seconds = timeout_seconds
        self._quiet_until = 0.0
        self._http = AsyncClient(
            url,
            timeout=timeout_seconds,
            http2=False,
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            max_transport_retries=0,  # A send that is posted again must be decided on, not happen.
        )
        self._hidden = _HideUrl(httpx2.URL(url))
        logging.getLogger("httpx2").addFilter(self._hidden)

    async def call(self, method: str, *params: object) -> object:
        """Return the result of a call: JSON, unchecked.

        Raises:
            RpcRefusalError: the node answered with an error.
            ChainUnavailableError: it did not answer, not in time, or not in JSON-RPC.
        """
        if asyncio.get_running_loop().time() < self._quiet_until:
            raise ChainUnavailableError(f"{method}: not sent, because the node asked for fewer requests")
        request = JsonRpcRequest(method=method, params=list(params))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._http.send_rpc_request(request, Any)
        except SolanaJsonRpcError as error:
            failure: ChainUnavailableError = RpcRefusalError(method, error.code, error.message, error.data)
        except TimeoutError:
            failure = ChainUnavailableError(f"{method}: no answer within {self._timeout_seconds} s")
        except Exception as error:  # noqa: BLE001 - whatever the libraries below raise is one thing here
            failure = self._unavailable(method, error)
        # Outside the handlers: what was caught says the URL, and would be its context in tracebacks.
        raise failure

    async def close(self) -> None:
        """Let go of the connections."""
        logging.getLogger("httpx2").removeFilter(self._hidden)
        await self._http.close()

    def _unavailable(self, method: str, error: Exception) -> ChainUnavailableError:
        cause = error.__cause__ or error
        if not isinstance(cause, httpx2.HTTPStatusError):
            return ChainUnavailableError(f"{method}: {type(cause).__name__}")
        status = cause.response.status_code
        if status in _BUSY_STATUSES:
            quiet_seconds = _retry_after_seconds(cause.response.headers.get("retry-after", ""))
            self._quiet_until = asyncio.get_running_loop().time() + quiet_seconds
        kind = EndpointRefusesError if status in _REFUSING_STATUSES else ChainUnavailableError
        return kind(f"{method}: the node answered with HTTP status {status}")


class _HideUrl(logging.Filter):
    def __init__(self, url: httpx2.URL) -> None:
        super().__init__()
        self._url = url

    def filter(self, record: logging.LogRecord) -> bool:
        return not (isinstance(record.args, tuple) and self._url in record.args)


def _retry_after_seconds(header: str) -> float:
    # Its other form, a date, is as good as none: clocks differ.
    if not (header.isascii() and header.isdigit() and len(header) < 9):
        return _QUIET_SECONDS
    return min(float(header), _LONGEST_QUIET_SECONDS)
