"""The async client: settings and resources. `agentpay._async.caller` sends the requests."""

# `timeout` is a setting of the HTTP exchange, which reports an outcome; `asyncio.timeout` would lose that.

from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, Unpack

from agentpay._async.accounts import AsyncAccounts
from agentpay._async.caller import AsyncCaller
from agentpay._async.policies import AsyncPolicies
from agentpay._async.resource import AsyncResource
from agentpay._async.transfers import AsyncTransfers
from agentpay._calls import settings
from agentpay._calls.options import CallOptions
from agentpay._calls.requests import prepare_undescribed
from agentpay._calls.secret_text import SecretText
from agentpay._calls.settings import DEFAULT_MAX_RETRIES, Address, ApiKey, ClientSettings, Timeout
from agentpay._http.clients import AsyncHttp, AsyncHttpClient, AsyncTransport
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.contract.responses import RawResponse
from agentpay.contract.suggestions import no_attribute

if TYPE_CHECKING:
    from agentpay._async.approvals import AsyncApprovals
    from agentpay._async.console import AsyncConsole
    from agentpay._async.deliveries import AsyncDeliveries, AsyncEvents
    from agentpay._async.keys import AsyncAgentKeys, AsyncOperatorKeys
    from agentpay._async.payments import AsyncPayments
    from agentpay._async.sellers import AsyncSellers
    from agentpay._async.sessions import AsyncSessions
    from agentpay._async.webhooks import AsyncWebhooks
    from agentpay.contract.ext.identity import Identity


