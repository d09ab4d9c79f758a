"""Purchases that ended undelivered, so that an equal request presents them again instead of paying again.

An SDK or a loop above the HTTP client retries by a new request, which lacks the key of the first. So this
process remembers each purchase whose latest attempt has ended without a delivery, for ten minutes. A purchase
in flight is never joined, and a delivered one is forgotten: a loop that buys the same thing each second pays
each time, as fifty requests at once do. Each client and account has its own purchases. Only keys and digests
are kept.
"""

import hashlib
import os
import re
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from attrs import define, frozen

from agentpay._pay402.challenges import payment_key
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.payments import Payment, SessionStep
from agentpay.contract.json_text import print_json
from agentpay.errors import ConflictError, IdempotencyConflictError, TransferRejectedError

JOINABLE_SECONDS: Final = 600.0
"""How long after the end of its latest attempt a purchase is presented again by an equal request."""

PURCHASES_MAX: Final = 1_000
"""How many purchases are remembered; beyond it, the ones that ended first are forgotten."""

_NEVER_LANDS: Final = ("payment_expired", "payment_failed")
"""Codes of conflicts that leave the name of a purchase free: nothing moved, and nothing can move any more."""

_KEYS_MAX: Final = 10
"""How many keys an `Idempotency-Key` can have, one for each payment that can no longer land."""

_COMPARED: Final = ("accept", "accept-language", "authorization", "range")
_BOUNDARY: Final = re.compile(r'multipart/.*boundary="?([^";,\s]+)', re.IGNORECASE)


@frozen
class Name:
    """Identifies the requests of one purchase.

    Attributes:
        text: the caller's key, or a digest.
        body: digest of the body; empty for that of a stream.
        key: the idempotency key that the name itself gives; None for a random one.
        is_chosen: whether `key` is the caller's own, which no other key can replace.
    """

    text: str
    body: str
    key: str | None = None
    is_chosen: bool = False


def name_of(
    request: Any,  # noqa: ANN401 - a request of either library
    *,
    is_stream: bool,
    memo: str | None = None,
) -> Name:
    """Return the name of the purchase of a request.

    It is the extension `payment_key`, else the header `Idempotency-Key`, else the request itself, with its
    payment's memo. A body that was a stream equals no other.

    Raises:
        TypeError: `payment_key` is not a string.
        ValueError: `payment_key` is empty or too long.
    """
    chosen = payment_key(request.extensions)
    if chosen is not None:
        return Name(text=chosen, body="", key=chosen, is_chosen=True)
    headers = request.headers
    content: bytes = b"" if is_stream else request.read()
    kind = headers.get("content-type")
    if kind is not None and (boundary := _BOUNDARY.match(kind)) is not None:
        # Libraries choose another one for each attempt.
        content = content.replace(b"--" + boundary[1].encode("latin-1"), b"--")
        kind = kind.replace(boundary[1], "")
    body = "" if is_stream else hashlib.sha256(content).hexdigest()
    target = [request.method, str(request.url)]
    given = headers.get("idempotency-key")
    if given:
        text = f"http:{_digest([*target, given])}"
        return Name(text=text, body=body, key=text)
    compared = [memo, *(headers.get(name) for name in _COMPARED)]
    return Name(text=str(uuid.uuid4()) if is_stream else _digest([*target, body, kind, *compared]), body=body)


def _digest(parts: list[str | None]) -> str:
    return hashlib.sha256(print_json(parts)).hexdigest()


def is_news(payment: Payment, *, is_delivered: bool, is_named: bool = False) -> bool:
    """Return whether the service must be told a response, so that no list shows the opposite of it.

    Nothing is news after a delivery: sellers refuse a payment that they have served. So a delivery is news if
    another process can present the payment again, because it knows its name.
    """
    if payment.outcome is not None:
        return not 200 <= payment.outcome.status_code < 300
    return is_named or not is_delivered


