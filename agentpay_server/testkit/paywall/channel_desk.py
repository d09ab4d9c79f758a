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

import base64
import contextlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal

from attrs import evolve, field, frozen
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelAccount, OnchainStatus, OnchainTerms, Share, Voucher
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.testkit.facilitator.checking import PENDING, InvalidPaymentError
from agentpay_server.testkit.facilitator.fee_payer import (
    FailedOnChainError,
    FeePayer,
    NotConfirmedError,
    Rpc,
    SimulationFailedError,
)
from agentpay_server.testkit.node.errors import RpcError
from agentpay_server.testkit.paywall import channel_wire
from agentpay_server.testkit.paywall.channel_checking import CheckedOpening, check_opening, require_equal
from agentpay_server.testkit.paywall.channel_products import (
    SessionMode,
    SessionProduct,
    UptoMode,
    UptoProduct,
)
from agentpay_server.testkit.paywall.channel_wire import (
    ChainMoment,
    SessionAction,
    SignedVoucher,
    UptoPayment,
)
from agentpay_server.testkit.paywall.hostile import PRICE_FACTOR
from agentpay_server.testkit.paywall.records import ChannelStatus, PaywallChannel

TREASURY: Final = codecs.TREASURIES["devnet"]
EXPIRY_MARGIN_SECONDS: Final = 60
RETRY_SECONDS: Final = 5
LOOKS_PER_GRACE: Final = 3
"""How often the seller polls a channel within its grace period."""


@frozen(kw_only=True)
class SellerKeys:
    """The keys of a seller: the payee of its sessions, and the signer of the vouchers of `upto`."""

    fee_payer: Keypair
    payee: Keypair
    authorizer: Keypair


