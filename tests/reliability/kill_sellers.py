"""Rows of the kill matrix: what is paid behind HTTP 402, to sellers that outlive every server.

The agent keeps nothing but the keys of its purchases.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import product
from typing import Any

import httpx
import pytest
import shops
from attrs import define, field
from kill_rows import CHAIN, Row
from killing import WAIT_SECONDS, Child, Prepared, Survey, expiring
from sellers import EXACT

from agentpay import AgentPay, AgentPayError
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Mode, Paywall, Protocol, UptoMode
from agentpay_server.platform.failpoints import Operation, points_of

PRICE = 1_000
FUNDS = 100_000_000


def offer_of(shop: Paywall, it: Prepared, path: str, key: str) -> dict[str, object]:
    """Return the request of a payment for what a seller offers now."""
    with httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
        headers = [list(each) for each in http.get(path).headers.multi_items()]
    return {"account_id": it.payer, "idempotency_key": key, "origin": shop.base_url, "headers": headers}


@define
class SellerRow(Row):
    """Has a seller; the servers tell it what happens on their chain."""

    _shop: Paywall | None = field(default=None, init=False)

    options = ("--chain-rpc",)

    @property
    def shop(self) -> Paywall:
        assert self._shop is not None
        return self._shop

    def open_shop(self, rpc_url: str) -> AbstractContextManager[Paywall]:
        """Open the seller next to a node."""
        raise NotImplementedError

    def arrive(self, dying: Child) -> None:
        self.open(f"{dying.base_url}/ext/v1/sandbox/rpc")

    def open(self, rpc_url: str) -> None:
        shops.know_keys(self.around.enter_context(pytest.MonkeyPatch.context()))
        self._shop = self.around.enter_context(self.open_shop(rpc_url))

    def begin(self, dying: Child) -> None:
        self.arrive(dying)
        assert dying.base_url is not None
        with AgentPay(api_key=self.it.key, base_url=dying.base_url, max_retries=0, timeout=20) as service:
            self.buy(dying, service)

    def buy(self, dying: Child, service: AgentPay) -> None:
        """Buy of the server that will die."""
        raise NotImplementedError

    def end(self, dying: Child) -> None:
        """Read what was bought, which posts what the chain shows, until the server dies."""
        self.read(dying)
        dying.assert_killed()

    def read(self, dying: Child) -> None:
        listed = dying.request("GET", "/ext/v1/payments", self.it.key)
        for payment in [] if listed is None else listed.json()["data"]:
            dying.request("GET", f"/ext/v1/payments/{payment['transfer_id']}", self.it.key)

    def expire(self, dying: Child) -> None:
        """Let what is signed expire: before a permanently lost transaction, nothing can land any more."""
        expiring(self.it, dying, "payment.expired")
        dying.request("POST", "/v1/transfers", self.it.key, self.it.transfer("other", "1"))

    @contextmanager
    def served(self) -> Iterator[AgentPayServer]:
        with self.it.place.serve(operator_key=self.it.key, clock="system") as server:
            shops.move(self.shop, server.rpc_url)
            yield server


# --- A purchase for a price


HELD_SECONDS = 55
HELD = (Mode.SETTLE_LATE, Mode.HOLD)
UNPAYABLE = (Mode.WRONG_NETWORK, Mode.WRONG_MINT, Mode.MALFORMED_CHALLENGE, Mode.ENORMOUS_CHALLENGE)
UNSETTLED = (Mode.NEVER_SETTLE, Mode.REDIRECT)
BEFORE_THE_SELLER = ("payment.begun", "payment.signed", "payment.expired")
PRESENTING = {"payment-signature", "x-payment", "authorization"}


class DiedError(BaseException):
    """The agent's process has ended. Nothing catches it, as nothing catches a SIGKILL."""


def mortal(service: AgentPay, dies_at: str) -> None:
    """Let the agent die just before or just after the service has signed."""
    authorize = service.payments.authorize

    def authorized(**order: Any) -> Any:
        if dies_at == "agent.before":
            raise DiedError
        payment = authorize(**order)
        if dies_at == "agent.signed":
            raise DiedError
        return payment

    service.payments.authorize = authorized  # type: ignore[method-assign]


