"""Requests and responses of a caller's own httpx or httpx2 client: what a payment changes in them.

Classes are created for the library in use, so that neither library imports the other.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, Final

from attrs import frozen

from agentpay._http.clients import cookie_of
from agentpay._http.passed import LIBRARIES
from agentpay._pay402.challenges import origin_of, payment_key, receipt_in
from agentpay.contract.ext.payments import Payment, SessionStep

# Messages are of either library, so they have no static type.
# ruff: noqa: ANN401

SPARE_SECONDS: Final = 1.0
"""How long the body of a 402 is read whose headers have a challenge, in seconds."""

BODY_SECONDS: Final = 30.0
"""How long the body of a 402 is read that may be a challenge itself, in seconds."""

REFUSAL_SECONDS: Final = 5.0
"""How long the body of a refusal is read, and its payment, in seconds."""

OWN_AUTHORIZATION: Final = (
    "the seller expects the payment in the header Authorization, which the request uses already"
)
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_PRESENTED: Final = ("payment-signature", "x-payment", "payment-authorization")

monotonic: Final = time.monotonic


@frozen(kw_only=True)
class PaymentRecord:
    """The payment for a request: `extensions["payment"]` of its response, and of the request itself.

    Attributes:
        idempotency_key: the key of the request. If you retry with it (`extensions={"payment_key": key}`), the
            request presents this payment and never pays twice.
        transfer_id: the payment, `txn_…`, for `client.payments.get`; None if none was authorized.
        payment: the payment as it was authorized; None if none was.
        session: the voucher that was presented, within a session; None for a single payment.
        receipt: the receipt header of the response, a claim of the seller; None without one.
        declined: why nothing was paid, for a 402 that was returned unchanged; None otherwise.
    """

    __module__ = "agentpay.payments"

    idempotency_key: str | None
    transfer_id: str | None = None
    payment: Payment | None = None
    session: SessionStep | None = None
    receipt: str | None = None
    declined: str | None = None


# --- Before a payment


def is_stream(request: Any) -> bool:
    """Return whether a body that was not read yet can be sent only once. A form with files is no stream."""
    return not all(isinstance(request.stream, kind) for kind in _stream_classes(request))


def unpaid(request: Any) -> Any:
    """Return a request as it was before it presented a payment.

    Raises:
        TypeError: `payment_key` is not a string.
        ValueError: `payment_key` is empty or too long.
    """
    payment_key(request.extensions)
    if "payment" in request.extensions:
        request.headers = request.headers.copy()
        request.extensions = {name: value for name, value in request.extensions.items() if name != "payment"}
    return request


def why_declined(request: Any, response: Any, base_url: str) -> str | None:
    """Return why a 402 must not be paid, whatever its challenge; None if it may be paid."""
    headers = request.headers
    if response.history:
        return "the request was redirected, so the seller may not be the one that was called"
    is_payment = headers.get("authorization", "")[:8].lower() == "payment "
    if is_payment or any(name in headers for name in _PRESENTED):
        return "the request presents another payment already"
    if origin_of(str(request.url)) == origin_of(base_url):
        return "the 402 came from the payment service itself, which refuses payments with this status"
    return None


def may_be_json(headers: Any) -> bool:
    """Return whether a body may be JSON, as a challenge of x402 version 1 is."""
    kind = headers.get("content-type")
    return kind is None or "json" in kind.lower()


@contextlib.contextmanager
def hastened(response: Any, seconds: float) -> Iterator[None]:
    """Lower the read timeout of a body, which the library reads from the request as it begins."""
    extensions: Any = {}
    with contextlib.suppress(RuntimeError):  # a response without a request
        extensions = response.request.extensions
    steps = extensions.get("timeout")
    if not isinstance(steps, dict):
        yield
        return
    read = steps.get("read")
    extensions["timeout"] = {**steps, "read": seconds if read is None else min(read, seconds)}
    try:
        yield
    finally:
        extensions["timeout"] = steps


# --- With a payment


def record_of(paid: Payment | SessionStep, key: str) -> PaymentRecord:
    """Return the record of what was signed for a request."""
    if isinstance(paid, SessionStep):
        return PaymentRecord(idempotency_key=key, session=paid)
    return PaymentRecord(idempotency_key=key, transfer_id=paid.transfer_id, payment=paid)


def identifier_of(paid: Payment | SessionStep) -> str:
    """Return the identifier of what was signed: of a payment, a voucher, or an opening."""
    return paid.transfer_id if isinstance(paid, Payment) else paid.charge_id or paid.session_id


def openings(request: Any) -> Iterator[Any]:
    """Yield the requests that present an opening, until one opens the session.

    Sellers run their handler on it, so other requests than GET are sent only if a GET opens nothing.
    """
    if request.method != "GET":
        yield type(request)("GET", request.url)
    yield request


def present(request: Any, record: PaymentRecord, response: Any, *, read_timeout: float | None) -> None:
    """Add the payment to a request so that redirects do not carry it, and the cookies of its 402."""
    paid = record.payment or record.session
    assert paid is not None  # noqa: S101 - it was signed
    assert paid.header is not None  # noqa: S101 - likewise
    headers = request.headers.copy()
    cookie = cookie_of(str(request.url), response.headers.multi_items(), headers.get("cookie"))
    if cookie is not None:
        headers["Cookie"] = cookie
    request.headers = _mixed(_Presenting, http_module_of(headers).Headers)(headers)
    request.headers.presented = [(paid.header.name, paid.header.value)]
    if "idempotency-key" not in headers:
        # The same for every presentation of this payment, so that the seller can repeat its response.
        request.headers.presented.append((IDEMPOTENCY_KEY, identifier_of(paid)))
    extensions = {**request.extensions, "payment": record, "payment_key": record.idempotency_key}
    steps = extensions.get("timeout")
    if read_timeout is not None and steps and (steps.get("read") or 0.0) < read_timeout:
        # None means no limit.
        read = steps.get("read", 0.0)
        extensions["timeout"] = {**steps, "read": None if read is None else read_timeout}
    request.extensions = extensions


def forget(request: Any) -> None:
    """Take the key of a delivered payment from its request, which is a new purchase if it is resent."""
    request.extensions = {name: value for name, value in request.extensions.items() if name != "payment_key"}


def note(response: Any, record: PaymentRecord) -> None:
    """Put the record of a payment on a response."""
    response.extensions = {**response.extensions, "payment": record}


def receipt_of(response: Any) -> str | None:
    """Return the receipt of a seller's response."""
    raw = response.headers.raw
    return receipt_in((name.decode("latin-1"), value.decode("latin-1")) for name, value in raw)


