"""A payer for tests of sellers: it pays, or tries to get more than it pays for.

It has wallets of its own on the chain of a server in process, which belong to no account and obey no policy.
What it has paid in an attempt is what left the wallet of that attempt.
"""

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

import httpx
from attrs import evolve, frozen
from solders.pubkey import Pubkey

from agentpay.contract.usdc import from_micro
from agentpay_server.chain import transactions
from agentpay_server.chain.custody import KeyPath
from agentpay_server.chain.instructions import associated_token_address, memo, transfer_checked
from agentpay_server.ledger.context import Context
from agentpay_server.plugins.facilitator.settling import FeePayer
from agentpay_server.plugins.pay402.building import build_payment
from agentpay_server.plugins.pay402.challenges import offers as rules
from agentpay_server.plugins.pay402.challenges.terms import Offer
from agentpay_server.plugins.paywall.homes import ServerHome
from agentpay_server.testkit.embedded.server import AgentPayServer

_AT_ONCE: Final = 4
_WALLET: Final = KeyPath(1, 0)

Header = tuple[str, str]


class Trick(StrEnum):
    """What the payer tries."""

    HONEST = "honest"
    """It pays once and presents the payment once."""

    REPLAY = "replay"
    """It presents one payment twice, the second time after the first response."""

    REPLAY_AT_ONCE = "replay_at_once"
    """It presents one payment four times at the same moment."""

    TRUNCATED = "truncated"
    """It presents a payment of which the end is missing: half of the header, then half of the transaction."""

    OTHER_AMOUNT = "other_amount"
    """It claims the seller's terms, and signs a transfer of less: 0.000001 USDC less than the price."""

    WITHDRAWN = "withdrawn"
    """It signs a payment, moves all its USDC away, and presents the payment."""

    TWO_SELLERS = "two_sellers"
    """It presents one payment to the seller and then to another one, at `other`."""


@frozen(kw_only=True)
class Attempt:
    """What a payer tried, and what came of it.

    Attributes:
        trick: what it tried.
        price_usdc: the price that the seller asked for.
        paid_usdc: what left the payer's wallet, on chain, by the last response. A seller that settles after
            it responds has not been paid yet.
        responses: the responses to the presented payments, in their order.
    """

    trick: Trick
    price_usdc: Decimal
    paid_usdc: Decimal
    responses: tuple[httpx.Response, ...]

    @property
    def served(self) -> int:
        """How many of the responses have a 2xx status."""
        return sum(response.is_success for response in self.responses)

    @property
    def is_cheated(self) -> bool:
        """Whether the seller served for more than it was paid."""
        return self.served * self.price_usdc > self.paid_usdc

    def __str__(self) -> str:
        statuses = ", ".join(str(response.status_code) for response in self.responses)
        return (
            f"{self.trick}: the seller responded {statuses} at a price of {self.price_usdc} USDC, "
            f"and was paid {self.paid_usdc} USDC"
        )


