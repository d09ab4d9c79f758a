"""Paying HTTP 402: a paid call, `PaymentAuth`'s own time, and what it costs where nothing is paid.

A paid call, from the first request to the resource, is measured against what it cannot do without: a settled
transfer of the same server, and two unpaid round trips to the same seller. The own time of `PaymentAuth` is
measured with a service and a seller that respond at once, against two calls without it.
"""

import itertools
import statistics
import time
from collections.abc import Callable

import httpx
from harness import Result, compare, print_table, seconds_per_call

from agentpay import AgentPay, Payment, testing
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall

KEY, URL = "ap_agent_x", "https://pay.example"
SELLER = "https://api.seller.example/forecast"


def run() -> list[Result]:
    """Return the ratios, and the microseconds of a response that is not a 402."""
    return [paid_call(), session_call(), own_time(), not_paid()]


def paid_call() -> Result:
    """Measure a paid call in process."""
    with AgentPayServer() as server, Paywall(server, {"/forecast": "0.001"}) as paywall:
        operator = server.client()
        bot, payee = (operator.accounts.create(name=name).account_id for name in ("Bot", "Payee"))
        server.sandbox.fund(bot, 1_000)
        agent = server.agent_client(bot)
        plain = {"transport": paywall.transport(), "base_url": paywall.base_url}
        with (
            httpx.Client(auth=PaymentAuth(agent, account_id=bot), **plain) as paying,
            httpx.Client(**plain) as bare,
        ):

            def pay() -> None:
                assert paying.get("/forecast").status_code == 200

            def parts() -> None:
                agent.transfers.create(from_=bot, to=payee, amount="0.001")
                assert bare.get("/free").status_code == 404
                assert bare.get("/free").status_code == 404

            return compare(
                "paid call: settled transfer and two round trips",
                subject=pay,
                floor=parts,
                bound=2.5,
                calls=40,
                rounds=15,
            )


def session_call() -> Result:
    """Measure a metered call by session in process, against one that is paid by itself."""
    with AgentPayServer() as server, Paywall(server, {"/forecast": "0.001"}) as paywall:
        paywall.sell_by_session("/tick", "0.001")
        bot = server.client().accounts.create(name="Bot").account_id
        server.sandbox.fund(bot, 1_000)
        agent = server.agent_client(bot)
        with httpx.Client(transport=paywall.transport(), base_url=paywall.base_url) as http:
            auth = PaymentAuth(agent, account_id=bot, session_cap="100", seller_client=http)
            with auth:

                def pay(path: str) -> None:
                    assert http.get(path, auth=auth).status_code == 200

                return compare(
                    "call by session: a single payment",
                    subject=lambda: pay("/tick"),
                    floor=lambda: pay("/forecast"),
                    bound=0.35,
                    calls=100,
                    rounds=5,
                )


def own_time() -> Result:
    """Measure what PaymentAuth adds to the two calls of a paid request, its service apart."""
    asks = httpx.Headers({"PAYMENT-REQUIRED": "e30="})
    replies = itertools.cycle([(402, asks), (200, httpx.Headers())])

    def answer(_request: httpx.Request) -> httpx.Response:
        status, headers = next(replies)
        return httpx.Response(status, headers=headers, content=b"{}")

    class Service(AgentPay):
        """Signs at once."""

    service = Service(api_key=KEY, base_url=URL)
    payment = testing.make(Payment)
    service.payments.authorize = lambda **_: payment  # type: ignore[method-assign]
    transport = httpx.MockTransport(answer)
    auth = PaymentAuth(service, account_id="acct_a")
    with httpx.Client(auth=auth, transport=transport) as paying, httpx.Client(transport=transport) as bare:

        def two() -> None:
            bare.get(SELLER)
            bare.get(SELLER)

        return compare(
            "only PaymentAuth: two calls without it",
            subject=lambda: paying.get(SELLER),
            floor=two,
            bound=1.2,
            calls=200,
            rounds=25,
        )


def not_paid() -> Result:
    """Measure what PaymentAuth adds to a call that costs nothing, in microseconds."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200))
    service = AgentPay(api_key=KEY, base_url=URL)
    request = httpx.Request("GET", SELLER)
    auths = (PaymentAuth(service, account_id="acct_a"), httpx.Auth())

    def flow(auth: httpx.Auth) -> Callable[[], None]:
        response = transport.handle_request(request)

        def run() -> None:
            steps = auth.sync_auth_flow(request)
            next(steps)
            try:
                steps.send(response)
            except StopIteration:
                return

        return run

    subject, floor = (flow(auth) for auth in auths)
    rounds = [(seconds_per_call(subject, 2_000), seconds_per_call(floor, 2_000)) for _ in range(25)]
    mine, theirs = (statistics.median(each) * 1e6 for each in zip(*rounds, strict=True))
    # Against the 5 us that it may add to the flow of httpx's own `Auth`, which does nothing.
    return Result("a response that is not a 402: 5 us", mine, theirs, max(mine - theirs, 0.0) / 5, 1.0)


if __name__ == "__main__":
    started = time.perf_counter()
    print_table(run())
    print(f"{time.perf_counter() - started:.0f} s")
