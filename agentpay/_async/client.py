"""The async client: settings, resources and the driver of the retry generator, which sends and sleeps.

What is sent, what an answer means and when to send again is decided in `agentpay._requests` and
`agentpay._retries`; the network is in `agentpay._http`.
"""

# `timeout` is handed to the HTTP exchange, which answers with an outcome; `asyncio.timeout` would lose it.
# ruff: noqa: ASYNC109

from types import TracebackType
from typing import Any, NoReturn, Self

import attrs

from agentpay import _settings
from agentpay._async.accounts import AsyncAccounts
from agentpay._async.policies import AsyncPolicies
from agentpay._async.transfers import AsyncTransfers
from agentpay._async.webhooks import AsyncWebhooks
from agentpay._http import AsyncHttp, AsyncHttpClient, AsyncTransport
from agentpay._requests import PreparedRequest, Reply
from agentpay._retries import Renew, Sleep, attempts, unexpected
from agentpay._settings import DEFAULT_MAX_RETRIES, DEFAULT_TIMEOUT, ApiKey, RetriesOption, TimeoutOption
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.errors import AgentPayError


class AsyncAgentPay:
    """A client of the agent payment account service.

    Use it as a context manager, or call `close` when done. One client serves any number of calls at a time.

    Attributes:
        accounts: provision and read accounts, their balances and their history.
        policies: read and change what accounts may spend.
        transfers: move USDC.
        webhooks: register endpoints for events.
    """

    # Slots are attributes of the class, so that `Mock(spec=AsyncAgentPay)` has the resources too.
    __slots__ = ("__dict__", "__weakref__", "accounts", "policies", "transfers", "webhooks")

    __module__ = "agentpay"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_retries: int = DEFAULT_MAX_RETRIES,
        http_client: AsyncHttpClient | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        """Make a client. Nothing is sent before the first call.

        Args:
            api_key: operator key or agent-scoped key; by default that of `AGENTPAY_API_KEY`.
            base_url: address of the service, without `/v1`; by default that of `AGENTPAY_BASE_URL`.
            timeout: seconds that each step of an exchange (connecting, sending, waiting for the answer) may
                take, less the wait for a free connection; None is without limit. Keep it above 20, for which
                a transfer may be held until final.
            max_retries: how often a request is sent again after a failure that may pass, from 0.
            http_client: the `AsyncClient` of httpx or httpx2 to send with. Its transports, proxies, event
                hooks and default headers are used; its base URL, auth, timeout and cookies are not. It is not
                closed with this client, and is refused after a fork once it was used. An async one belongs to
                one event loop.
            transport: a transport of httpx or httpx2 to send with, instead of `http_client`. Closed with this
                client.

        Raises:
            ConfigurationError: a setting is missing or cannot be meant; the message names it.
        """
        key = ApiKey(api_key)
        del api_key  # a traceback with locals would show it
        settings = _settings.resolve(api_key=key, base_url=base_url, timeout=timeout, max_retries=max_retries)
        self._bind(settings, AsyncHttp(settings.base_url, http_client, transport))

    def _bind(self, settings: _settings.Settings, http: AsyncHttp) -> None:
        self._settings = settings
        self._http = http
        self._headers = http.headers(settings.api_key)
        self.accounts: AsyncAccounts = AsyncAccounts(self._exchange)
        self.policies: AsyncPolicies = AsyncPolicies(self._exchange)
        self.transfers: AsyncTransfers = AsyncTransfers(self._exchange, http, settings.timeout)
        self.webhooks: AsyncWebhooks = AsyncWebhooks(self._exchange)

    def with_options(
        self,
        *,
        api_key: str | UnsetType = UNSET,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> Self:
        """Return a client with other settings that shares this one's connections; closing one closes both.

        Args:
            api_key: another key of the same service, such as an agent-scoped one.
            timeout: seconds that each step of an exchange may take; None is without limit.
            max_retries: how often a request is sent again, from 0.

        Raises:
            ConfigurationError: a setting cannot be meant; the message names it.
        """
        key = self._settings.api_key if api_key is UNSET else ApiKey(api_key)
        del api_key  # a traceback with locals would show it
        key.check()
        settings = attrs.evolve(
            self._settings,
            api_key=key,
            timeout=self._timeout(timeout),
            max_retries=self._retries(max_retries),
        )
        copy = object.__new__(type(self))
        copy._bind(settings, self._http)
        return copy

    async def close(self) -> None:
        """Close the connections. Calls that follow raise `ClosedClientError`; closing again does nothing."""
        await self._http.close()

    # unasync: async only
    aclose = close
    # unasync: end of async only

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        # A traceback may show a client that was never made for want of good settings.
        settings = getattr(self, "_settings", None)
        return f"<{type(self).__name__} {settings.base_url if settings else 'unmade'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a key and connections: make it anew where it is needed")

    def _timeout(self, timeout: TimeoutOption) -> float | None:
        return self._settings.timeout if timeout is UNSET else _settings.checked_timeout(timeout)

    def _retries(self, max_retries: RetriesOption) -> int:
        return (
            self._settings.max_retries if max_retries is UNSET else _settings.checked_max_retries(max_retries)
        )

    async def _exchange(
        self, request: PreparedRequest, timeout: TimeoutOption, max_retries: RetriesOption
    ) -> tuple[Any, Reply]:
        """Send a request until it is answered; return the model of the answer, and the answer."""
        http = self._http
        seconds = self._timeout(timeout)
        flow = attempts(request, max_retries=self._retries(max_retries), now=http.now, random=http.random)
        http.warn_if_exposed()
        is_sent = False
        try:
            step = next(flow)
            while True:
                if isinstance(step, Sleep):
                    _settings.logger.info("sending %s again in %.2f s", request.endpoint.name, step.seconds)
                    await http.sleep(step.seconds)
                    step = next(flow)
                elif isinstance(step, Renew):
                    await http.renew()
                    step = next(flow)
                else:
                    outcome = await http.send(request, self._headers, seconds)
                    is_sent = True
                    step = flow.send(outcome)
        except StopIteration as done:
            model, reply = done.value
            return model, reply
        except AgentPayError:
            raise
        except Exception as error:
            if not is_sent:
                raise
            raise unexpected(request, error) from error
