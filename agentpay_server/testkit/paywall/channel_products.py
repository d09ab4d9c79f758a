"""Products that are sold through channels on chain: by session (MPP), or up to a maximum (x402 `upto`)."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeVar

from attrs import frozen
from solders.pubkey import Pubkey

from agentpay.contract import json_text
from agentpay.contract.usdc import to_micro
from agentpay_server.chain.channels.codecs import ChannelError, Share, check_shares
from agentpay_server.payments.challenges.fields import is_unicode
from agentpay_server.testkit.paywall.products import owner_address

M = TypeVar("M", bound=StrEnum)

MAX_SHARES: Final = 8
"""The most shares of a session; established sellers accept as many."""

GRACE_SECONDS: Final = 900

Charge = Callable[[], Decimal | int | str]
"""Returns what one request costs, in USDC."""


class SessionMode(StrEnum):
    """How a seller behaves that sells by session.

    The chain shows the outcome: a seller can take at most the highest voucher that it holds.
    """

    HONEST = "honest"
    """Opens channels, serves each voucher once, closes when asked, and watches the chain."""

    LOSE_REPLY = "lose_reply"
    """Accepts a voucher, then drops the connection; serves it when it is presented again."""

    STEAL_VOUCHER = "steal_voucher"
    """Keeps each voucher, and responds 503 without serving."""

    RAISE_PRICE = "raise_price"
    """Asks five times the price once a channel has paid."""

    OUT_OF_ORDER = "out_of_order"
    """Refuses each new voucher once, as not above a higher one that it claims to hold."""

    REFUSE_ACCEPTED = "refuse_accepted"
    """Accepts a voucher, drops the connection, and refuses the voucher when it is presented again."""

    NEVER_CLOSE = "never_close"
    """Serves, responds 503 to a close, and never settles anything."""

    SEAL_EARLY = "seal_early"
    """Serves the first voucher of a channel, then seals the channel and refuses all further vouchers."""

    FORGET = "forget"
    """Forgets a channel after each voucher that it serves, until its opening is presented again."""


class UptoMode(StrEnum):
    """How a seller behaves that sells up to a maximum."""

    HONEST = "honest"
    """Charges what the request cost, and returns the rest."""

    CHARGE_MAXIMUM = "charge_maximum"
    """Charges the maximum, and responds 503 without serving."""

    LOSE_REPLY = "lose_reply"
    """Settles, then drops the connection."""

    FAIL = "fail"
    """Opens the channel, fails to serve, charges nothing, and responds 500."""

    NEVER_SETTLE = "never_settle"
    """Opens the channel, serves, and never settles."""


@frozen(kw_only=True)
class SessionProduct:
    """A route sold by session; amounts in micro-USDC."""

    path: str
    amount_micro: int
    shares: tuple[Share, ...]
    grace_seconds: int
    minimum_micro: int | None
    suggested_micro: int | None
    idle_seconds: int | None
    category: str | None
    description: str
    content: Any
    mode: SessionMode


@frozen(kw_only=True)
class UptoProduct:
    """A route sold up to a maximum, in micro-USDC."""

    path: str
    maximum_micro: int
    charge: Charge
    grace_seconds: int
    description: str
    content: Any
    mode: UptoMode


@frozen(kw_only=True)
class SellerTerms:
    """Addresses that all channels with a seller have in common.

    Attributes:
        fee_payer: opens all channels, and is the payee of those of `upto`.
        payee: of sessions.
        authorizer: signs the vouchers of `upto`.
        recipient: receives what is paid by `upto`.
        mint: of USDC.
    """

    fee_payer: str
    payee: str
    authorizer: str
    recipient: str
    mint: str


def session_product(
    path: str,
    price: Decimal | int | str,
    *,
    shares: Mapping[str, int] | None,
    grace_seconds: int,
    minimum_deposit: Decimal | int | str | None,
    suggested_deposit: Decimal | int | str | None,
    idle_seconds: int | None,
    category: str | None,
    description: str,
    content: Any,  # noqa: ANN401 - any JSON
    mode: SessionMode | str,
) -> SessionProduct:
    """Raises TypeError for a float or a `content` without JSON form, else ValueError."""
    _check(path, grace_seconds, content, category=category, description=description)
    parts = tuple(
        Share(Pubkey.from_string(owner_address(address, "shares")), bps)
        for address, bps in (shares or {}).items()
    )
    if len(parts) > MAX_SHARES:
        raise ValueError(f"a session has at most {MAX_SHARES} shares")
    try:
        check_shares(parts)
    except ChannelError as error:
        raise ValueError(f"shares: {error}") from None
    if idle_seconds is not None and idle_seconds < 1:
        raise ValueError("idle_seconds must be at least 1")
    return SessionProduct(
        path=path,
        amount_micro=_amount(price, "price"),
        shares=parts,
        grace_seconds=grace_seconds,
        minimum_micro=None if minimum_deposit is None else _amount(minimum_deposit, "minimum_deposit"),
        suggested_micro=None
        if suggested_deposit is None
        else _amount(suggested_deposit, "suggested_deposit"),
        idle_seconds=idle_seconds,
        category=category,
        description=description,
        content=content,
        mode=_member(SessionMode, mode),
    )


def upto_product(
    path: str,
    maximum: Decimal | int | str,
    *,
    charge: Charge | Decimal | int | str | None,
    grace_seconds: int,
    description: str,
    content: Any,  # noqa: ANN401 - any JSON
    mode: UptoMode | str,
) -> UptoProduct:
    """Raises TypeError for a float or a `content` without JSON form, else ValueError."""
    _check(path, grace_seconds, content, description=description)
    fixed = maximum if charge is None else charge
    if not callable(fixed):
        to_micro(fixed)
    return UptoProduct(
        path=path,
        maximum_micro=_amount(maximum, "maximum"),
        charge=fixed if callable(fixed) else lambda: fixed,
        grace_seconds=grace_seconds,
        description=description,
        content=content,
        mode=_member(UptoMode, mode),
    )


def _check(path: str, grace_seconds: int, content: object, **texts: str | None) -> None:
    if not path.startswith("/"):
        raise ValueError(f"path must begin with a slash: {path!r}")
    if not 0 < grace_seconds < 2**32:
        raise ValueError("grace_seconds must be positive")
    for name, text in texts.items():
        if text is not None and not is_unicode(text):
            raise ValueError(f"{name} contains a lone surrogate")
    json_text.print_json(content)


def _amount(value: Decimal | int | str, name: str) -> int:
    amount_micro = to_micro(value)
    if amount_micro < 1:
        raise ValueError(f"{name} must be positive")
    return amount_micro


def _member(kind: type[M], name: str) -> M:
    try:
        return kind(name)
    except ValueError:
        raise ValueError(f"unknown mode {name!r}; available: {', '.join(kind)}") from None
