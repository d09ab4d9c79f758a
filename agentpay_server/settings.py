"""The settings of a server and their defaults.

A setting is an argument of `Settings(...)`, or an option or environment variable of `agentpay-server`.
"""

import re
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Final, NoReturn

from attrs import converters, field, frozen, validators

from agentpay.contract.usdc import to_decimal

KEY_VARIABLE: Final = "AGENTPAY_SERVER_ENCRYPTION_KEY"


class _Choice(StrEnum):
    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"{value!r} is no {cls.__name__}; available: {', '.join(cls)}")


class PolicyUpdate(_Choice):
    """How `PUT /v1/accounts/{id}/policy` treats omitted fields (interface PO3)."""

    MERGE = "merge"
    """They keep their values."""

    REPLACE = "replace"
    """They are reset to their defaults."""


class OnchainMemo(_Choice):
    """The content of a transaction's on-chain memo (interface T10)."""

    ID = "id"
    """Only the transfer_id, because the caller's memo may be private."""

    FULL = "full"
    """The transfer_id and the caller's memo, or its SHA-256 if the memo does not fit."""


def _to_sol(value: Decimal | int | str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        raise TypeError(f"an amount of SOL is a Decimal, an int or a string, not {type(value).__name__}")
    try:
        amount = Decimal(value)
    except InvalidOperation:
        raise ValueError("an amount of SOL must be a decimal number such as '0.1'") from None
    if not amount.is_finite():
        raise ValueError("an amount of SOL must be a finite number")
    return amount


def checked_metrics_key(key: str) -> str:
    """Require a key that fits into a header; the ValueError does not contain it."""
    if not re.fullmatch(r"[!-~]{1,200}", key):
        raise ValueError("the metrics key must be 1 to 200 visible ASCII characters, without spaces")
    return key


@frozen(kw_only=True)
class Settings:
    """Limits, timeouts and the choices that the interface leaves open.

    Attributes:
        policy_update: whether a policy update merges with the policy in force or replaces it.
        onchain_memo: what a transfer's on-chain memo contains.
        settlement_wait_seconds: how long creating or approving a transfer, and opening or closing a session,
            wait for finality before they respond 503.
        approval_ttl_seconds: how long an escalated transfer is pending before it expires, up to a year
            (interface AP4).
        rate_limit_per_minute: requests per minute and key; None means no limit (interface R18).
        encryption_key: 32 bytes that seal stored secrets. None reads the environment variable
            AGENTPAY_SERVER_ENCRYPTION_KEY, or else the data directory; in memory, a key is generated.
        session_idle_seconds: how long a session may go without a charge before it closes automatically. None
            means 24 hours on mainnet, devnet and testnet, and no limit elsewhere; infinity means no limit.
        session_lifetime_seconds: how long a session may last before it closes automatically; None means no
            limit.
        max_open_sessions: maximum unsettled sessions per account, at least 1. The treasury lends each about
            0.002 SOL of rent.
        min_session_cap_usdc: the smallest cap of a session, at least 0.000001 USDC.
        treasury_low_sol: balance of the treasury in SOL below which the warning `treasury.low` is logged.
        shutdown_seconds: how long running work may continue when the server stops.
        ready_lag_seconds: lag of a worker above which the server is not ready.
        max_connections: maximum connections per port; lower if the process may not open enough files. At the
            limit, a new connection replaces the one that has waited longest for its peer. One operator may
            have requests in progress for at most three quarters of this number.
        head_timeout_seconds: timeout for the head of a request.
        body_timeout_seconds: timeout for the body of a request, and for the peer to read a response.
        idle_timeout_seconds: how long a connection may stay open between two requests.
        serves_dashboard: whether the operator console is served at `/dashboard`.
        metrics_key: the key that `/metrics` requires, 1 to 200 visible ASCII characters; None means none.
    """

    policy_update: PolicyUpdate = field(default=PolicyUpdate.MERGE, converter=PolicyUpdate)
    onchain_memo: OnchainMemo = field(default=OnchainMemo.ID, converter=OnchainMemo)
    settlement_wait_seconds: float = field(default=20.0, validator=validators.ge(0))
    approval_ttl_seconds: float = field(
        default=24 * 3600.0, validator=validators.and_(validators.gt(0), validators.le(366 * 24 * 3600))
    )
    rate_limit_per_minute: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    encryption_key: bytes | None = field(
        default=None,
        repr=False,
        validator=validators.optional(validators.and_(validators.min_len(32), validators.max_len(32))),
    )
    session_idle_seconds: float | None = field(
        default=None, validator=validators.optional(validators.ge(0.000001))
    )
    session_lifetime_seconds: float | None = field(
        default=None, validator=validators.optional(validators.ge(0.000001))
    )
    max_open_sessions: int = field(default=100, validator=validators.ge(1))
    min_session_cap_usdc: Decimal = field(
        default=Decimal("0.01"), converter=to_decimal, validator=validators.ge(Decimal("0.000001"))
    )
    treasury_low_sol: Decimal = field(
        default=Decimal("0.1"), converter=_to_sol, validator=validators.ge(Decimal(0))
    )
    shutdown_seconds: float = field(default=5.0, validator=validators.ge(0))
    ready_lag_seconds: float = field(default=30.0, validator=validators.gt(0))
    max_connections: int = field(default=1000, validator=validators.ge(1))
    head_timeout_seconds: float = field(default=10.0, validator=validators.gt(0))
    body_timeout_seconds: float = field(default=30.0, validator=validators.gt(0))
    idle_timeout_seconds: float = field(default=10.0, validator=validators.gt(0))
    serves_dashboard: bool = True
    metrics_key: str | None = field(
        default=None,
        repr=False,
        converter=converters.optional(checked_metrics_key),
    )
