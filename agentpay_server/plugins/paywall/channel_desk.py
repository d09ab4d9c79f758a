"""The part of a seller that sells through channels on chain: by session, and up to a maximum.

For a session it keeps the highest voucher of each channel, and what it has served for it:

- A voucher above the highest one is accepted if, with what earlier ones have left, it pays for the request.
- The highest voucher again is the same request again: the same response, not charged a second time. For
  another request it must leave enough.
- A lower voucher, one above the deposit, and one that expires before a forced close could be answered are
  refused.

It polls each open channel several times within the grace period: if the payer closes by force, it settles
the highest voucher in time. A channel without requests for `idle_seconds` is settled as well.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from attrs import evolve, frozen

from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import OnchainStatus, OnchainTerms, Voucher
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.plugins.facilitator.settling import FeePayer, InvalidPaymentError, Rpc
from agentpay_server.plugins.node.jsonrpc import RpcError
from agentpay_server.plugins.pay402.challenges import mpp, x402
from agentpay_server.plugins.pay402.challenges.terms import Presented, Protocol
from agentpay_server.plugins.paywall import challenges
from agentpay_server.plugins.paywall.challenges import PRICE_FACTOR, ChallengeParts
from agentpay_server.plugins.paywall.channel_settling import (
    EXPIRY_MARGIN_SECONDS,
    TREASURY,
    ChannelChain,
    Opening,
    SignedVoucher,
    check_offered,
    check_voucher,
)
from agentpay_server.plugins.paywall.products import (
    ChannelProduct,
    ChannelStatus,
    PaywallChannel,
    SellerKeys,
    SessionMode,
    UptoMode,
)

RETRY_SECONDS: Final = 5
LOOKS_PER_GRACE: Final = 3
"""How often the seller polls a channel within its grace period."""


Served = tuple[tuple[str, str], Any]
"""The receipt of a request that was paid through a channel, and the JSON to send."""


class UnservedError(Exception):
    """The seller does not serve this request: it drops the connection, or responds with `status`."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


@frozen(kw_only=True)
class _Account:
    """A channel in the seller's books."""

    protocol: Literal["session", "upto"]
    path: str
    opening: OnchainTerms
    at_us: int
    used_us: int
    poll_us: int
    tx_signature: str
    idle_seconds: int | None = None
    highest: SignedVoucher | None = None
    spent_micro: int = 0
    served: int = 0
    last_request: str | None = None
    last_micro: int = 0
    refused_once: int = 0
    has_failed: bool = False
    status: ChannelStatus = "open"
    settled_micro: int = 0
    settlement: str | None = None

    @property
    def accepted_micro(self) -> int:
        return 0 if self.highest is None else self.highest[0].cumulative_micro

    @property
    def expires_at(self) -> int:
        return 0 if self.highest is None else self.highest[0].expires_at

    def record(self) -> PaywallChannel:
        return PaywallChannel(
            protocol=self.protocol,
            path=self.path,
            channel=str(self.opening.address),
            payer=str(self.opening.payer),
            deposit_usdc=from_micro(self.opening.deposit_micro),
            accepted_usdc=from_micro(self.accepted_micro),
            spent_usdc=from_micro(self.spent_micro),
            served=self.served,
            status=self.status,
            settled_usdc=from_micro(self.settled_micro),
            tx_signature=self.tx_signature,
            settlement_tx_signature=self.settlement,
            at=from_us(self.at_us),
        )


