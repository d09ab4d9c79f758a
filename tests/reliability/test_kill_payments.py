"""SIGKILL at every step of a purchase behind HTTP 402, with hostile sellers: it is paid at most once (P16).

The agent keeps nothing but the key of its purchase. It buys from a seller that outlives every server; a
server or the agent dies at one step, and another one takes its place. The chain is the judge.

Each case draws one mode of the seller. A failure names its seed, and the case of `nox -s deep` that repeats
it: there every mode has a separate case.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import httpx
import pytest
import shops
from killing import WAIT_SECONDS, Child, Prepared, Survey, child
from sellers import EXACT

from agentpay import AgentPay, AgentPayError
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Mode, Paywall, Protocol
from agentpay_server.platform.failpoints import Operation, points_of

pytestmark = pytest.mark.unmeasured

PRICE = 1_000
FUNDS = 100_000_000
# The first page that a server writes belongs to its start.
CHAIN = ["chain.executed@2", "chain.written@2"]
SERVER_POINTS = [*points_of(Operation.PAYMENT), *CHAIN]
BEFORE_THE_SELLER = ("payment.begun", "payment.signed", "payment.expired")
CLIENT_POINTS = ["agent.before", "agent.signed", "agent.presented"]
"""Before the request to the service, after signing, and after the seller received the payment."""

HELD_SECONDS = 55
HELD = (Mode.SETTLE_LATE, Mode.HOLD)
UNPAYABLE = (Mode.WRONG_NETWORK, Mode.WRONG_MINT, Mode.MALFORMED_CHALLENGE, Mode.ENORMOUS_CHALLENGE)
UNSETTLED = (Mode.NEVER_SETTLE, Mode.REDIRECT)

every_protocol = pytest.mark.parametrize("protocol", EXACT)
every_point = pytest.mark.parametrize("point", [*SERVER_POINTS, *CLIENT_POINTS])


class DiedError(BaseException):
    """The agent's process has ended. Nothing catches it, as nothing catches a SIGKILL."""


class Shop:
    """A seller that outlives servers.

    Args:
        rpc_url: of the node that it broadcasts to at first.
    """

    def __init__(self, rpc_url: str, protocol: Protocol, mode: Mode) -> None:
        self.clock = shops.ShopClock()
        self.paywall = Paywall(
            rpc_url=rpc_url, prices={"/forecast": "0.001"}, protocols=[protocol], mode=mode, clock=self.clock
        )

    def move(self, rpc_url: str) -> None:
        """Broadcast to another node from now on."""
        home: Any = self.paywall._home
        home._url = rpc_url

    def let_time_pass(self, *, settles: bool = True) -> None:
        """Let the seller broadcast what it holds, and wait until it has.

        Without `settles`, wait only until it has tried: its node may have died, and it looks again later.
        """
        if self.paywall.mode not in HELD:
            return
        self.clock.advance(HELD_SECONDS)
        deadline = time.monotonic() + WAIT_SECONDS
        while any(
            sale.status == "held" and (settles or sale.tx_signature is None) for sale in self.paywall.sales
        ):
            assert time.monotonic() < deadline, "the seller holds a payment for ever"
            time.sleep(0.005)

    def buy(self, service: AgentPay, payer: str, dies_at: str | None = None) -> None:
        """Buy the forecast under its one key, with an agent that has no memory of earlier attempts."""
        if dies_at is not None:
            mortal(service, dies_at)

        def presented(response: httpx.Response) -> None:
            if dies_at == "agent.presented" and response.request.headers.keys() & PRESENTING:
                raise DiedError

        http = httpx.Client(
            auth=PaymentAuth(service, account_id=payer),
            event_hooks={"response": [presented]},
            transport=self.paywall.transport(),
            base_url=self.paywall.base_url,
        )
        # Whatever the outcome, it retries later with the same key.
        with http, suppress(AgentPayError, httpx.HTTPError, DiedError):
            http.get("/forecast", extensions={"payment_key": "forecast-7"})


EVERY_MODE = f"{Path(__file__)}::test_a_purchase_is_paid_at_most_once_in_every_mode_at_any_point"
PRESENTING = {"payment-signature", "x-payment", "authorization"}


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


@contextmanager
def opened(rpc_url: str, protocol: Protocol, mode: Mode) -> Iterator[Shop]:
    shop = Shop(rpc_url, protocol, mode)
    with shop.paywall:
        yield shop


@pytest.fixture(autouse=True)
def _known_seller(monkeypatch: pytest.MonkeyPatch) -> None:
    shops.know_keys(monkeypatch)


@pytest.fixture(scope="module")
def template(template: Prepared) -> Prepared:
    """Return a place where a payer has 100 USDC, and the seller has what it needs to be paid."""
    return shops.visited(template, lambda url: Shop(url, Protocol.X402_V2, Mode.HONEST).paywall, "/forecast")


# --- What the chain says


def judged(survey: Survey, payer_id: str) -> int:
    """Return how much left the payer, by the chain; assert that it is at most one payment, and is posted."""
    (payer,) = survey.rows("accounts", account_id=payer_id)
    spent = FUNDS - survey.balances()[payer["usdc_token_account"]]
    assert spent in (0, PRICE)
    transfers = survey.rows("transfers")
    payments = survey.rows("payments")
    signed = survey.rows("chain_transactions", kind="payment")
    assert len(transfers) == len(payments) == len(signed) <= 1
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


def expected(mode: Mode, point: str | None) -> set[int]:
    """Return what may have left the payer once everybody has done what they do."""
    if mode in UNPAYABLE or mode in UNSETTLED:
        return {0}
    # The chain forgot what it had executed, and a seller does not broadcast a second time.
    return {0, PRICE} if point == "chain.executed@2" else {PRICE}