@frozen(kw_only=True)
class ServedByChannel:
    """The outcome of a request that was paid through a channel.

    `content` is what to send: the product's, or a status of the channel. `product` is None for such a status.
    """

    receipt: tuple[str, str]
    product: SessionProduct | UptoProduct | None
    paid_micro: int = 0
    content: Mapping[str, Any] = field(factory=dict)


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
    accepted_micro: int = 0
    signature: Signature | None = None
    expires_at: int = 0
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
    def voucher(self) -> Voucher | None:
        if self.signature is None:
            return None
        return Voucher(
            channel=self.opening.address, cumulative_micro=self.accepted_micro, expires_at=self.expires_at
        )

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

    `recipient` is the payee of `upto`; sessions are paid to `keys.payee`, which must sign their settlements.
    `on_work` is called when there is more to do.
    """

    def __init__(
        self,
        *,
        rpc: Rpc,
        fee_payer: FeePayer,
        keys: SellerKeys,
        usdc_mint: str,
        recipient: str,
        now_us: Callable[[], int],
        on_work: Callable[[], None],
    ) -> None:
        self.sessions: dict[str, SessionProduct] = {}
        self.uptos: dict[str, UptoProduct] = {}
        self._rpc = rpc
        self._fee_payer = fee_payer
        self._keys = keys
        self._usdc_mint = usdc_mint
        self._recipient = recipient
        self._now_us = now_us
        self._on_work = on_work
        self._accounts: dict[str, _Account] = {}
        # Channels that `SessionMode.FORGET` has forgotten: their openings register them again.
        self._forgotten: set[str] = set()
        # The chain is being asked about them: a second request must not broadcast or settle them again.
        self._busy: set[str] = set()

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
            # What could not be done is tried again at the next poll.
            with contextlib.suppress(
                InvalidPaymentError, RpcError, NotConfirmedError, FailedOnChainError, SimulationFailedError
            ):
                await self._poll(account)
        return bool(due)

    async def settle(self) -> None:
        """Settle every open channel, whatever the mode."""
        for name, account in list(self._accounts.items()):
            # A payment by `upto` that nothing was served for is about to be settled, or is polled soon.
            is_undecided = account.protocol == "upto" and account.signature is None and not account.served
            if account.status != "open" or name in self._busy or is_undecided:
                continue
            with contextlib.suppress(InvalidPaymentError):
                if account.protocol == "upto" and account.signature is None:
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
        if account.protocol == "upto":
            upto = self.uptos.get(account.path)
            return upto is not None and upto.mode is UptoMode.NEVER_SETTLE
        session = self.sessions.get(account.path)
        return session is not None and session.mode is SessionMode.NEVER_CLOSE

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
        found = await self._channel(account.opening.address)
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

    def sells(self, path: str) -> bool:
        return path in self.sessions or path in self.uptos

    async def offers(self, path: str) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
        """Return the headers of sessions, and the x402 entries of `upto`, that a 402 for a path has."""
        headers, entries = [], []
        if self.sells(path):
            await self._prepare(path)
            latest = await self._rpc("getLatestBlockhash")
            moment = ChainMoment(blockhash=latest["value"]["blockhash"], slot=latest["context"]["slot"])
            session, upto = self.sessions.get(path), self.uptos.get(path)
            if session is not None:
                request = self._request(session)
                headers.append(
                    channel_wire.session_challenge(
                        request,
                        moment,
                        category=session.category,
                        description=session.description,
                        now_us=self._now_us(),
                    )
                )
            if upto is not None:
                entries.append(channel_wire.with_moment(self._entry(upto), moment))
        return headers, entries

    def _request(self, product: SessionProduct) -> dict[str, Any]:
        return self._request_at(product, self._price(product))

    def _request_at(self, product: SessionProduct, amount_micro: int) -> dict[str, Any]:
        return channel_wire.session_request(
            product,
            amount_micro=amount_micro,
            mint=self._usdc_mint,
            recipient=str(self._keys.payee.pubkey()),
            fee_payer=self._fee_payer.address,
        )

    def _price(self, product: SessionProduct) -> int:
        is_raised = product.mode is SessionMode.RAISE_PRICE and any(
            account.served and account.path == product.path for account in self._accounts.values()
        )
        return product.amount_micro * (PRICE_FACTOR if is_raised else 1)

    def _entry(self, product: UptoProduct) -> dict[str, Any]:
        return channel_wire.upto_entry(
            product,
            mint=self._usdc_mint,
            pay_to=self._recipient,
            fee_payer=self._fee_payer.address,
            authorizer=str(self._keys.authorizer.pubkey()),
        )

    async def _prepare(self, path: str) -> None:
        """Fund the fee payer, and create the token accounts of all beneficiaries and of the treasury."""
        await self._fee_payer.ready()
        owners = {self._recipient, str(self._keys.payee.pubkey()), self._fee_payer.address, str(TREASURY)}
        session = self.sessions.get(path)
        if session is not None:
            owners |= {str(share.recipient) for share in session.shares}
        await self._fee_payer.ensure_token_accounts(sorted(owners), self._usdc_mint)

    # --- Sessions

    async def session(self, path: str, request: str, action: SessionAction) -> ServedByChannel:
        """Perform an action of a session. `request` identifies the paid request: its method and its URL.

        Raises:
            InvalidPaymentError: it is refused; the payer may try something else.
            UnservedError: the seller does not serve it, whatever it has kept.
        """
        product = self.sessions.get(path)
        if product is None:
            raise InvalidPaymentError("unsupported_scheme", "sessions are not offered here")
        # A voucher of before a raise is for the old price.
        terms = [self._request_at(product, price) for price in {product.amount_micro, self._price(product)}]
        moment = channel_wire.require_own_session(action, terms, self._now_us())
        if action.action == "open":
            return await self._open(product, action, moment)
        if action.action == "voucher":
            return self._after_voucher(product, action, await self._voucher(product, action, request))
        if action.action == "close":
            return await self._close(product, action)
        raise InvalidPaymentError("invalid_payload", f"the action {action.action} is not supported")

    async def _open(
        self, product: SessionProduct, action: SessionAction, moment: ChainMoment
    ) -> ServedByChannel:
        checked = check_opening(action.transaction, fee_payer=self._fee_payer.address, allows_memo=False)
        opening, payload = checked.opening, action.payload
        require_equal(
            opening,
            payee=self._keys.payee.pubkey(),
            mint=Pubkey.from_string(self._usdc_mint),
            grace_seconds=product.grace_seconds,
            shares=product.shares,
        )
        claimed = {
            "channelId": str(opening.address),
            "payer": str(opening.payer),
            "payee": str(opening.payee),
            "mint": str(opening.mint),
            "authorizedSigner": str(opening.signer),
            "salt": str(opening.salt),
            "openSlot": str(opening.open_slot),
            "depositAmount": str(opening.deposit_micro),
            "gracePeriodSeconds": opening.grace_seconds,
        }
        for name, value in claimed.items():
            if payload.get(name) != value:
                raise InvalidPaymentError("payment_invalid", f"{name} is not that of the transaction")
        if "bump" in payload or "authentication" in payload:
            raise InvalidPaymentError("invalid_payload", "bump and authentication are not supported")
        splits = [{"recipient": str(share.recipient), "shareBps": share.bps} for share in opening.shares]
        if (payload.get("distributionSplits") or []) != splits:
            raise InvalidPaymentError("payment_invalid", "distributionSplits is not that of the transaction")
        if opening.deposit_micro < (product.minimum_micro or 0):
            raise InvalidPaymentError("payment_invalid", "the deposit is below minimumDeposit")
        name = str(opening.address)
        if name in self._accounts:
            # The same opening again, perhaps because the reply was lost.
            self._forgotten.discard(name)
        else:
            if str(checked.transaction.message.recent_blockhash) != moment.blockhash:
                raise InvalidPaymentError("payment_invalid", "the blockhash is not that of the challenge")
            if not moment.slot - codecs.OPEN_SLOT_WINDOW <= opening.open_slot <= moment.slot:
                raise InvalidPaymentError("payment_invalid", "openSlot does not fit recentSlot")
            signature = await self._land(checked)
            now_us = self._now_us()
            self._accounts[name] = _Account(
                protocol="session",
                path=product.path,
                opening=opening,
                at_us=now_us,
                used_us=now_us,
                poll_us=now_us + _pause_us(opening),
                tx_signature=signature,
                idle_seconds=product.idle_seconds,
            )
            self._on_work()
        return self._status(name, action)

    async def _voucher(self, product: SessionProduct, action: SessionAction, request: str) -> str:
        """Accept a voucher, and charge the request; return the name of its channel."""
        name = action.channel
        account = self._open_account(name)
        presented = self._verified(account, action)
        cumulative = presented.voucher.cumulative_micro
        price = self._price(product)
        is_replay = cumulative == account.accepted_micro and account.last_request == request
        if product.mode is SessionMode.OUT_OF_ORDER and cumulative > account.refused_once:
            self._accounts[name] = evolve(account, refused_once=cumulative)
            raise InvalidPaymentError(
                "cumulative-not-monotonic", f"a voucher for {cumulative + price} was accepted before"
            )
        if is_replay:
            if product.mode is SessionMode.REFUSE_ACCEPTED:
                raise InvalidPaymentError(
                    "cumulative-not-monotonic", f"{cumulative} is not above {account.accepted_micro}"
                )
            return name
        if cumulative < account.accepted_micro:
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
            accepted_micro=cumulative,
            signature=presented.signature,
            expires_at=presented.voucher.expires_at,
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

    def _after_voucher(self, product: SessionProduct, action: SessionAction, name: str) -> ServedByChannel:
        served = self._status(name, action)
        if product.mode is SessionMode.FORGET:
            self._forgotten.add(name)
        return evolve(served, product=product, paid_micro=self._accounts[name].last_micro)

    async def _close(self, product: SessionProduct, action: SessionAction) -> ServedByChannel:
        if product.mode is SessionMode.NEVER_CLOSE:
            raise UnservedError(503)
        name = action.channel
        account = self._open_account(name)
        presented = self._verified(account, action)
        if presented.voucher.cumulative_micro < account.accepted_micro:
            raise InvalidPaymentError(
                "cumulative-not-monotonic",
                f"{presented.voucher.cumulative_micro} is below {account.accepted_micro}",
            )
        self._accounts[name] = evolve(
            account,
            accepted_micro=presented.voucher.cumulative_micro,
            signature=presented.signature,
            expires_at=presented.voucher.expires_at,
        )
        await self._settle(name)
        closed = self._accounts[name]
        refunded = closed.opening.deposit_micro - closed.settled_micro
        return self._status(name, action, txHash=closed.settlement or "", refunded=str(refunded))

    def _open_account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None or account.protocol != "session" or name in self._forgotten:
            raise InvalidPaymentError("channel-not-found", "this seller knows no such channel")
        if account.status != "open" or name in self._busy:
            raise InvalidPaymentError("channel-sealed", "the channel is closed")
        return account

    def _verified(self, account: _Account, action: SessionAction) -> SignedVoucher:
        """Return the voucher of an action, if the channel's signer signed it and it can be settled."""
        presented = action.voucher()
        voucher, opening = presented.voucher, account.opening
        if voucher.channel != opening.address or presented.signer != str(opening.signer):
            raise InvalidPaymentError("payment_invalid", "the voucher is of another channel or signer")
        if not voucher.is_signed_by(opening.signer, presented.signature):
            raise InvalidPaymentError("payment_invalid", "the signature of the voucher is invalid")
        if voucher.cumulative_micro > opening.deposit_micro:
            raise InvalidPaymentError("exceeds-deposit", f"the deposit is {opening.deposit_micro}")
        latest = self._now_us() // SECOND_US + opening.grace_seconds + EXPIRY_MARGIN_SECONDS
        if voucher.expires_at and voucher.expires_at < latest:
            raise InvalidPaymentError("voucher-expires-soon", "the voucher expires within the grace period")
        return presented

    def _status(self, name: str, action: SessionAction, **more: str) -> ServedByChannel:
        account = self._accounts[name]
        receipt = channel_wire.session_receipt(
            channel=name,
            challenge_id=action.challenge.get("id", ""),
            now_us=self._now_us(),
            accepted_micro=account.accepted_micro,
            spent_micro=account.spent_micro,
            **more,
        )
        return ServedByChannel(
            receipt=receipt, product=None, content={"channel": name, "status": account.status}
        )

    # --- Up to a maximum

    async def upto(self, path: str, payment: UptoPayment) -> ServedByChannel:
        """Open the channel of a payment, serve, take what the request cost, and return the rest.

        Raises:
            InvalidPaymentError: it is refused.
            UnservedError: the seller does not serve it, whatever it has taken.
        """
        product = self.uptos.get(path)
        if product is None:
            raise InvalidPaymentError("unsupported_scheme", "upto is not offered here")
        channel_wire.require_own_upto(payment, self._entry(product))
        checked = self._checked_upto(product, payment)
        name = str(checked.opening.address)
        if name in self._accounts or name in self._busy:
            payer = str(checked.opening.payer)
            raise InvalidPaymentError("duplicate_settlement", "this payment was presented before", payer)
        signature = await self._land(checked)
        now_us = self._now_us()
        self._accounts[name] = _Account(
            protocol="upto",
            path=path,
            opening=checked.opening,
            at_us=now_us,
            used_us=now_us,
            poll_us=now_us + RETRY_SECONDS * SECOND_US,
            tx_signature=signature,
        )
        self._on_work()
        try:
            charged = self._charged(product)
        except Exception:
            await self._take(name, 0, expires_at=0)
            raise
        if product.mode is not UptoMode.NEVER_SETTLE:
            try:
                await self._take(name, charged, expires_at=payment.whole("expiresAt"))
            except InvalidPaymentError:
                # Nothing is served, so a later settlement returns everything.
                self._update(name, accepted_micro=0, signature=None, expires_at=0)
                raise
        if product.mode is UptoMode.LOSE_REPLY:
            raise UnservedError(None)
        if product.mode in (UptoMode.CHARGE_MAXIMUM, UptoMode.FAIL):
            raise UnservedError(503 if product.mode is UptoMode.CHARGE_MAXIMUM else 500)
        settled = self._update(name, served=1, spent_micro=charged)
        receipt = channel_wire.upto_receipt(
            payer=str(settled.opening.payer), signature=settled.settlement or "", amount_micro=charged
        )
        return ServedByChannel(receipt=receipt, product=product, paid_micro=charged)

    def _checked_upto(self, product: UptoProduct, payment: UptoPayment) -> CheckedOpening:
        checked = check_opening(payment.transaction, fee_payer=self._fee_payer.address, allows_memo=True)
        opening, now = checked.opening, self._now_us() // SECOND_US
        require_equal(
            opening,
            payee=self._keys.fee_payer.pubkey(),
            mint=Pubkey.from_string(self._usdc_mint),
            signer=self._keys.authorizer.pubkey(),
            deposit_micro=product.maximum_micro,
            grace_seconds=product.grace_seconds,
            shares=(Share(Pubkey.from_string(self._recipient), codecs.WHOLE_BPS),),
        )
        texts = {
            "from": str(opening.payer),
            "channelId": str(opening.address),
            "authorizedSigner": str(opening.signer),
        }
        numbers = {
            "maxAmount": opening.deposit_micro,
            "deposit": opening.deposit_micro,
            "nonce": opening.salt,
            "openSlot": opening.open_slot,
        }
        is_claimed = all(payment.text(name) == value for name, value in texts.items()) and all(
            payment.whole(name) == value for name, value in numbers.items()
        )
        if not is_claimed:
            raise InvalidPaymentError("payment_invalid", "the payload is not that of the transaction")
        if not now < payment.whole("expiresAt") <= now + channel_wire.TIMEOUT_SECONDS:
            raise InvalidPaymentError("payment_expired", "expiresAt is not within maxTimeoutSeconds")
        if payment.whole("validAfter") > now:
            raise InvalidPaymentError("payment_invalid", "validAfter is in the future")
        return checked

    @staticmethod
    def _charged(product: UptoProduct) -> int:
        if product.mode is UptoMode.FAIL:
            return 0
        if product.mode is UptoMode.CHARGE_MAXIMUM:
            return product.maximum_micro
        cost: Decimal | int | str = product.charge()
        return min(to_micro(cost), product.maximum_micro)

    async def _take(self, name: str, amount_micro: int, *, expires_at: int) -> None:
        """Sign the only voucher of a channel, and settle it."""
        if amount_micro:
            voucher = Voucher(
                channel=self._accounts[name].opening.address,
                cumulative_micro=amount_micro,
                expires_at=expires_at,
            )
            signature = self._keys.authorizer.sign_message(voucher.message())
            self._update(name, accepted_micro=amount_micro, signature=signature, expires_at=expires_at)
        await self._settle(name)

    # --- The chain

    async def _land(self, checked: CheckedOpening) -> str:
        """Co-sign and broadcast an opening; return its signature once the chain shows the channel."""
        name, payer = str(checked.opening.address), str(checked.opening.payer)
        if name in self._busy:
            raise InvalidPaymentError("duplicate_settlement", "this channel is being opened", payer)
        self._busy.add(name)
        try:
            transaction = self._fee_payer.completed(checked.transaction)
            if not await self._fee_payer.has_landed(transaction):
                await self._fee_payer.simulate(transaction)
                await self._fee_payer.confirmed(await self._fee_payer.broadcast(transaction))
            found = await self._channel(checked.opening.address)
        except (SimulationFailedError, FailedOnChainError, NotConfirmedError, RpcError) as error:
            reason = f"the chain does not accept the opening: {error}"
            raise InvalidPaymentError("transaction_failed", reason, payer) from None
        finally:
            self._busy.discard(name)
        if found is None or found.status is not OnchainStatus.OPEN or not found.is_of(checked.opening):
            raise InvalidPaymentError("payment_invalid", "the channel is not open on chain", payer)
        return str(transaction.signatures[0])

    async def _settle(self, name: str, *, status: ChannelStatus = "settled") -> None:
        """Settle the highest voucher, seal the channel, and pay everyone, in one transaction."""
        account = self._accounts[name]
        self._busy.add(name)
        try:
            voucher = account.voucher
            if voucher is not None and 0 < voucher.expires_at <= self._now_us() // SECOND_US:
                voucher = None
            steps = codecs.close_instructions(
                account.opening, treasury=TREASURY, voucher=voucher, signature=account.signature
            )
            signature = await self._send(steps)
        except FailedOnChainError as error:
            raise InvalidPaymentError("transaction_failed", f"the channel was not settled: {error}") from None
        except (NotConfirmedError, RpcError) as error:
            raise InvalidPaymentError(PENDING, f"the channel may not be settled yet: {error}") from None
        finally:
            self._busy.discard(name)
        settled_micro = 0 if voucher is None else voucher.cumulative_micro
        self._update(name, status=status, settled_micro=settled_micro, settlement=signature)

    async def _send(self, steps: Sequence[Instruction]) -> str:
        latest = (await self._rpc("getLatestBlockhash"))["value"]["blockhash"]
        payer = self._keys.fee_payer.pubkey()
        message = MessageV0.try_compile(payer, list(steps), [], Hash.from_string(latest))
        owned = {pair.pubkey(): pair for pair in (self._keys.fee_payer, self._keys.payee)}
        signers = message.account_keys[: message.header.num_required_signatures]
        payload = to_bytes_versioned(message)
        transaction = VersionedTransaction.populate(
            message, [owned[key].sign_message(payload) for key in signers]
        )
        signature = await self._fee_payer.broadcast(transaction)
        await self._fee_payer.confirmed(signature)
        return signature

    async def _channel(self, address: Pubkey) -> ChannelAccount | None:
        options = {"encoding": "base64", "commitment": "confirmed"}
        found = (await self._rpc("getAccountInfo", str(address), options))["value"]
        if found is None or found["owner"] != str(codecs.PROGRAM):
            return None
        return codecs.read_channel(base64.b64decode(found["data"][0]))

    def _update(self, name: str, **changes: Any) -> _Account:  # noqa: ANN401 - fields of various types
        self._accounts[name] = account = evolve(self._accounts[name], **changes)
        return account


def _pause_us(opening: OnchainTerms) -> int:
    """Return how long after a poll of a channel the next one is due."""
    return opening.grace_seconds * SECOND_US // (LOOKS_PER_GRACE + 1)