selling = partial(Paywall, prices={"/forecast": "0.001"})


@define
class Purchase(SellerRow):
    """A purchase is paid at most once, however the seller is."""

    _clock: shops.ShopClock = field(factory=shops.ShopClock, init=False)

    name = "payment"
    at = (*points_of(Operation.PAYMENT), *CHAIN)
    prepare = staticmethod(partial(shops.visited, opened=selling, path="/forecast"))

    @classmethod
    def variants(cls) -> Mapping[str, Any]:
        return {f"{protocol}-{mode}": (protocol, mode) for protocol, mode in product(EXACT, Mode)}

    @classmethod
    def in_gate(cls, points: tuple[str, ...], variant: Any) -> bool:
        return variant[1] is Mode.HONEST

    @property
    def mode(self) -> Mode:
        return self.variant[1]

    def open_shop(self, rpc_url: str) -> AbstractContextManager[Paywall]:
        protocol, mode = self.variant
        return selling(rpc_url=rpc_url, protocols=[protocol], mode=mode, clock=self._clock)

    def buy_once(self, service: AgentPay, dies_at: str | None = None) -> None:
        """Buy the forecast under its one key, with an agent that has no memory of earlier attempts."""
        if dies_at is not None:
            mortal(service, dies_at)

        def presented(response: httpx.Response) -> None:
            if dies_at == "agent.presented" and response.request.headers.keys() & PRESENTING:
                raise DiedError

        http = httpx.Client(
            auth=PaymentAuth(service, account_id=self.it.payer),
            event_hooks={"response": [presented]},
            transport=self.shop.transport(),
            base_url=self.shop.base_url,
        )
        # Whatever the outcome, it retries later with the same key.
        with http, suppress(AgentPayError, httpx.HTTPError, DiedError):
            http.get("/forecast", extensions={"payment_key": "forecast-7"})

    def let_time_pass(self, dying: Child | None = None) -> None:
        """Let the seller broadcast what it holds, and wait until it has.

        With a `dying` node, wait only until the seller has tried or the node is dead: it looks again later.
        """
        if self.mode not in HELD:
            return
        self._clock.advance(HELD_SECONDS)
        deadline = time.monotonic() + WAIT_SECONDS
        while any(
            sale.status == "held" and (dying is None or sale.tx_signature is None) for sale in self.shop.sales
        ):
            if dying is not None and dying.request("GET", "/healthz", self.it.key) is None:
                return
            assert time.monotonic() < deadline, "the seller holds a payment for ever"
            time.sleep(0.005)

    @property
    def _expires(self) -> bool:
        return self.point == "payment.expired" and self.mode not in UNPAYABLE

    def buy(self, dying: Child, service: AgentPay) -> None:
        self.buy_once(service, "agent.signed" if self.point == "payment.expired" else None)
        if self._expires:
            self.expire(dying)
        else:
            self.let_time_pass(dying)

    def end(self, dying: Child) -> None:
        self.read(dying)
        if self.mode in UNPAYABLE or (self.mode in UNSETTLED and self.point not in BEFORE_THE_SELLER):
            # Nothing is signed, or nothing lands: some points are not reached.
            dying.kill()
        else:
            dying.assert_killed()

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        client = server.client()
        if self._expires:
            self.buy_once(client.with_options(max_retries=0))
            self._judge_expired(survey)
            return
        for _ in range(2):
            self.buy_once(client.with_options(max_retries=0))
        self.let_time_pass()
        for payment in client.payments.list():
            client.payments.get(payment.transfer_id)
        assert self.spent(survey) in self._may_be_spent()

    def _may_be_spent(self) -> set[int]:
        """Return what may have left the payer once everybody has done what they do."""
        if self.mode in UNPAYABLE or self.mode in UNSETTLED:
            return {0}
        # The chain forgot what it had executed, and a seller does not broadcast a second time.
        return {0, PRICE} if self.point == "chain.executed@2" else {PRICE}

    def spent(self, survey: Survey) -> int:
        """Return how much left the payer, by the chain; it is at most one payment, and is posted."""
        (payer,) = survey.rows("accounts", account_id=self.it.payer)
        spent = FUNDS - survey.balances()[payer["usdc_token_account"]]
        assert spent in (0, PRICE)
        transfers = survey.rows("transfers")
        signed = survey.rows("chain_transactions", kind="payment")
        assert len(transfers) == len(survey.rows("payments")) == len(signed) <= 1
        statuses = [row["status"] for row in transfers]
        if spent:
            assert statuses == ["settled"]
            (tx,) = signed
            assert tx["state"] == "finalized"
            assert tx["chain_signature"] == transfers[0]["tx_signature"]
        reserved = PRICE if statuses == ["submitted"] else 0
        assert (payer["balance"], payer["in_flight"]) == (FUNDS - spent, reserved)
        types = [row["type"] for row in survey.rows("events")]
        ends = {"settled": ["transfer.settled"], "failed": ["transfer.rejected"], "submitted": []}
        assert types == [each for status in statuses for each in ("transfer.initiated", *ends[status])]
        survey.assert_conserved()
        return spent

    def _judge_expired(self, survey: Survey) -> None:
        """Assert that the purchase has failed by expiry and that no money moved for it."""
        (payment,) = survey.rows("payments")
        (row,) = survey.rows("transfers", transfer_id=payment["transfer_id"])
        assert (row["status"], row["error"]) == ("failed", "payment_expired")
        landed = survey.rows("chain_transactions", kind="payment")
        assert [tx["chain_signature"] for tx in landed] in ([None], [row["tx_signature"]])
        (payer,) = survey.rows("accounts", account_id=self.it.payer)
        # The other transfer of 1 USDC is all that may have left.
        assert FUNDS - survey.balances()[payer["usdc_token_account"]] in (0, 1_000_000)
        survey.assert_conserved()