class HostilePayer:
    """A payer with its own wallet, for tests of sellers that settle on the chain of a server in process.

        with AgentPayServer() as server, httpx.Client(base_url=shop_url) as http:
            for attempt in HostilePayer(server).attack(http, "/forecast"):
                assert not attempt.is_cheated, attempt

    It pays by x402 (`exact`) and MPP (`charge`). Each attempt has a new wallet with the price in test USDC.
    """

    def __init__(self, server: AgentPayServer, *, name: str = "hostile payer") -> None:
        """Create the wallet.

        Args:
            server: a running server in process, on whose chain the seller settles.
            name: distinguishes several payers of one server.

        Raises:
            ValueError: the server works on a cluster.
        """
        self._home = ServerHome(server, name)
        self._context: Context = server._running.server.context  # noqa: SLF001 - as its port does
        self._numbers = itertools.count(1)
        self._wallet = _Wallet("wallet", self._home, self._context, self._numbers)
        self.address: str = self._wallet.address()

    def attack(
        self,
        http: httpx.Client,
        url: str,
        *,
        method: str = "GET",
        tricks: Iterable[Trick | str] | None = None,
        other: httpx.Client | None = None,
        **request: Any,  # noqa: ANN401 - as of httpx
    ) -> list[Attempt]:
        """Try several tricks, one after another.

        Args:
            http: a client of the seller.
            url: what to buy, as `http` takes it.
            method: HTTP method.
            tricks: default: all, `TWO_SELLERS` only if there is another seller.
            other: a client of another seller that sells the same URL at the same price.
            **request: further arguments of `http.request`, such as `json`.

        Raises:
            ValueError, httpx.HTTPError: as `attempt`.
        """
        chosen = [Trick(trick) for trick in tricks] if tricks is not None else list(Trick)
        if tricks is None and other is None:
            chosen.remove(Trick.TWO_SELLERS)
        return [self.attempt(trick, http, url, method=method, other=other, **request) for trick in chosen]

    def attempt(
        self,
        trick: Trick | str,
        http: httpx.Client,
        url: str,
        *,
        method: str = "GET",
        other: httpx.Client | None = None,
        **request: Any,  # noqa: ANN401 - as of httpx
    ) -> Attempt:
        """Ask for the price, try one trick, and count on the chain what it cost.

        Args:
            trick: a `Trick` or its name.
            http: a client of the seller.
            url: what to buy, as `http` takes it.
            method: HTTP method.
            other: a client of another seller that sells the same URL at the same price; only for
                `TWO_SELLERS`.
            **request: further arguments of `http.request`, such as `json`.

        Raises:
            ValueError: the trick is unknown, the seller did not respond 402, its 402 offers nothing that the
                payer can pay, or `TWO_SELLERS` has no other seller.
            httpx.HTTPError: the seller did not respond.
        """
        trick = Trick(trick)
        if trick is Trick.TWO_SELLERS and other is None:
            raise ValueError("two_sellers needs the client of another seller: pass other=httpx.Client(…)")
        headers = httpx.Headers(request.pop("headers", None))
        asked = http.request(method, url, headers=headers, **request)
        offer = self._offer(asked)
        price_micro = offer.terms.amount_micro
        # A payment of an earlier attempt that lands late must not count as paid for this one.
        name = f"wallet {next(self._numbers)}"
        wallet = _Wallet(name, self._home, self._context, self._numbers)
        before = self._home.owner.call(wallet.stock(price_micro))

        def present(header: Header, client: httpx.Client = http) -> httpx.Response:
            paid = httpx.Headers([*headers.multi_items(), header])
            return client.request(method, url, headers=paid, **request)

        responses: list[httpx.Response] = []
        if trick is Trick.TRUNCATED:
            name, value = self._signed(wallet, offer)
            responses = [
                present((name, value[: len(value) // 2])),
                present(self._signed(wallet, offer, half=True)),
            ]
        elif trick is Trick.OTHER_AMOUNT:
            responses = [present(self._signed(wallet, offer, less=1))]
        else:
            header = self._signed(wallet, offer)
            if trick is Trick.WITHDRAWN:
                self._home.owner.call(wallet.withdraw(before))
                before = 0
            if trick is Trick.REPLAY_AT_ONCE:
                with ThreadPoolExecutor(_AT_ONCE) as pool:
                    responses = list(pool.map(present, [header] * _AT_ONCE))
            else:
                responses = [present(header)]
            if trick is Trick.REPLAY:
                responses.append(present(header))
            if trick is Trick.TWO_SELLERS and other is not None:
                responses.append(present(header, other))
        left = self._home.owner.call(wallet.balance())
        return Attempt(
            trick=trick,
            price_usdc=from_micro(price_micro),
            paid_usdc=from_micro(before - left),
            responses=tuple(responses),
        )

    def sign(self, response: httpx.Response) -> Header:
        """Return name and value of the header that pays a 402 honestly; the wallet gets the price first.

        Raises:
            ValueError: `response` is not a 402, or offers nothing that the payer can pay.
        """
        offer = self._offer(response)
        self._home.owner.call(self._wallet.stock(offer.terms.amount_micro))
        return self._signed(self._wallet, offer)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    # --- Payments

    def _offer(self, response: httpx.Response) -> Offer:
        if response.status_code != httpx.codes.PAYMENT_REQUIRED:
            raise ValueError(f"the seller responded {response.status_code}, not 402: {response.text[:200]}")
        found = rules.read_challenge(response.headers.multi_items(), response.content)
        sifted = rules.sift(
            found, cluster=None, usdc_mint=self._home.usdc_mint, now_us=self._home.clock.now_us()
        )
        payable = [offer for offer in sifted.payable.values() if offer.channel is None]
        if not payable:
            reasons = "; ".join(sifted.reasons.values()) or "it has no offer of a single payment"
            raise ValueError(f"the 402 offers nothing that this payer can pay: {reasons}")
        return payable[0]

    def _signed(self, wallet: "_Wallet", offer: Offer, *, less: int = 0, half: bool = False) -> Header:
        """Sign a payment of an offer: `less` micro-USDC less than its price, or cut in `half`."""
        terms = offer.terms
        if less:
            first, *others = terms.legs
            # A price of 0.000001 cannot be less: one more is another amount, too.
            changed = first.amount_micro - less or first.amount_micro + less
            terms = evolve(terms, legs=(evolve(first, amount_micro=changed), *others))

        async def signed() -> bytes:
            number = next(self._numbers)
            return build_payment(
                wallet,
                await self._context.chain.latest_blockhash(),
                terms,
                payer_key=_WALLET,
                usdc_mint=self._home.usdc_mint,
                own_addresses=(),
                nonce=number,
                nonce_memo=f"payment {number} of {wallet.address()[:8]}",
            ).raw

        raw = self._home.owner.call(signed())
        payment_id = f"pay_{next(self._numbers):026}"
        return rules.wrap(offer, raw[: len(raw) // 2] if half else raw, payment_id=payment_id)


class _Wallet:
    """A key with test USDC and SOL.

    It signs with its key, whatever the role: it also pays the fees that its seller does not.
    """

    def __init__(self, name: str, home: ServerHome, context: Context, numbers: Iterator[int]) -> None:
        self._keypair = home.keypair(name)
        self._home, self._context, self._numbers = home, context, numbers
        self._fees = FeePayer(self._keypair, home.rpc)
        self._token_account = associated_token_address(self.address(), home.usdc_mint)

    async def stock(self, micro: int) -> int:
        """Mint the price to the wallet, and return its balance."""
        context = self._context
        await self._fees.prepare([self.address()], self._home.usdc_mint)
        minted = transactions.mint(
            context.signer,
            await context.chain.latest_blockhash(),
            usdc_mint=self._home.usdc_mint,
            token_account=self._token_account,
            amount_micro=micro,
            memo=f"{self.address()} {next(self._numbers)}",
        )
        await context.chain.send(minted.raw)
        await self._fees.confirmed(minted.signature)
        return await self.balance()

    async def withdraw(self, micro: int) -> None:
        mint, elsewhere = self._home.usdc_mint, str(self._home.keypair("elsewhere").pubkey())
        await self._fees.prepare([elsewhere], mint)
        steps = [
            transfer_checked(
                source=Pubkey.from_string(self._token_account),
                destination=Pubkey.from_string(associated_token_address(elsewhere, mint)),
                owner=self._keypair.pubkey(),
                mint=Pubkey.from_string(mint),
                amount_micro=micro,
            ),
            memo(f"withdrawal {next(self._numbers)}"),
        ]
        await self._fees.execute(steps)

    async def balance(self) -> int:
        (held,) = await self._context.chain.token_accounts([self._token_account])
        return 0 if held is None else held.amount_micro

    # --- As `Signer`

    def address(self, key: KeyPath = _WALLET) -> str:  # noqa: ARG002 - it has one key
        return str(self._keypair.pubkey())

    def sign(self, key: KeyPath, message: bytes) -> bytes:  # noqa: ARG002 - as above
        return bytes(self._keypair.sign_message(message))

    def sign_voucher(self, key: KeyPath, voucher: bytes) -> bytes:
        raise ValueError(f"{key} signs no vouchers: the wallet opens no channels, {len(voucher)} bytes")
