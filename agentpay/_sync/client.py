# Generated from _async by scripts/unasync.py. Edit that one.
"""The sync client: settings and resources. What sends is in `agentpay._sync.caller`."""

# `timeout` is handed to the HTTP exchange, which answers with an outcome; `asyncio.timeout` would lose it.

from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from agentpay import _settings
from agentpay._sync.accounts import Accounts
from agentpay._sync.caller import Caller
from agentpay._sync.policies import Policies
from agentpay._sync.transfers import Transfers
from agentpay._sync.webhooks import Webhooks
from agentpay._http import Http, HttpClient, Transport
from agentpay._options import CallOptions
from agentpay._raw import RawResponse
from agentpay._requests import prepare_undescribed
from agentpay._secret_text import SecretText
from agentpay._settings import DEFAULT_MAX_RETRIES, DEFAULT_TIMEOUT, Address, ApiKey
from agentpay.contract.requests import UNSET, UnsetType

if TYPE_CHECKING:
    from agentpay._sync.console import Console
    from agentpay._sync.raw import RawAgentPay
    from agentpay._sync.sessions import Sessions
    from agentpay.contract.identity import Identity


class AgentPay:
    """A client of the agent payment account service.

    Use it as a context manager, or call `close` when done. One client serves any number of calls at a time.

    Attributes:
        accounts: provision and read accounts, their balances and their history.
        policies: read and change what accounts may spend.
        transfers: move USDC.
        webhooks: register endpoints for events.
        sessions: an extension: a cap in escrow, charged in small amounts, settled in one transaction.
        console: an extension: what an operator does on the dashboard.
    """

    # Slots are attributes of the class, so that `Mock(spec=AgentPay)` has the resources too.
    __slots__ = ("__dict__", "__weakref__", "accounts", "policies", "transfers", "webhooks")

    __module__ = "agentpay"

    def __init__(
        self,
        *,
        api_key: str | SecretText | None = None,
        base_url: str | Address | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_retries: int = DEFAULT_MAX_RETRIES,
        deadline: float | None = None,
        default_headers: Mapping[str, str] | None = None,
        app_info: str | None = None,
        http_client: HttpClient | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Make a client. Nothing is sent before the first call.

        Args:
            api_key: operator key or agent-scoped key, as a string or a `SecretStr` of pydantic; by default
                that of `AGENTPAY_API_KEY`.
            base_url: address of the service, without `/v1`, as a string or a URL of httpx or pydantic; by
                default that of `AGENTPAY_BASE_URL`.
            timeout: seconds that each step of an exchange (connecting, sending, waiting for the answer) may
                take, less the wait for a free connection; None is without limit. Keep it above 20, for which
                a transfer may be held until final.
            max_retries: how often a request is sent again after a failure that may pass, from 0.
            deadline: seconds that a call may take in all, retries and the pauses between them included; None
                is without limit. It never changes what is known of a payment: see `CallOptions`.
            default_headers: header fields of every request. Those that the client decides itself, such as
                `Authorization`, are refused.
            app_info: the name of your program, such as `shop/1.2`, added to `User-Agent`.
            http_client: the `Client` of httpx or httpx2 to send with. Its transports, proxies, event
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
        settings = _settings.resolve(
            api_key=key,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            deadline=deadline,
            default_headers=default_headers,
            app_info=app_info,
        )
        self._bind(settings, Http(settings.base_url, http_client, transport))

    def _bind(self, settings: _settings.Settings, http: Http) -> None:
        self._settings = settings
        self._http = http
        self._caller = Caller(settings, http)
        self.accounts: Accounts = Accounts(self._caller)
        self.policies: Policies = Policies(self._caller)
        self.transfers: Transfers = Transfers(self._caller)
        self.webhooks: Webhooks = Webhooks(self._caller)

    @property
    def base_url(self) -> str:
        """The address of the service, without a trailing slash."""
        return self._settings.base_url

    @property
    def timeout(self) -> float | None:
        """Seconds that each step of an exchange may take; None is without limit."""
        return self._settings.timeout

    @property
    def max_retries(self) -> int:
        """How often a request is sent again after a failure that may pass."""
        return self._settings.max_retries

    @property
    def deadline(self) -> float | None:
        """Seconds that a call may take in all; None is without limit."""
        return self._settings.deadline

    @cached_property
    def sessions(self) -> "Sessions":
        """An extension: a cap in escrow, charged in small amounts, settled in one transaction."""
        from agentpay._sync.sessions import Sessions  # noqa: PLC0415 - few need it

        return Sessions(self._caller)

    @cached_property
    def console(self) -> "Console":
        """An extension, for operator keys: what an operator does on the dashboard."""
        from agentpay._sync.console import Console  # noqa: PLC0415 - few need it

        return Console(self._caller)

    def whoami(self, **options: Unpack[CallOptions]) -> "Identity":
        """Read which key this client has, what it is bound to, and whether its money is real.

        An extension (interface K10).

        Args:
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            ExtensionNotOfferedError: the service does not say.
        """
        from agentpay._sync.identity import Identities  # noqa: PLC0415 - few need it

        return Identities(self._caller).whoami(**options)

    @property
    def with_raw_response(self) -> "RawAgentPay":
        """The same resources, whose methods return a `RawResponse`: the model with what it came in."""
        from agentpay._sync.raw import RawAgentPay  # noqa: PLC0415 - few need it

        return RawAgentPay(self)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = UNSET,
        **options: Unpack[CallOptions],
    ) -> RawResponse[Any]:
        """Send a request for which this version has no method.

        Only a GET is retried: what another request does is not known here.

        Args:
            method: `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
            path: path of the service, such as `/v1/accounts`, its parameters quoted as in a URL.
            query: the query; what is None is left out.
            body: a JSON value, exact: numbers with a fraction are `Decimal`, floats are refused. None is
                `null`; by default there is no body.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The response, whose `parse()` reads the body as JSON.

        Raises:
            TypeError: the body has no exact JSON form.
            ValueError: the method or the path is not one.
            OutcomeUnknownError: the body has an `idempotency_key`, and what was asked for may have been done.
        """
        request = prepare_undescribed(method, path, query=query, body=body)
        _, reply = self._caller.exchange(request, self._caller.begin(options))
        return RawResponse.of(reply)

    def with_options(
        self,
        *,
        api_key: str | SecretText | UnsetType = UNSET,
        timeout: float | None | UnsetType = UNSET,
        max_retries: int | UnsetType = UNSET,
        deadline: float | None | UnsetType = UNSET,
        default_headers: Mapping[str, str] | UnsetType = UNSET,
    ) -> Self:
        """Return a client with other settings that shares this one's connections; closing one closes both.

        Args:
            api_key: another key of the same service, such as an agent-scoped one.
            timeout: seconds that each step of an exchange may take; None is without limit.
            max_retries: how often a request is sent again, from 0.
            deadline: seconds that a call may take in all; None is without limit.
            default_headers: header fields of every request, instead of those of this client.

        Raises:
            ConfigurationError: a setting cannot be meant; the message names it.
        """
        key = self._settings.api_key if api_key is UNSET else ApiKey(api_key)
        del api_key  # a traceback with locals would show it
        copy = object.__new__(type(self))
        copy._bind(
            self._settings.changed(
                api_key=key,
                timeout=timeout,
                max_retries=max_retries,
                deadline=deadline,
                default_headers=default_headers,
            ),
            self._http,
        )
        return copy

    def close(self) -> None:
        """Close the connections. Calls that follow raise `ClosedClientError`; closing again does nothing."""
        self._http.close()


    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        # A traceback may show a client that was never made for want of good settings.
        settings = getattr(self, "_settings", None)
        return f"<{type(self).__name__} {settings.base_url if settings else 'unmade'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a key and connections: make it anew where it is needed")
