"""SIGKILL at every step of a session behind HTTP 402: each request is paid once, and every channel ends.

The agent keeps nothing but its keys. It pays a seller that outlives every server; a server dies at one step,
and another one takes its place. The chain is the judge.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
import shops
from killing import Child, Prepared, Survey, child, expiring

from agentpay import AgentPay, AgentPayError
from agentpay.payments import PaymentAuth
from agentpay_server.paywall import Paywall
from agentpay_server.platform.failpoints import Operation, points_of

PRICE = 1_000
CALLS = ("call-1", "call-2", "call-3")
FORCED = ("channel_close.signed", "channel_close.sent", "channel_close.expired")
"""Steps that only a forced close passes."""

POINTS = [
    *points_of(Operation.CHANNEL_OPEN),
    *points_of(Operation.VOUCHER),
    *points_of(Operation.CHANNEL_CLOSE),
]


@contextmanager
def opened(rpc_url: str) -> Iterator[Paywall]:
    with Paywall(rpc_url=rpc_url, prices={}) as shop:
        # Of a second, so that a forced close ends within the test.
        shop.sell_by_session("/call", "0.001", grace_seconds=1)
        yield shop


@pytest.fixture(autouse=True)
def _known_seller(monkeypatch: pytest.MonkeyPatch) -> None:
    shops.know_keys(monkeypatch)


@pytest.fixture(scope="module")
def template(template: Prepared) -> Prepared:
    """Return a place where a payer has 100 USDC, and the seller has what it needs to be paid."""
    return shops.visited(template, opened, "/call")


def call(service: AgentPay, shop: Paywall, payer: str, *, closes: bool) -> None:
    """Make every call under its own key, with an agent that has no memory of earlier attempts."""
    http = httpx.Client(transport=shop.transport(), base_url=shop.base_url)
    auth = PaymentAuth(service, account_id=payer, session_cap="1", seller_client=http)
    with http:
        for key in CALLS:
            with suppress(AgentPayError, httpx.HTTPError):
                http.get("/call", auth=auth, extensions={"payment_key": key})
        if closes:
            auth.close()


def first_life(dying: Child, shop: Paywall, it: Prepared, point: str) -> None:
    assert dying.base_url is not None
    with AgentPay(api_key=it.key, base_url=dying.base_url, max_retries=0, timeout=20) as service:
        if point in FORCED:
            # A session without a voucher is closed by force at once.
            open_and_close(dying, shop, it, point)
        elif point == "channel_open.expired":
            open_and_expire(dying, shop, it)
        else:
            call(service, shop, it.payer, closes=True)
    dying.request("GET", "/ext/v1/sessions", it.key)
    dying.assert_killed()


def opening(dying: Child, http: httpx.Client, it: Prepared) -> dict[str, object] | None:
    """Return the step that opens a session; None if the server is dead."""
    body = {
        "account_id": it.payer,
        "idempotency_key": "opening",
        "origin": str(http.base_url).rstrip("/"),
        "headers": [list(each) for each in http.get("/call").headers.multi_items()],
        "session_cap": "1",
    }
    found = dying.request("POST", "/ext/v1/payments", it.key, body)
    return None if found is None else dict(found.json())


def open_and_close(dying: Child, shop: Paywall, it: Prepared, point: str) -> None:
    with httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
        step = opening(dying, http, it)
        assert step is not None
        header: Any = step["header"]
        http.get("/call", headers={header["name"]: header["value"]})
    expiring(it, dying, point)
    path = f"/ext/v1/sessions/{step['session_id']}/close"
    # 503 until the opening is posted; None once the server is dead.
    closed = dying.request("POST", path, it.key)
    while closed is not None and closed.status_code == 503:
        closed = dying.request("POST", path, it.key)


def open_and_expire(dying: Child, shop: Paywall, it: Prepared) -> None:
    """Have an opening signed that nobody presents, until it can no longer land."""
    with httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
        assert opening(dying, http, it) is not None
        # What was signed before a permanently lost transaction can no longer land.
        expiring(it, dying, "channel_open.expired")
        dying.request("POST", "/v1/transfers", it.key, it.transfer("other", "1"))
        opening(dying, http, it)


@pytest.mark.parametrize("point", POINTS)
def test_each_request_is_paid_once_and_every_channel_ends(it: Prepared, point: str) -> None:
    with child(it, point, "--chain-rpc") as dying, opened(f"{dying.base_url}/ext/v1/sandbox/rpc") as shop:
        first_life(dying, shop, it, point)
        with it.place.serve(operator_key=it.key, clock="system") as server:
            shop._home._url = server.rpc_url  # type: ignore[union-attr]
            client = server.client().with_options(max_retries=5)
            call(client, shop, it.payer, closes=True)
            for session in client.sessions.list(account_id=it.payer):
                with suppress(AgentPayError):
                    client.sessions.close(session.session_id)
            survey = Survey(server)
            vouchers = survey.rows("vouchers")
            assert sorted(row["idempotency_key"] for row in vouchers) == sorted(CALLS)
            by_session: dict[str, list[int]] = {}
            for row in vouchers:
                by_session.setdefault(row["session_id"], []).append(row["cumulative"])
            for cumulatives in by_session.values():
                assert cumulatives == [PRICE * (number + 1) for number in range(len(cumulatives))]