class AsyncAgentPay:
    """A client of the agent payment account service.

    Use it as a context manager, or call `close` when done. A client can make any number of concurrent calls.

    With an operator key, the reference server takes an account's name or handle, such as `@research-bot`,
    where its identifier belongs, but not a recipient's. It refuses a name that several accounts have.

    Attributes:
        accounts: create and read accounts, their balances and their history.
        policies: read and change spending policies.
        transfers: move USDC.
        webhooks: your endpoints to which events are posted; all but `create` is an extension.
        sessions: an extension: a cap in escrow, charged in small amounts, settled in one transaction.
        payments: an extension: pays for API calls that respond with HTTP 402.
        events: an extension: recorded events, their stream and their replay.
        deliveries: an extension: deliveries of events to webhooks, with every attempt.
        approvals: an extension: transfers that wait for an operator's approval.
        agent_keys: an extension: keys that are bound to one account.
        operator_keys: an extension: keys with full access.
        sellers: an extension: what may be paid to each seller behind HTTP 402.
        console: an extension: an operator's views of all accounts, the audit log, and sign-in.
    """

    # The slots are class attributes, so that `Mock(spec=AsyncAgentPay)` has the resources too.
    __slots__ = ("__dict__", "__weakref__", "accounts", "policies", "transfers")

    accounts: AsyncAccounts
    policies: AsyncPolicies
    transfers: AsyncTransfers

    __module__ = "agentpay"

    def __init__(
        self,
        *,
        api_key: str | SecretText | None = None,
        base_url: str | Address | None = None,
        timeout: float | Timeout | None | UnsetType = UNSET,
        max_retries: int = DEFAULT_MAX_RETRIES,
        total_timeout: float | None = None,
        default_headers: Mapping[str, str] | None = None,
        app_info: str | None = None,
        http_client: AsyncHttpClient | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        """Create a client. It sends nothing before the first call.

        Args:
            api_key: operator key or agent-scoped key, as a string or a `SecretStr` of pydantic; by default
                from `AGENTPAY_API_KEY`.
            base_url: address of the service, without `/v1`, as a string or a URL of httpx or pydantic; by
                default from `AGENTPAY_BASE_URL`.
            timeout: seconds for each step of an exchange (connecting, sending, waiting for the response), or
                a `Timeout` of httpx or httpx2. Of seconds, the time spent waiting for a free connection is
                deducted. None means no limit. By default that of the given `http_client`, if you set one that
                is not httpx's default of 5 seconds, else 30. Keep it above 20, because the service may hold a
                transfer for that long until it is final.
            max_retries: how often a request is retried after a temporary failure, from 0.
            total_timeout: seconds for a whole call, including retries and pauses; None means no limit. It
                never turns an unknown outcome into a failure: see `CallOptions`.
            default_headers: additional header fields of every request. Fields that the client sets are
                refused, such as `Authorization`.
            app_info: the name of your program, such as `shop/1.2`, added to `User-Agent`.
            http_client: the `AsyncClient` of httpx or httpx2 to send with. Its transports, proxies, event
                hooks, timeout and default headers are used; its base URL, auth and cookies are not. It is not
                closed with this client, and is refused after a fork if it was used before. An async client
                belongs to one event loop.
            transport: a transport of httpx or httpx2 to send with, instead of `http_client`. Closed with this
                client.

        Raises:
            ConfigurationError: a setting is missing or invalid; the message names it.
        """
        key = ApiKey(api_key)
        del api_key  # a traceback with locals would show it
        resolved = settings.resolve(
            api_key=key,
            base_url=base_url,
            timeout=settings.timeout_of(http_client) if timeout is UNSET else timeout,
            max_retries=max_retries,
            total_timeout=total_timeout,
            default_headers=default_headers,
            app_info=app_info,
        )
        self._bind(resolved, AsyncHttp(resolved.base_url, http_client, transport))

    def _bind(self, resolved: ClientSettings, http: AsyncHttp) -> None:
        self._settings = resolved
        self._http = http
        self._caller = AsyncCaller(resolved, http)
        self.accounts = AsyncAccounts(self._caller)
        self.policies = AsyncPolicies(self._caller)
        self.transfers = AsyncTransfers(self._caller)

    if not TYPE_CHECKING:  # type checkers would accept every name

        def __getattr__(self, name: str) -> object:
            """Raise the error for an attribute that does not exist. It names the right one."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property, whose own error this raises
            if name.startswith("_"):
                raise AttributeError(name)
            from agentpay._async.console import AsyncConsole  # noqa: PLC0415 - only this error needs it

            own, views = (
                [each for each in dir(of) if not each.startswith("_")] for of in (self, AsyncConsole)
            )
            raise no_attribute(self, name, [*own, *(f"console.{each}" for each in views)])

    @property
    def base_url(self) -> str:
        """The address of the service, without a trailing slash."""
        return self._settings.base_url

    @property
    def timeout(self) -> float | Timeout | None:
        """Seconds for each step of an exchange, or for each kind of step; None means no limit."""
        return self._settings.timeout

    @property
    def max_retries(self) -> int:
        """How often a request is retried after a temporary failure."""
        return self._settings.max_retries

    @property
    def total_timeout(self) -> float | None:
        """Seconds for a whole call; None means no limit."""
        return self._settings.total_timeout

    @cached_property
    def sessions(self) -> "AsyncSessions":
        """An extension: a cap in escrow, charged in small amounts, settled in one transaction."""
        from agentpay._async.sessions import AsyncSessions  # noqa: PLC0415 - few need it

        return AsyncSessions(self._caller)

    @cached_property
    def payments(self) -> "AsyncPayments":
        """An extension: pays for calls that respond with 402; `agentpay.payments` does it for httpx."""
        from agentpay._async.payments import AsyncPayments  # noqa: PLC0415 - few need it

        return AsyncPayments(self._caller)

    @cached_property
    def webhooks(self) -> "AsyncWebhooks":
        """Your endpoints to which events are posted. All but `create` is an extension."""
        from agentpay._async.webhooks import AsyncWebhooks  # noqa: PLC0415 - few need it

        return AsyncWebhooks(self._caller)

    @cached_property
    def events(self) -> "AsyncEvents":
        """An extension: recorded events, their stream and their replay."""
        from agentpay._async.deliveries import AsyncEvents  # noqa: PLC0415 - few need it

        return AsyncEvents(self._caller)

    @cached_property
    def deliveries(self) -> "AsyncDeliveries":
        """An extension: deliveries of events to webhooks, with every attempt."""
        from agentpay._async.deliveries import AsyncDeliveries  # noqa: PLC0415 - few need it

        return AsyncDeliveries(self._caller)

    @cached_property
    def approvals(self) -> "AsyncApprovals":
        """An extension: transfers that wait for an operator's approval."""
        from agentpay._async.approvals import AsyncApprovals  # noqa: PLC0415 - few need it

        return AsyncApprovals(self._caller)

    @cached_property
    def agent_keys(self) -> "AsyncAgentKeys":
        """An extension: keys that are bound to one account."""
        from agentpay._async.keys import AsyncAgentKeys  # noqa: PLC0415 - few need it

        return AsyncAgentKeys(self._caller)

    @cached_property
    def operator_keys(self) -> "AsyncOperatorKeys":
        """An extension: keys with full access."""
        from agentpay._async.keys import AsyncOperatorKeys  # noqa: PLC0415 - few need it

        return AsyncOperatorKeys(self._caller)

    @cached_property
    def sellers(self) -> "AsyncSellers":
        """An extension: what may be paid to each seller behind HTTP 402."""
        from agentpay._async.sellers import AsyncSellers  # noqa: PLC0415 - few need it

        return AsyncSellers(self._caller)

    @cached_property
    def console(self) -> "AsyncConsole":
        """An extension: an operator's views of all accounts, the audit log, and sign-in."""
        from agentpay._async.console import AsyncConsole  # noqa: PLC0415 - few need it

        return AsyncConsole(self._caller)

    async def whoami(self, **options: Unpack[CallOptions]) -> "Identity":
        """Read the identity of this client's key, and whether its money is real.

        An extension.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotSupportedError: the service does not offer this extension.
        """
        from agentpay.contract.ext import identity  # noqa: PLC0415 - few need it

        return await AsyncResource(self._caller)._call(identity.WHO_AM_I, {}, options)  # noqa: SLF001

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        json: object = UNSET,
        **options: Unpack[CallOptions],
    ) -> RawResponse:
        """Send a request for which this version has no method.

        Only a GET is retried, because the effect of other requests is not known here.

        Args:
            method: `GET`, `POST`, `PUT`, `PATCH` or `DELETE`, in any case.
            path: path of the service, such as `/v1/accounts`, with parameters quoted as in a URL.
            params: the query; None values are omitted.
            json: a JSON value with exact numbers: use `Decimal` for fractions, floats are refused. None is
                `null`; by default there is no body.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The response, whose `json()` reads the body.

        Raises:
            TypeError: the body has no exact JSON form.
            ValueError: the method or the path is invalid.
            OutcomeUnknownError: the request may have been carried out.
        """
        call = self._caller.begin(options, locals())
        request = prepare_undescribed(method, path, params=params, json=json)
        _, response = await self._caller.exchange(request, call)
        return response

    def with_options(
        self,
        *,
        api_key: str | SecretText | UnsetType = UNSET,
        timeout: float | Timeout | None | UnsetType = UNSET,
        max_retries: int | UnsetType = UNSET,
        total_timeout: float | None | UnsetType = UNSET,
        default_headers: Mapping[str, str] | UnsetType = UNSET,
    ) -> Self:
        """Return a client with other settings that shares this one's connections; closing one closes both.

        Args:
            api_key: another key of the same service, such as an agent-scoped one.
            timeout: seconds for each step of an exchange, or a `Timeout` of httpx or httpx2; None means no
                limit.
            max_retries: how often a request is retried, from 0.
            total_timeout: seconds for a whole call; None means no limit.
            default_headers: additional header fields of every request, instead of this client's.

        Raises:
            ConfigurationError: a setting is invalid; the message names it.
        """
        key = self._settings.api_key if api_key is UNSET else ApiKey(api_key)
        del api_key  # a traceback with locals would show it
        copy = object.__new__(type(self))
        copy._bind(
            self._settings.changed(
                api_key=key,
                timeout=timeout,
                max_retries=max_retries,
                total_timeout=total_timeout,
                default_headers=default_headers,
            ),
            self._http,
        )
        return copy

    async def close(self) -> None:
        """Close the connections. Later calls raise `ClosedClientError`; closing twice is allowed."""
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
        # A traceback may show a client whose construction failed.
        settings = getattr(self, "_settings", None)
        return f"<{type(self).__name__} {settings.base_url if settings else 'unmade'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has a key and connections: create it again where it is needed"
        )