def is_lost(request: Any, end: BaseException) -> bool:
    """Return whether the library ends a flow because a request has no response.

    It ends one while it raises the error of its transport. Async libraries do not tell why; there, a caller
    that gives up has no response either.
    """
    return end.__context__ is None or isinstance(end.__context__, http_module_of(request).TransportError)


# --- Classes of the library in use


def auth_class(kind: type) -> type:
    """Derive a class from every loaded HTTP library's `Auth`."""
    loaded = (sys.modules[name].Auth for name in LIBRARIES if name in sys.modules)
    return _mixed(kind, *dict.fromkeys(base for base in loaded if not issubclass(kind, base)))


def stream_of(kind: type, response: Any) -> type:
    """Derive the class of a body from those of the library of its response."""
    return _mixed(kind, *_stream_classes(response))


def http_module_of(message: object) -> ModuleType:
    """Return the HTTP library of a request or a response."""
    return _library_of(type(message))  # type: ignore[arg-type]  # mypy/issues/11470


def _stream_classes(message: object) -> tuple[type, type]:
    library = http_module_of(message)
    return library.SyncByteStream, library.AsyncByteStream


@cache
def _mixed(kind: type, *bases: type) -> type:
    return type(kind.__name__, (kind, *bases), {"__module__": kind.__module__, "__doc__": kind.__doc__})


@cache
def _library_of(kind: type) -> ModuleType:
    homes = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return sys.modules[next(home for home in homes if home in LIBRARIES)]


class _Presenting:
    """Headers with fields that copies lack, because libraries build redirects from a copy."""

    presented: list[tuple[str, str]]

    def _whole(self) -> Any:
        base: Any = type(self).__mro__[2]
        return base([*base.multi_items(self), *self.presented])

    def __repr__(self) -> str:
        """Hide the payment, as the library does with `Authorization`: anyone can present it."""
        base: Any = type(self).__mro__[2]
        secure = [(name, "[secure]") for name, _ in self.presented]
        return repr(base([*base.multi_items(self), *secure]))

    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        plain: list[tuple[bytes, bytes]] = super().raw  # type: ignore[misc]
        return [*plain, *((name.encode("ascii"), value.encode("ascii")) for name, value in self.presented)]


def _reader(name: str) -> Any:
    return lambda self, *args, **kwargs: getattr(self._whole(), name)(*args, **kwargs)


for _name in ("get_list", "items", "keys", "multi_items", "values"):
    setattr(_Presenting, _name, _reader(_name))
for _name in ("__contains__", "__eq__", "__getitem__", "__len__"):
    setattr(_Presenting, _name, _reader(_name))