@define
class PurchaseOfMortal(Purchase):
    """It is paid at most once also if the agent dies, and if nobody does."""

    name = "payment-of-agent"
    at = ("agent.before", "agent.signed", "agent.presented", "agent.lives")

    @classmethod
    def in_gate(cls, points: tuple[str, ...], variant: Any) -> bool:
        return variant[1] is Mode.HONEST or points == ("agent.lives",)

    def run(self) -> None:
        with self.it.served() as server:
            self.open(server.rpc_url)
            self.buy_once(server.client().with_options(max_retries=0), self.point)
            self.judge(server, self.it.place.survey(server))


@define
class LandedPurchase(Purchase):
    """What landed while no server ran is found at the start."""

    name = "unasked-payment"
    at = ("payment.landed",)

    @classmethod
    def variants(cls) -> Mapping[str, Any]:
        return {"": (Protocol.X402_V2, Mode.HONEST)}

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        (payment,) = server.client().payments.list()
        assert payment.status == "settled"
        assert self.spent(survey) == PRICE


# --- Sessions


CALLS = ("call-1", "call-2", "call-3")
FORCED = ("channel_close.signed", "channel_close.sent", "channel_close.expired")
"""Steps that only a forced close passes."""


@contextmanager
def selling_by_session(rpc_url: str) -> Iterator[Paywall]:
    with Paywall(rpc_url=rpc_url, prices={}) as shop:
        # Of a second, so that a forced close ends within the test.
        shop.sell_by_session("/call", "0.001", grace_seconds=1)
        yield shop