class ChannelDesk:
    """Sells through channels. It belongs to the event loop of its seller.

    Sessions are paid to `keys.payee`, which must sign their settlements. `on_work` is called when there is
    more to do.
    """

    def __init__(
        self,
        *,
        rpc: Rpc,
        fee_payer: FeePayer,
        keys: SellerKeys,
        now_us: Callable[[], int],
        on_work: Callable[[], None],
        chain: ChannelChain | None = None,
    ) -> None:
        self.products: dict[tuple[str, str], ChannelProduct] = {}
        self._rpc = rpc
        self._fee_payer = fee_payer
        self._keys = keys
        self._chain = chain or ChannelChain(rpc, fee_payer, keys)
        self._now_us = now_us
        self._on_work = on_work
        self._accounts: dict[str, _Account] = {}
        # Channels that `SessionMode.FORGET` has forgotten: their openings register them again.
        self._forgotten: set[str] = set()
        # The chain is being asked about them: a second request must not broadcast or settle them again.
        self._busy: set[str] = set()

    def sell(self, product: ChannelProduct) -> None:
        self.products[product.channel, product.path] = product

    # --- Records

    @property
    def channels(self) -> list[PaywallChannel]:
        return [account.record() for account in self._accounts.values()]

    def capture(self) -> Restore:
        return captured(self, "_accounts", "_forgotten")

    # --- Scheduled work

    async def next_due_us(self) -> int | None:
        return min((self._due_us(account) for account in self._watched()), default=None)

    async def run_due(self) -> bool:
        now_us = self._now_us()
        due = [account for account in self._watched() if self._due_us(account) <= now_us]
        for account in due:
            # A step that fails is tried again at the next poll.
            with contextlib.suppress(InvalidPaymentError, RpcError):
                await self._poll(account)
        return bool(due)

    async def settle(self) -> None:
        """Settle every open channel, whatever the mode."""
        for name, account in list(self._accounts.items()):
            # A payment by `upto` that nothing was served for is about to be settled, or is polled soon.
            is_undecided = account.protocol == "upto" and account.highest is None and not account.served
            if account.status != "open" or name in self._busy or is_undecided:
                continue
            with contextlib.suppress(InvalidPaymentError):
                if account.protocol == "upto" and account.highest is None:
                    await self._take(name, account.spent_micro, expires_at=0)
                else:
                    await self._settle(name)

    def _watched(self) -> list[_Account]:
        return [
            account
            for name, account in self._accounts.items()
            if account.status == "open" and name not in self._busy and not self._is_careless(account)
        ]

    def _is_careless(self, account: _Account) -> bool:
        product = self.products.get((account.protocol, account.path))
        return product is not None and product.mode in (SessionMode.NEVER_CLOSE, UptoMode.NEVER_SETTLE)

    @staticmethod
    def _end_us(account: _Account) -> int | None:
        """Return when a channel is settled in any case: it is idle, or its voucher is about to expire."""
        ends = []
        if account.idle_seconds is not None:
            ends.append(account.used_us + account.idle_seconds * SECOND_US)
        if account.expires_at:
            ends.append((account.expires_at - EXPIRY_MARGIN_SECONDS) * SECOND_US)
        return min(ends, default=None)

    def _due_us(self, account: _Account) -> int:
        end_us = self._end_us(account)
        # A settlement that failed is tried again with the next poll.
        return account.poll_us if end_us is None or account.has_failed else min(account.poll_us, end_us)

    async def _poll(self, account: _Account) -> None:
        """Settle a channel that its payer closes by force, that is idle, or whose voucher expires soon."""
        name, now_us, end_us = str(account.opening.address), self._now_us(), self._end_us(account)
        # A payment by `upto` is settled at once, unless the chain did not respond then.
        is_over = account.protocol == "upto" or (end_us is not None and end_us <= now_us)
        self._update(name, poll_us=now_us + _pause_us(account.opening), has_failed=is_over)
        found = await self._chain.channel(account.opening.address)
        if found is None:
            self._update(name, status="lost")
        elif found.status in (OnchainStatus.SEALED, OnchainStatus.DISTRIBUTED):
            # Only the seller settles: it did, and the node's response was lost.
            is_settled = found.settled_micro > 0
            status: ChannelStatus = "settled" if is_settled else "lost"
            self._update(name, status=status, settled_micro=found.settled_micro)
        elif found.status is OnchainStatus.CLOSING or is_over:
            await self._settle(name)

    # --- Challenges

    async def offers(
        self, path: str, challenge: ChallengeParts
    ) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
        """Return the headers of sessions, and the x402 entries of `upto`, that a 402 for a path has."""
        headers: list[tuple[str, str]] = []
        entries: list[dict[str, Any]] = []
        products = [product for product in self.products.values() if product.path == path]
        if not products:
            return headers, entries
        await self._prepare(products)
        latest = await self._rpc("getLatestBlockhash")
        recent = {"blockhash": latest["value"]["blockhash"], "slot": latest["context"]["slot"]}
        for product in products:
            terms, price = product.terms(self._keys, **recent), self._price(product)
            asked = product.offer(self._keys, terms, amount_micro=price)
            if product.channel == "upto":
                entries.append(asked)
            else:
                parts = evolve(challenge, category=product.category, description=product.description)
                headers.append(challenges.mpp_challenge(asked, parts, intent="session"))
        return headers, entries

    def _price(self, product: ChannelProduct) -> int:
        is_raised = product.mode is SessionMode.RAISE_PRICE and any(
            account.served and account.path == product.path for account in self._accounts.values()
        )
        return product.amount_micro * (PRICE_FACTOR if is_raised else 1)

    async def _prepare(self, products: Iterable[ChannelProduct]) -> None:
        """Fund the fee payer, and create the token accounts of all beneficiaries and of the treasury."""
        keys = (self._keys.payee.pubkey(), self._keys.fee_payer.pubkey(), TREASURY)
        owners = {self._keys.recipient, *map(str, keys)}
        owners |= {owner for product in products for owner, _ in product.shares}
        await self._fee_payer.prepare(sorted(owners), self._keys.mint)

    # --- Payments

    async def take(self, path: str, request: str, presented: Presented) -> Served:
        """Take a payment. `request` identifies the paid request: its method and its URL.

        Raises:
            InvalidPaymentError: it is refused; the payer may try something else.
            UnservedError: the seller does not serve it, whatever it has kept.
        """
        product = self.products.get((presented.channel or "", path))
        if product is None:
            offered = "upto is" if presented.channel == "upto" else "sessions are"
            raise InvalidPaymentError("unsupported_scheme", f"{offered} not offered here")
        # A voucher of before a raise is for the old price.
        prices, lasting = {product.amount_micro, self._price(product)}, product.terms(self._keys)
        asked = [product.offer(self._keys, lasting, amount_micro=price) for price in prices]
        if presented.channel == "upto":
            challenges.require_own_upto(presented, asked[0])
            return await self._upto(product, presented)
        recent = challenges.require_own_session(presented, asked, self._now_us())
        action = presented.payload["action"]
        if action == "open":
            return await self._open(product, presented, *recent)
        if action == "voucher":
            name = await self._voucher(product, presented, request)
            receipt, _ = self._status(name, presented)
            if product.mode is SessionMode.FORGET:
                self._forgotten.add(name)
            return receipt, product.served(from_micro(self._accounts[name].last_micro))
        if action == "close":
            return await self._close(product, presented)
        raise InvalidPaymentError("invalid_payload", f"the action {action} is not supported")

    # --- Sessions

    async def _open(self, product: ChannelProduct, presented: Presented, blockhash: str, slot: int) -> Served:
        checked = check_offered(presented, product, self._keys, now=self._now_us() // SECOND_US)
        transaction, opening = checked
        name = str(opening.address)
        if name in self._accounts:
            # The same opening again, perhaps because the reply was lost.
            self._forgotten.discard(name)
        else:
            if str(transaction.message.recent_blockhash) != blockhash:
                raise InvalidPaymentError("payment_invalid", "the blockhash is not that of the challenge")
            if not slot - codecs.OPEN_SLOT_WINDOW <= opening.open_slot <= slot:
                raise InvalidPaymentError("payment_invalid", "openSlot does not fit recentSlot")
            await self._land(product, checked, pause_us=_pause_us(opening))
        return self._status(name, presented)

    async def _voucher(self, product: ChannelProduct, presented: Presented, request: str) -> str:
        """Accept a voucher, and charge the request; return the name of its channel."""
        name: str = presented.payload["channelId"]
        account = self._open_account(name)
        signed = check_voucher(presented, account.opening, now=self._now_us() // SECOND_US)
        cumulative = signed[0].cumulative_micro
        price = self._price(product)
        is_replay = cumulative == account.accepted_micro and account.last_request == request
        if product.mode is SessionMode.OUT_OF_ORDER and cumulative > account.refused_once:
            self._accounts[name] = evolve(account, refused_once=cumulative)
            raise InvalidPaymentError(
                "cumulative-not-monotonic", f"a voucher for {cumulative + price} was accepted before"
            )
        if is_replay and product.mode is not SessionMode.REFUSE_ACCEPTED:
            return name
        if is_replay or cumulative < account.accepted_micro:
            raise InvalidPaymentError(
                "cumulative-not-monotonic", f"{cumulative} is not above {account.accepted_micro}"
            )
        if cumulative - account.spent_micro < price:
            raise InvalidPaymentError(
                "insufficient-authorized-voucher",
                f"the voucher leaves {cumulative - account.spent_micro}; the request costs {price}",
            )
        is_stolen = product.mode is SessionMode.STEAL_VOUCHER
        self._accounts[name] = evolve(
            account,
            highest=signed,
            spent_micro=account.spent_micro + (0 if is_stolen else price),
            served=account.served + (0 if is_stolen else 1),
            last_request=request,
            last_micro=price,
            used_us=self._now_us(),
        )
        if is_stolen:
            raise UnservedError(503)
        if product.mode in (SessionMode.LOSE_REPLY, SessionMode.REFUSE_ACCEPTED):
            raise UnservedError(None)
        if product.mode is SessionMode.SEAL_EARLY:
            await self._settle(name, status="sealed")
        return name

    async def _close(self, product: ChannelProduct, presented: Presented) -> Served:
        if product.mode is SessionMode.NEVER_CLOSE:
            raise UnservedError(503)
        name: str = presented.payload["channelId"]
        account = self._open_account(name)
        signed = check_voucher(presented, account.opening, now=self._now_us() // SECOND_US)
        cumulative = signed[0].cumulative_micro
        if cumulative < account.accepted_micro:
            raise InvalidPaymentError(
                "cumulative-not-monotonic", f"{cumulative} is below {account.accepted_micro}"
            )
        self._update(name, highest=signed)
        await self._settle(name)
        closed = self._accounts[name]
        refunded = closed.opening.deposit_micro - closed.settled_micro
        return self._status(name, presented, txHash=closed.settlement or "", refunded=str(refunded))

    def _open_account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None or account.protocol != "session" or name in self._forgotten:
            raise InvalidPaymentError("channel-not-found", "this seller knows no such channel")
        if account.status != "open" or name in self._busy:
            raise InvalidPaymentError("channel-sealed", "the channel is closed")
        return account

    def _status(self, name: str, presented: Presented, **more: str) -> Served:
        account = self._accounts[name]
        receipt = mpp.receipt(
            reference=name,
            challenge_id=presented.echo.get("id", ""),
            now_us=self._now_us(),
            intent="session",
            acceptedCumulative=str(account.accepted_micro),
            spent=str(account.spent_micro),
            **more,
        )
        return receipt, {"channel": name, "status": account.status}

    # --- Up to a maximum

    async def _upto(self, product: ChannelProduct, presented: Presented) -> Served:
        """Open the channel of a payment, serve, take what the request cost, and return the rest."""
        checked = check_offered(presented, product, self._keys, now=self._now_us() // SECOND_US)
        opening = checked[1]
        name = str(opening.address)
        if name in self._accounts or name in self._busy:
            payer = str(opening.payer)
            raise InvalidPaymentError("duplicate_settlement", "this payment was presented before", payer)
        await self._land(product, checked, pause_us=RETRY_SECONDS * SECOND_US)
        try:
            charged = self._charged(product)
        except Exception:
            await self._take(name, 0, expires_at=0)
            raise
        if product.mode is not UptoMode.NEVER_SETTLE:
            try:
                await self._take(name, charged, expires_at=presented.payload["expiresAt"])
            except InvalidPaymentError:
                # Nothing is served, so a later settlement returns everything.
                self._update(name, highest=None)
                raise
        if product.mode is UptoMode.LOSE_REPLY:
            raise UnservedError(None)
        if product.mode in (UptoMode.CHARGE_MAXIMUM, UptoMode.FAIL):
            raise UnservedError(503 if product.mode is UptoMode.CHARGE_MAXIMUM else 500)
        settled = self._update(name, served=1, spent_micro=charged)
        receipt = x402.receipt(
            Protocol.X402_V2,
            payer=str(settled.opening.payer),
            signature=settled.settlement or "",
            amount_micro=charged,
        )
        return receipt, product.served(from_micro(charged))

    @staticmethod
    def _charged(product: ChannelProduct) -> int:
        if product.mode is UptoMode.FAIL:
            return 0
        if product.mode is UptoMode.CHARGE_MAXIMUM or product.charge is None:
            return product.amount_micro
        return min(to_micro(product.charge()), product.amount_micro)

    async def _take(self, name: str, amount_micro: int, *, expires_at: int) -> None:
        """Sign the only voucher of a channel, and settle it."""
        if amount_micro:
            voucher = Voucher(
                channel=self._accounts[name].opening.address,
                cumulative_micro=amount_micro,
                expires_at=expires_at,
            )
            self._update(name, highest=(voucher, self._keys.authorizer.sign_message(voucher.message())))
        await self._settle(name)

    # --- The chain

    async def _land(self, product: ChannelProduct, checked: Opening, *, pause_us: int) -> None:
        """Open a channel, and enter it in the books; it is polled after a pause."""
        opening = checked[1]
        name = str(opening.address)
        if name in self._busy:
            payer = str(opening.payer)
            raise InvalidPaymentError("duplicate_settlement", "this channel is being opened", payer)
        self._busy.add(name)
        try:
            signature = await self._chain.land(checked)
        finally:
            self._busy.discard(name)
        now_us = self._now_us()
        self._accounts[name] = _Account(
            protocol=product.channel,
            path=product.path,
            opening=opening,
            at_us=now_us,
            used_us=now_us,
            poll_us=now_us + pause_us,
            tx_signature=signature,
            idle_seconds=product.idle_seconds,
        )
        self._on_work()

    async def _settle(self, name: str, *, status: ChannelStatus = "settled") -> None:
        """Settle the highest voucher, seal the channel, and pay everyone, in one transaction."""
        account = self._accounts[name]
        highest = account.highest
        if 0 < account.expires_at <= self._now_us() // SECOND_US:
            highest = None
        voucher, signed = highest or (None, None)
        self._busy.add(name)
        try:
            signature = await self._chain.settle(account.opening, voucher, signed)
        finally:
            self._busy.discard(name)
        settled_micro = 0 if voucher is None else voucher.cumulative_micro
        self._update(name, status=status, settled_micro=settled_micro, settlement=signature)

    def _update(self, name: str, **changes: Any) -> _Account:  # noqa: ANN401 - fields of various types
        self._accounts[name] = account = evolve(self._accounts[name], **changes)
        return account


def _pause_us(opening: OnchainTerms) -> int:
    """Return how long after a poll of a channel the next one is due."""
    return opening.grace_seconds * SECOND_US // (LOOKS_PER_GRACE + 1)