@define(eq=False)
class Purchase:
    """A purchase while a request presents it; leaving it as a context ends the attempt.

    Attributes:
        key: the idempotency key to authorize with.
        is_joined: whether an earlier request has ended without its delivery.
        is_recorded: whether the service has a payment, or may have one, under the key.
    """

    _purchases: "Purchases"
    owner: tuple[Any, str]
    name: Name
    key: str
    keys: int = 1
    is_joined: bool = False
    is_recorded: bool = False
    ended_at: float | None = None
    _is_delivered: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether other processes derive the same key, so that one of them may have taken another since."""
        return self.name.key is not None and not self.name.is_chosen

    def is_past(self, under_key: Sequence[Payment | SessionStep]) -> bool:
        """Take another key if the newest payment under a shared one can never land; return whether it is so.

        The service frees that key after a day, when another process may have paid under a later one.

        Args:
            under_key: what the service lists under the key, newest first.
        """
        newest = next(iter(under_key), None)
        return isinstance(newest, Payment) and newest.status == "failed" and self.renew()

    def replaces(self, error: ConflictError) -> bool:
        """Take another key if an error says that the payment of this one can never land."""
        return error.code in _NEVER_LANDS and self.renew()

    def renew(self) -> bool:
        """Take another key, because the payment of this one can never land; return False if none is left."""
        self._purchases.forget(self, is_replaced=True)
        if self.name.is_chosen or self.keys == _KEYS_MAX:
            return False
        self.keys += 1
        self.key = str(uuid.uuid4()) if self.name.key is None else f"{self.name.key}:{self.keys}"
        self.is_joined = self.is_recorded = False
        self._purchases.remember(self)
        return True

    def deliver(self) -> None:
        """Note that the seller delivers, unless `end` is called because the body breaks off."""
        self._is_delivered = True
        self._purchases.forget(self)

    def end(self) -> None:
        """Note that the attempt has ended without a delivery."""
        self._purchases.remember(self, is_ended=True)

    def fail(self, error: BaseException | None) -> None:
        """Note that the attempt has ended by an error; without one, by a response that does not deliver."""
        # An error that is no `Exception` cancelled the attempt, wherever it was.
        is_unknown = not isinstance(error, Exception) or getattr(error, "outcome", "") == "unknown"
        if (self.is_recorded or is_unknown) and not isinstance(error, TransferRejectedError):
            self.end()
        else:
            self._purchases.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not self._is_delivered:
            self.fail(error)


class Purchases:
    """The purchases of this process that are in flight or ended undelivered, the latest last.

    Args:
        now: the time in seconds, which never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # A purchase may be collected, and so end, while this thread holds it.
        self._lock = threading.RLock()
        self._known: OrderedDict[tuple[tuple[Any, str], str], Purchase] = OrderedDict()

    def renew_lock(self) -> None:
        """Take a lock that no thread holds, in the child of a fork."""
        self._lock = threading.RLock()

    def begin(self, client: object, account_id: str, name: Name) -> Purchase:
        """Return the purchase of a request: one that ended undelivered, or a new one.

        Raises:
            IdempotencyConflictError: the request has the `Idempotency-Key` of a request with another body.
        """
        owner = (weakref.ref(client), account_id)
        with self._lock:
            now = self._now()
            found = self._found(owner, name, now)
            if found is None:
                purchase = Purchase(self, owner, name, name.key or str(uuid.uuid4()))
            else:
                if name.body and found.name.body not in ("", name.body):
                    raise IdempotencyConflictError(
                        "This Idempotency-Key names the purchase of a request with another body, and nothing "
                        "was signed.",
                        status_code=409,
                        code=ErrorCode.IDEMPOTENCY_CONFLICT.value,
                    )
                is_joined = _is_joinable(found, now)
                purchase = Purchase(
                    self,
                    owner,
                    found.name,
                    found.key,
                    found.keys,
                    is_joined=is_joined,
                    is_recorded=is_joined,
                )
            self._put(purchase)
            return purchase

    def remember(self, purchase: Purchase, *, is_ended: bool = False) -> None:
        """Keep a purchase as the latest one: in flight, or ended now."""
        with self._lock:
            purchase.ended_at = self._now() if is_ended else None
            self._put(purchase)

    def forget(self, purchase: Purchase, *, is_replaced: bool = False) -> None:
        """Never join a purchase again. The body that belongs to an `Idempotency-Key` is kept."""
        with self._lock:
            purchase.ended_at = None
            if is_replaced or purchase.name.key is None or purchase.name.is_chosen:
                self._known.pop((purchase.owner, purchase.key), None)

    def _found(self, owner: tuple[Any, str], name: Name, now: float) -> Purchase | None:
        if name.is_chosen:
            return self._known.get((owner, name.text))
        same = [each for each in self._known.values() if (each.owner, each.name.text) == (owner, name.text)]
        return next((each for each in same if name.key is not None or _is_joinable(each, now)), None)

    def _put(self, purchase: Purchase) -> None:
        place = (purchase.owner, purchase.key)
        self._known[place] = purchase
        self._known.move_to_end(place)
        if len(self._known) > PURCHASES_MAX:
            self._known.popitem(last=False)


def _is_joinable(purchase: Purchase, now: float) -> bool:
    return purchase.ended_at is not None and now - purchase.ended_at <= JOINABLE_SECONDS


PURCHASES: Final = Purchases()
"""The purchases of this process."""

if hasattr(os, "register_at_fork"):
    # Another thread of the parent may hold it.
    os.register_at_fork(after_in_child=PURCHASES.renew_lock)