@define
class Channel(SellerRow):
    """In a session over 402, each request is paid once, and every channel ends."""

    name = "channel"
    at = (
        *points_of(Operation.CHANNEL_OPEN),
        *points_of(Operation.VOUCHER),
        *points_of(Operation.CHANNEL_CLOSE),
    )
    prepare = staticmethod(partial(shops.visited, opened=selling_by_session, path="/call"))

    def open_shop(self, rpc_url: str) -> AbstractContextManager[Paywall]:
        return selling_by_session(rpc_url)

    def buy(self, dying: Child, service: AgentPay) -> None:
        if self.point in FORCED:
            # A session without a voucher is closed by force at once.
            self._open_and_close(dying)
        elif self.point == "channel_open.expired":
            # An opening is signed that nobody presents, until it can no longer land.
            assert self._open(dying) is not None
            self.expire(dying)
            self._open(dying)
        else:
            self._call(service)

    def end(self, dying: Child) -> None:
        dying.request("GET", "/ext/v1/sessions", self.it.key)
        dying.assert_killed()

    def _call(self, service: AgentPay) -> None:
        """Make every call under its own key, with an agent that has no memory of earlier attempts."""
        http = httpx.Client(transport=self.shop.transport(), base_url=self.shop.base_url)
        auth = PaymentAuth(service, account_id=self.it.payer, session_cap="1", seller_client=http)
        with http:
            for key in CALLS:
                with suppress(AgentPayError, httpx.HTTPError):
                    http.get("/call", auth=auth, extensions={"payment_key": key})
            auth.close()

    def _open(self, dying: Child) -> Any:
        """Return the step that opens a session; None if the server is dead."""
        order = {**offer_of(self.shop, self.it, "/call", "opening"), "session_cap": "1"}
        found = dying.request("POST", "/ext/v1/payments", self.it.key, order)
        return None if found is None else found.json()

    def _open_and_close(self, dying: Child) -> None:
        step = self._open(dying)
        with httpx.Client(transport=self.shop.transport(), base_url=self.shop.base_url) as http:
            http.get("/call", headers={step["header"]["name"]: step["header"]["value"]})
        expiring(self.it, dying, self.point)
        path = f"/ext/v1/sessions/{step['session_id']}/close"
        # 503 until the opening is posted; None once the server is dead.
        closed = dying.request("POST", path, self.it.key)
        while closed is not None and closed.status_code == 503:
            closed = dying.request("POST", path, self.it.key)

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        client = server.client().with_options(max_retries=5)
        self._call(client)
        for session in client.sessions.list(account_id=self.it.payer):
            with suppress(AgentPayError):
                client.sessions.close(session.session_id)
        vouchers = survey.rows("vouchers")
        assert sorted(row["idempotency_key"] for row in vouchers) == sorted(CALLS)
        by_session: dict[str, list[int]] = {}
        for row in vouchers:
            by_session.setdefault(row["session_id"], []).append(row["cumulative"])
        for cumulatives in by_session.values():
            assert cumulatives == [PRICE * (number + 1) for number in range(len(cumulatives))]


# --- A payment up to a maximum


CHARGE = 12_000
GRACE_SECONDS = 20
FORCED_SECONDS = 60 + 120 + 5
"""When a channel is closed by force that its seller has not settled, and later."""


@contextmanager
def selling_upto(rpc_url: str, mode: UptoMode = UptoMode.HONEST) -> Iterator[Paywall]:
    with Paywall(rpc_url=rpc_url, prices={}) as shop:
        shop.sell_upto("/answer", "0.05", charge="0.012", grace_seconds=GRACE_SECONDS, mode=mode)
        yield shop


