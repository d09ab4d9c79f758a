"""Results of the tools never contradict each other, and pages are fetched within their bounds."""

import contextlib
import socket
from collections.abc import Callable
from typing import Any, get_args

import anyio
import attrs
import pytest
from http_service import Dripping
from sdk_world import FLAVOURS
from tool_results import assert_consistent

from agentpay import errors
from agentpay._pay402 import fetching
from agentpay._pay402.fetching import (
    AsyncFetcher,
    FetchedPage,
    Fetcher,
    FetchFailedError,
    FetchRefusedError,
    PageRequest,
    checked_headers,
    target_of,
)
from agentpay.contract.errors import ErrorCode, RejectionReason
from agentpay.contract.ext.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay.testing import make
from agentpay.tools import reports
from agentpay.tools.results import PaymentStatus

REF = "order-2026-0001"
CODES = [*map(str, ErrorCode), *map(str, RejectionReason), "error_of_a_later_version", None]
RECORDED = ["settled", "submitted", "pending_approval", "approved", "failed", "status_of_a_later_version"]


def recorded(status: str, error: str | None = None) -> Transfer:
    message = None if error is None else "No."
    return Transfer.from_dict(
        {**make(Transfer).to_dict(), "status": status, "error": error, "message": message}
    )


@pytest.mark.parametrize(
    ("status", "error"), [*(("rejected", code) for code in CODES), *((status, None) for status in RECORDED)]
)
def test_a_recorded_payment_is_consistent(status: str, error: str | None) -> None:
    result = reports.payment_of(recorded(status, error), REF, base_url="https://pay.example.com")
    assert_consistent(result)
    assert_consistent(reports.conflict(result, "something else"))


# A conflict describes a recorded payment.
@pytest.mark.parametrize("status", [*sorted({*get_args(PaymentStatus)} - {"conflict"}), None])
def test_a_payment_without_a_record_is_consistent(status: Any) -> None:
    for advice in (None, reports.NOT_FOUND) if status == "unknown" else (None,):
        result = reports.unrecorded(REF, status, "No.", advice=advice)
        assert_consistent(result)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_refused_request_is_consistent(code: ErrorCode) -> None:
    error = errors.APIError("No.", status_code=code.status, code=code.value)
    advice = reports.after_refusal(error)
    assert_consistent(reports.unrecorded(REF, "rejected", "No.", advice=advice))
    assert_consistent(reports.session_unread("sess_1", error))


@pytest.mark.parametrize(
    "status", ["opening", "open", "closing", "settled", "failed", "status_of_a_later_version"]
)
def test_a_session_is_consistent(status: str) -> None:
    known = Session.from_dict({**make(Session).to_dict(), "status": status})
    assert_consistent(reports.session_of(known))


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: target_of("http://seller.example/page", ()),
        lambda: target_of("ftp://seller.example/page", ()),
        lambda: target_of("https://seller.example/page", ()).redirected("https://other.example", ()),
        lambda: checked_headers({"Cookie": "a=1"}),
        lambda: checked_headers({"Name": "\n"}),
    ],
)
def test_a_page_that_is_not_fetched_says_whether_the_same_reference_helps(refuse: Callable[[], Any]) -> None:
    with pytest.raises(FetchRefusedError) as refused:
        refuse()
    without = reports.unrecorded(REF, "rejected", "No.")
    changes = {
        "next_step": refused.value.next_step,
        "may_retry_with_same_ref": refused.value.may_retry,
    }
    assert_consistent(attrs.evolve(without, **changes))


# --- Pages that are fetched

LOOPBACK = ("http://127.0.0.1:*",)


def test_every_address_of_a_name_must_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 443)) for each in ("203.0.112.1", "10.0.0.1")]
    monkeypatch.setattr(fetching.socket, "getaddrinfo", lambda *_, **__: found)
    # A host with a final dot is the host without it.
    target = target_of("https://mixed.example./", ())
    assert (target.origin, target.host) == ("https://mixed.example", "mixed.example")
    with pytest.raises(FetchRefusedError, match="private address"):
        fetching.allowed_address(fetching.addresses_of(target), target)


SLOW_HEAD = [b"HTTP/1.1 200 OK\r\nX-A: ", *[b"a"] * 100_000]
EARLY_HINTS = [b"HTTP/1.1 103 Early Hints\r\n\r\n"] * 100_000
SLOW_BODY = [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", b"sunny", *[b" "] * 100_000]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("parts", [SLOW_HEAD, EARLY_HINTS, SLOW_BODY], ids=["head", "hints", "body"])
def test_one_deadline_covers_headers_and_body(
    monkeypatch: pytest.MonkeyPatch, flavour: str, parts: list[bytes]
) -> None:
    def fetch(read_seconds: float) -> FetchedPage:
        monkeypatch.setattr(fetching, "CONNECT_SECONDS", read_seconds)
        with Dripping(parts) as service:
            request = PageRequest(target=target_of(service.base_url, LOOPBACK), read_seconds=read_seconds)
            if flavour == "sync":
                return Fetcher().fetch(request)
            return anyio.run(AsyncFetcher().fetch, request, backend=flavour)

    if parts is SLOW_BODY:
        page = with_patience(fetch)
        assert (page.status, page.body.strip(), page.is_truncated) == (200, b"sunny", True)
    else:
        with pytest.raises(FetchFailedError, match="TimeoutError"):
            fetch(0.2)


def with_patience(fetch: Callable[[float], FetchedPage]) -> FetchedPage:
    """Fetch with the shortest deadline within which this machine receives the head of a response."""
    for doubled in range(8):
        with contextlib.suppress(FetchFailedError):
            return fetch(0.2 * 2**doubled)
    raise AssertionError("no head arrived within any deadline")
