"""`Paywall`: a seller for tests, and the ways to reach it."""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import httpx
from starlette.types import Receive, Scope, Send

from agentpay._loading import load
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.platform.clock import Clock
from agentpay_server.plugins.pay402.challenges.terms import Protocol
from agentpay_server.plugins.paywall.homes import Home, Host, NodeHome, SellerApp, ServerHome
from agentpay_server.plugins.paywall.products import (
    GRACE_SECONDS,
    ChannelProduct,
    Mode,
    PaywallChannel,
    PaywallRequest,
    Product,
    Sale,
    SellerKeys,
    SessionMode,
    UptoMode,
    named,
    owner_address,
)
from agentpay_server.plugins.paywall.seller import Seller
from agentpay_server.testkit.embedded.recorder import Records
from agentpay_server.testkit.embedded.server import AgentPayServer
from agentpay_server.testkit.embedded.transports import AsyncEmbeddedTransport, EmbeddedTransport

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

T = TypeVar("T")

IN_PROCESS_URL: Final = "http://paywall.invalid"
"""The URL of a paywall without a port."""


class Paywall:
    """A seller of paid API calls, for tests: it asks for payment by x402 or MPP, and settles on a test chain.

        with AgentPayServer() as server, Paywall(server, {"/forecast": "0.01"}) as paywall:
            http = httpx.Client(transport=paywall.transport(), base_url=paywall.base_url)
            assert http.get("/forecast").status_code == 402

    It checks payments as strictly as the established packages, and broadcasts them itself. `mode` makes it
    hostile. Its addresses belong to no account, and it pays fees with its own key.

    It may be used from any thread. On a server in process it shares the server's thread, chain, clock and
    snapshots, and closes with the server at the latest.
    """

    def __init__(
        self,
        server: AgentPayServer | Host | None = None,
        prices: Mapping[str, Decimal | int | str] | None = None,
        *,
        protocols: Iterable[Protocol | str] = (Protocol.X402_V2,),
        mode: Mode | str = Mode.HONEST,
        serves_again: bool = False,
        pay_to: str | None = None,
        name: str = "paywall",
        rpc_url: str | None = None,
        usdc_mint: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Set up a seller.

        Args:
            server: a running server in process, on whose chain it settles.
            prices: price in USDC of each path; `sell` has more options.
            protocols: protocols of `prices`: `x402_v2`, `x402_v1`, `mpp`. Several are offered at once.
            mode: how the seller behaves, a `Mode` or its name.
            serves_again: whether it serves a settled payment again when it is presented again, with the same
                reply, instead of refusing it as a duplicate. It then also refuses a second payment under one
                `Idempotency-Key` or x402 `payment-identifier`, with 409, and declares that extension.
            pay_to: address of the owner who is paid, such as an account's `chain_address`; default: its own
                address.
            name: distinguishes several paywalls of one server: addresses are derived from it.
            rpc_url: instead of `server`: JSON-RPC endpoint of another test chain. The paywall then has a
                separate thread.
            usdc_mint: with `rpc_url`: address of the USDC mint; default: that of mainnet.
            clock: with `rpc_url`: the seller's time; default: the machine's clock.

        Raises:
            TypeError: a price is a float.
            ValueError: a path, price, protocol, mode or `pay_to` is invalid, or `server` works on a cluster,
                or both or neither of `server` and `rpc_url` are given.
        """
        if pay_to:
            owner_address(pay_to, "pay_to")
        if (server is None) == (rpc_url is None):
            raise ValueError("pass either a server in process or the rpc_url of a test chain")
        self._home: Home = (
            ServerHome(server, name) if server is not None else NodeHome(rpc_url or "", usdc_mint, clock)
        )
        recipient = pay_to or str(self._home.keypair("recipient").pubkey())
        self._is_paid_to_another = pay_to is not None
        keys = SellerKeys(
            fee_payer=self._home.keypair("fee payer"),
            payee=self._home.keypair("recipient"),
            authorizer=self._home.keypair("authorizer"),
            recipient=recipient,
            mint=self._home.usdc_mint,
        )
        self._seller = Seller(self._home, keys)
        self._app = SellerApp(self._seller, self._home.owner)
        self._base_url = IN_PROCESS_URL
        self._protocols = tuple(protocols)
        self.recipient: str = recipient
        self.mode = named(Mode, mode)
        self.serves_again = serves_again
        for path, price in (prices or {}).items():
            self.sell(path, price)
        self._home.start(self._seller)

    def sell(
        self,
        path: str,
        price: Decimal | int | str,
        *,
        protocols: Iterable[Protocol | str] | None = None,
        sponsored: bool | None = None,
        splits: Mapping[str, Decimal | int | str] | None = None,
        external_id: str | None = None,
        category: str | None = None,
        description: str = "",
        content: Any = None,  # noqa: ANN401 - any JSON
        mode: Mode | str | None = None,
    ) -> None:
        """Sell a path, or change what is sold there.

        Args:
            path: path of the URL, for every HTTP method.
            price: total price in USDC.
            protocols: default: those of the constructor.
            sponsored: whether the seller pays the network fee; default: with x402 yes, with MPP no.
            splits: USDC of the price that goes to further recipients, by address; MPP only, at most 8.
            external_id: memo that the payment must carry on chain.
            category: category that the challenge declares; only MPP can carry it.
            description: text for people.
            content: JSON of the response; default: path and price.
            mode: how the seller behaves for this path; default: the paywall's `mode`.

        Raises:
            TypeError: an amount is a float, or `content` has no JSON form.
            ValueError: an argument is invalid.
        """
        offered = self._protocols if protocols is None else protocols
        self._seller.products[path] = Product(
            path=path,
            amount_micro=to_micro(price),
            protocols=tuple(named(Protocol, name, "protocol") for name in offered),
            is_sponsored=sponsored,
            splits={address: to_micro(part) for address, part in (splits or {}).items()},
            external_id=external_id,
            category=category,
            description=description,
            content=content,
            mode=None if mode is None else named(Mode, mode),
        )

    def sell_by_session(
        self,
        path: str,
        price: Decimal | int | str,
        *,
        shares: Mapping[str, int] | None = None,
        grace_seconds: int = GRACE_SECONDS,
        minimum_deposit: Decimal | int | str | None = None,
        suggested_deposit: Decimal | int | str | None = None,
        idle_seconds: int | None = None,
        category: str | None = None,
        description: str = "",
        content: Any = None,  # noqa: ANN401 - any JSON
        mode: SessionMode | str = SessionMode.HONEST,
    ) -> None:
        """Sell a path by session of MPP, or change how it is sold; `sell` can offer the same path as well.

        The payer opens a channel on chain, and pays each request with a voucher. The paywall settles the
        highest voucher when the payer closes, when the channel is idle, and when the payer closes by force.

        Args:
            path: path of the URL, for every HTTP method.
            price: price of a request in USDC.
            shares: hundredths of a percent of what is settled that go to further recipients, by address; at
                most 8.
            grace_seconds: how long the paywall can still settle after the payer closes by force.
            minimum_deposit: least USDC that a channel must have; default: none.
            suggested_deposit: USDC that the challenge suggests; default: none.
            idle_seconds: seconds without a request after which the paywall settles; default: never.
            category: category that the challenge declares.
            description: text for people.
            content: JSON of the response; default: path and price.
            mode: how the seller behaves, a `SessionMode` or its name.

        Raises:
            TypeError: an amount is a float, or `content` has no JSON form.
            ValueError: an argument is invalid, or the paywall was created with `pay_to`: only the payee's key
                can settle.
        """
        if self._is_paid_to_another:
            raise ValueError("a paywall with pay_to cannot settle sessions: it has no key of that address")
        self._seller.desk.sell(
            ChannelProduct(
                channel="session",
                path=path,
                amount_micro=to_micro(price),
                shares=tuple((shares or {}).items()),
                grace_seconds=grace_seconds,
                minimum_micro=None if minimum_deposit is None else to_micro(minimum_deposit),
                suggested_micro=None if suggested_deposit is None else to_micro(suggested_deposit),
                idle_seconds=idle_seconds,
                category=category,
                description=description,
                content=content,
                mode=named(SessionMode, mode),
            )
        )

    def sell_upto(
        self,
        path: str,
        maximum: Decimal | int | str,
        *,
        charge: Callable[[], Decimal | int | str] | Decimal | int | str | None = None,
        grace_seconds: int = GRACE_SECONDS,
        description: str = "",
        content: Any = None,  # noqa: ANN401 - any JSON
        mode: UptoMode | str = UptoMode.HONEST,
    ) -> None:
        """Sell a path by x402 `upto`, or change how it is sold; `sell` can offer the same path as well.

        The payer locks the maximum in a channel. The paywall takes what the request cost; the rest returns.

        Args:
            path: path of the URL, for every HTTP method.
            maximum: the most that a request costs, in USDC.
            charge: what a request costs, in USDC, or a function that returns it; at most the maximum is
                taken. Default: the maximum.
            grace_seconds: how long the payer must wait for the deposit if the paywall never settles.
            description: text for people.
            content: JSON of the response; default: path and price.
            mode: how the seller behaves, an `UptoMode` or its name.

        Raises:
            TypeError: an amount is a float, or `content` has no JSON form.
            ValueError: an argument is invalid.
        """
        cost = maximum if charge is None else charge
        if not callable(cost):
            to_micro(cost)
        self._seller.desk.sell(
            ChannelProduct(
                channel="upto",
                path=path,
                amount_micro=to_micro(maximum),
                charge=cost if callable(cost) else lambda: cost,
                grace_seconds=grace_seconds,
                description=description,
                content=content,
                mode=named(UptoMode, mode),
            )
        )

    def settle(self) -> None:
        """Settle every open channel now, in every mode: take the highest voucher, or what `upto` has cost.

        A seller settles when the payer closes, or later. This takes at once what the seller could take. A
        channel that the chain does not let it settle stays `open` in `channels`.
        """
        self._home.owner.call(self._seller.desk.settle())

    @property
    def channels(self) -> Records[PaywallChannel]:
        """The channels that payers opened, oldest first."""
        return self._read(lambda: Records(self._seller.desk.channels))

    @property
    def mode(self) -> Mode:
        """How the seller behaves; assign a `Mode` or its name."""
        return self._seller.mode

    @mode.setter
    def mode(self, mode: Mode | str) -> None:
        self._seller.mode = named(Mode, mode)

    @property
    def serves_again(self) -> bool:
        """Whether a settled payment is served again when it is presented again."""
        return self._seller.serves_again

    @serves_again.setter
    def serves_again(self, value: bool) -> None:
        self._seller.serves_again = value

    @property
    def base_url(self) -> str:
        """URL of the seller: its port after `listen`, else a name that only its transports know."""
        return self._base_url

    @property
    def sales(self) -> Records[Sale]:
        """The payments that the seller accepted, one for each signed message, oldest first."""
        return self._read(lambda: Records(self._seller.sales))

    @property
    def requests(self) -> Records[PaywallRequest]:
        """The requests that reached the seller, oldest first."""
        return self._read(lambda: Records(self._seller.requests))

    @property
    def received_usdc(self) -> Decimal:
        """Total of the settled sales and channels, in USDC, including shares of others."""
        sales = sum(to_micro(sale.amount_usdc) for sale in self.sales if sale.status == "settled")
        return from_micro(sales + sum(to_micro(channel.settled_usdc) for channel in self.channels))

    def address(self, name: str) -> str:
        """Return one of the seller's addresses, for a split: always the same for a name."""
        return str(self._home.keypair(f"address {name}").pubkey())

    def transport(self) -> httpx.BaseTransport:
        """Return a transport for `httpx.Client`. It sends every request to this seller, whatever the host."""
        return EmbeddedTransport(self._app, self._home.owner)

    def async_transport(self) -> httpx.AsyncBaseTransport:
        """Return a transport for `httpx.AsyncClient`, on any event loop."""
        return AsyncEmbeddedTransport(self._app, self._home.owner)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request, as an ASGI application on any asyncio event loop."""
        await self._app(scope, receive, send)

    def mcp_server(self) -> "Server[Any]":
        """Return an MCP server whose tools are what `sell` sells: `/forecast` is the tool `forecast`.

        It asks for payment by x402 in results or by MPP in errors, in every mode. For tests in process, pass
        it to `mcp.Client`; over stdio, call its `run`. `listen` serves it at `/mcp`.

        Raises:
            ModuleNotFoundError: the extra `mcp` is not installed.
        """
        module = load("agentpay_server.plugins.paywall.tool_server", part="Paywall.mcp_server", extra="mcp")
        made: Server[Any] = module.server_of(self._seller, self._home.owner.call_async)
        return made

    def listen(self, *, port: int = 0) -> str:
        """Open a port on 127.0.0.1, until the paywall closes.

        With the extra `mcp`, an MCP server is at `/mcp` of the port: see `mcp_server`.

        Args:
            port: port number; 0 for a free one.

        Returns:
            The URL of the seller, which `base_url` returns from now on.

        Raises:
            RuntimeError: it is already listening.
            OSError: the port is in use, or the process may not open it.
        """
        if self._base_url != IN_PROCESS_URL:
            raise RuntimeError(f"the paywall is already listening, on {self._base_url}")
        self._base_url = self._home.listen(self._app, port)
        return self._base_url

    def close(self) -> None:
        """Close the port. Held payments are never broadcast. Calling it again does nothing."""
        self._home.close(self._seller)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._base_url} {self.mode}>"

    def _read(self, read: Callable[[], T]) -> T:
        async def there() -> T:
            return read()

        return self._home.owner.call(there())