@define
class Upto(SellerRow):
    """The seller takes its charge once at most, and the rest of the maximum returns."""

    name = "upto"
    at = (
        *("payment.begun", "payment.signed", "channel_open.landed", "channel_open.posted"),
        *("channel_close.landed", "channel_close.posted"),
    )
    prepare = staticmethod(partial(shops.visited, opened=selling_upto, path="/answer"))
    mode = UptoMode.HONEST

    def open_shop(self, rpc_url: str) -> AbstractContextManager[Paywall]:
        return selling_upto(rpc_url, self.mode)

    def buy_once(self, service: AgentPay, key: str = "answer-1") -> None:
        """Buy under a key, with an agent that has no memory of earlier attempts."""
        auth = PaymentAuth(service, account_id=self.it.payer)
        http = httpx.Client(auth=auth, transport=self.shop.transport(), base_url=self.shop.base_url)
        # Whatever the outcome, it retries later with the same key.
        with http, suppress(AgentPayError, httpx.HTTPError):
            http.get("/answer", extensions={"payment_key": key})

    def buy(self, dying: Child, service: AgentPay) -> None:
        self.buy_once(service)

    @contextmanager
    def served(self) -> Iterator[AgentPayServer]:
        """Serve the place on a manual clock, which continues no earlier than the dead server's."""
        with self.it.served() as server:
            shops.move(self.shop, server.rpc_url)
            behind = time.time() - server.sandbox.clock.now().timestamp()
            if behind > 0:
                server.sandbox.clock.advance(behind)
            yield server

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        client = server.client()
        for _ in range(2):
            self.buy_once(client.with_options(max_retries=0))
        # The forced close of a channel that is still open: its request, then the grace period.
        server.sandbox.clock.advance(FORCED_SECONDS)
        server.sandbox.clock.advance(GRACE_SECONDS + 10)
        for payment in client.payments.list():
            client.payments.get(payment.transfer_id)
        assert self._taken(survey) in self.may_be_taken()

    def may_be_taken(self) -> set[int]:
        # A seller that could not settle at the dead server served nothing, and settles with nothing.
        return {0, CHARGE} if self.point.startswith("channel_open.") else {CHARGE}

    def _taken(self, survey: Survey) -> int:
        """Return what the only payment took; every unit is accounted for."""
        (transfer,) = survey.rows("transfers")
        (channel,) = survey.rows("channels")
        assert (transfer["status"], channel["status"]) == ("settled", "settled")
        assert transfer["transfer_id"] == channel["owner_id"]
        (payer,) = survey.rows("accounts", account_id=self.it.payer)
        assert (payer["in_flight"], payer["cap_holds"]) == (0, 0)
        taken = FUNDS - survey.balances()[payer["usdc_token_account"]]
        assert transfer["amount"] == taken == FUNDS - payer["balance"]
        assert transfer["tx_signature"] in survey.landed()
        entries = survey.rows("entries", account_id=self.it.payer, type="transfer")
        assert [(row["amount"], row["transfer_id"]) for row in entries] == [(taken, transfer["transfer_id"])]
        types = [row["type"] for row in survey.rows("events")]
        assert types == ["transfer.initiated", "transfer.settled"]
        survey.assert_conserved()
        return taken


@define
class ForcedUpto(Upto):
    """Everything returns from a seller that never settles."""

    name = "unsettled-upto"
    at = FORCED
    options = ("--chain-rpc", "--clock", "manual")
    mode = UptoMode.NEVER_SETTLE

    def buy(self, dying: Child, service: AgentPay) -> None:
        # The clock continues where the template's stood, which may be minutes ago; the seller's runs.
        self._advance(dying, max(0, int(time.time() - self._now_of(dying))))
        self.buy_once(service)
        expiring(self.it, dying, self.point)
        self._advance(dying, FORCED_SECONDS)

    def _now_of(self, dying: Child) -> float:
        clock = dying.request("GET", "/ext/v1/sandbox/clock", self.it.key)
        assert clock is not None
        return datetime.fromisoformat(clock.json()["now"]).timestamp()

    def _advance(self, dying: Child, seconds: int) -> None:
        dying.request("POST", "/ext/v1/sandbox/clock/advance", self.it.key, {"seconds": seconds})

    def end(self, dying: Child) -> None:
        dying.assert_killed()

    def may_be_taken(self) -> set[int]:
        return {0}


@define
class UnusedUpto(Upto):
    """An opening that nobody uses expires and returns everything."""

    name = "unused-upto"
    at = ("channel_open.expired",)
    _unused: str = field(default="", init=False)

    def buy(self, dying: Child, service: AgentPay) -> None:
        order = offer_of(self.shop, self.it, "/answer", "answer-1")
        signed = dying.request("POST", "/ext/v1/payments", self.it.key, order)
        assert signed is not None
        self._unused = signed.json()["transfer_id"]
        self.expire(dying)

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        client = server.client()
        expired = client.payments.get(self._unused)
        assert (expired.status, expired.error) == ("failed", "payment_expired")
        self.buy_once(client)
        self.buy_once(client, "answer-2")
        newest = next(iter(client.payments.list()))
        assert client.payments.get(newest.transfer_id).status == "settled"
        (payer,) = survey.rows("accounts", account_id=self.it.payer)
        assert (payer["in_flight"], payer["cap_holds"]) == (0, 0)
        # The other transfer of 1 USDC may have left as well.
        assert FUNDS - payer["balance"] in (CHARGE, CHARGE + 1_000_000)
        assert [row["status"] for row in survey.rows("channels")] == ["failed", "settled"]
        survey.assert_conserved()


ROWS: list[type[Row]] = [
    *(Purchase, PurchaseOfMortal, LandedPurchase),
    *(Channel, Upto, ForcedUpto, UnusedUpto),
]