# --- One purchase, and one death


def first_life(dying: Child, shop: Shop, it: Prepared, point: str) -> None:
    """Let the agent buy until the server has died at a point, or nothing more happens."""
    assert dying.base_url is not None
    mode = shop.paywall.mode
    dies_at = "agent.signed" if point == "payment.expired" else None
    with AgentPay(api_key=it.key, base_url=dying.base_url, max_retries=0, timeout=20) as service:
        shop.buy(service, it.payer, dies_at)
    if point == "payment.expired" and mode not in UNPAYABLE:
        # A transaction signed before a permanently lost one can no longer land.
        dying.request("PUT", "/ext/v1/sandbox/faults/chain_never_lands", it.key, {"times": 1})
        dying.request("POST", "/v1/transfers", it.key, it.transfer("other", "1"))
    else:
        shop.let_time_pass(settles=False)
    listed = dying.request("GET", "/ext/v1/payments", it.key)
    for payment in [] if listed is None else listed.json()["data"]:
        dying.request("GET", f"/ext/v1/payments/{payment['transfer_id']}", it.key)
    if mode in UNPAYABLE or (mode in UNSETTLED and point not in BEFORE_THE_SELLER):
        # Nothing is signed, or nothing lands: some points are not reached.
        dying.kill()
    else:
        dying.assert_killed()


def bought(it: Prepared, point: str, protocol: Protocol, mode: Mode) -> None:
    """Have something bought while a server or the agent dies at a point; assert that it is paid once."""
    if point in CLIENT_POINTS:
        with it.served() as server, opened(server.rpc_url, protocol, mode) as shop:
            shop.buy(server.client().with_options(max_retries=0), it.payer, point)
            buy_and_judge(server, shop, it.payer, expected(mode, point))
        return
    with (
        child(it, point, "--chain-rpc") as dying,
        opened(f"{dying.base_url}/ext/v1/sandbox/rpc", protocol, mode) as shop,
    ):
        first_life(dying, shop, it, point)
        with it.place.serve(operator_key=it.key, clock="system") as server:
            shop.move(server.rpc_url)
            if point == "payment.expired" and mode not in UNPAYABLE:
                shop.buy(server.client().with_options(max_retries=0), it.payer)
                assert_expired(Survey(server), it)
            else:
                buy_and_judge(server, shop, it.payer, expected(mode, point))


def buy_and_judge(server: AgentPayServer, shop: Shop, payer: str, expected_micro: set[int]) -> None:
    """Let another agent buy twice, let the seller do what it still does, and judge."""
    client = server.client()
    for _ in range(2):
        shop.buy(client.with_options(max_retries=0), payer)
    shop.let_time_pass()
    for payment in client.payments.list():
        client.payments.get(payment.transfer_id)
    assert judged(Survey(server), payer) in expected_micro


def assert_expired(survey: Survey, it: Prepared) -> None:
    """Assert that the purchase has failed by expiry and that no money moved."""
    (payment,) = survey.rows("payments")
    (row,) = survey.rows("transfers", transfer_id=payment["transfer_id"])
    assert (row["status"], row["error"]) == ("failed", "payment_expired")
    landed = survey.rows("chain_transactions", kind="payment")
    assert [tx["chain_signature"] for tx in landed] in ([None], [row["tx_signature"]])
    (payer,) = survey.rows("accounts", account_id=it.payer)
    spent = FUNDS - survey.balances()[payer["usdc_token_account"]]
    # The other transfer of 1 USDC is all that may have left.
    assert spent in (0, 1_000_000)
    survey.assert_conserved()


@every_protocol
@every_point
def test_a_purchase_is_paid_at_most_once_whoever_dies_at_any_point(
    it: Prepared, protocol: Protocol, point: str, request: pytest.FixtureRequest
) -> None:
    seed = SystemRandom().getrandbits(32)
    mode = Random(seed).choice(list(Mode))
    try:
        bought(it, point, protocol, mode)
    except BaseException as error:
        store = request.node.callspec.params["template"]
        case = f"[{store}-{point}-{protocol}-{mode}]"
        error.add_note(f"seed {seed} drew {mode}; to repeat: pytest -m deep '{EVERY_MODE}{case}'")
        raise


@pytest.mark.deep
@pytest.mark.parametrize("mode", list(Mode))
@every_protocol
@every_point
def test_a_purchase_is_paid_at_most_once_in_every_mode_at_any_point(
    it: Prepared, protocol: Protocol, point: str, mode: Mode
) -> None:
    bought(it, point, protocol, mode)


@every_protocol
@pytest.mark.parametrize("mode", list(Mode))
def test_a_purchase_is_paid_at_most_once_in_every_mode(protocol: Protocol, mode: Mode) -> None:
    with AgentPayServer(clock="system") as server:
        client = server.client()
        payer = client.accounts.create(name="Payer").account_id
        server.sandbox.fund(payer, "100")
        with opened(server.rpc_url, protocol, mode) as shop:
            buy_and_judge(server, shop, payer, expected(mode, None))


def test_a_payment_that_landed_while_no_server_ran_is_found_at_the_start(it: Prepared) -> None:
    with (
        child(it, "payment.landed", "--chain-rpc") as dying,
        opened(f"{dying.base_url}/ext/v1/sandbox/rpc", Protocol.X402_V2, Mode.HONEST) as shop,
    ):
        first_life(dying, shop, it, "payment.landed")

    with it.place.serve(operator_key=it.key, clock="system") as server:
        (payment,) = server.client().payments.list()
        assert payment.status == "settled"
        assert judged(Survey(server), it.payer) == PRICE
