"""The settings of a server and their defaults, and how a command takes a setting.

A setting is an argument of `Settings(...)`. Most are options of `agentpay-server serve`, too: the metadata of
the field declares the option, so that the command needs no change for a new one.

    idle_timeout_seconds: float = field(
        default=10.0,
        validator=Bounds(above=0),
        metadata=option("--idle-timeout", "How long a connection may stay open between two requests."),
    )

The rest follows from the field: the unit from the last word of its name, the type from its annotation, the
range from its `Bounds`, and the default. `cli/options.py` builds the options of commands from this, and
`scripts/options.py` the page of the documentation.
"""

import math
import re
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar, cast

from attrs import Attribute, converters, field, frozen, validators

from agentpay.contract.usdc import to_decimal

_METADATA: Final = "agentpay_option"

Number = int | float | Decimal


@frozen(kw_only=True)
class Bounds:
    """Validates that a number is within bounds; `or_none` also allows None."""

    at_least: Number | None = None
    above: Number | None = None
    at_most: Number | None = None
    or_none: bool = False

    def __call__(self, _: object, attribute: "Attribute[Any]", value: Any) -> None:  # noqa: ANN401 - any number
        """Refuse other numbers, and NaN."""
        if value is None:
            if not self.or_none:
                raise TypeError(f"{attribute.name} must be a number, not None")
            return
        is_within = (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )
        if not is_within:
            raise ValueError(f"{attribute.name} must be {self}, not {value}")

    def __str__(self) -> str:
        """Say the bounds in words, such as `more than 0 and at most 10`."""
        named = {"at least": self.at_least, "more than": self.above, "at most": self.at_most}
        return " and ".join(f"{words} {bound}" for words, bound in named.items() if bound is not None)


@frozen(kw_only=True)
class Option:
    """An option of a command, and the environment variable with the same meaning.

    Attributes:
        name: such as `--idle-timeout`. `--no-…` sets a setting to False that is True by default.
        help: whole sentences.
        variable: the environment variable; None for none. That of a key file has the file's content.
        metavar: the placeholder of the value; None for the setting's unit.
        default: the default in words, if the value of the setting does not say it.
        is_secret: the help recommends the variable, because command lines are visible.
    """

    name: str
    help: str
    variable: str | None = None
    metavar: str | None = None
    default: str | None = None
    is_secret: bool = False


def option(
    name: str,
    text: str,
    *,
    variable: str | None = None,
    metavar: str | None = None,
    default: str | None = None,
    is_secret: bool = False,
) -> dict[str, Option]:
    """Return the metadata of a setting that commands take; `text` is the help."""
    declared = Option(
        name=name, help=text, variable=variable, metavar=metavar, default=default, is_secret=is_secret
    )
    return {_METADATA: declared}


def option_of(setting: "Attribute[Any]") -> Option | None:
    """Return how commands take a setting; None if they do not."""
    declared: Option | None = setting.metadata.get(_METADATA)
    return declared


KEY_VARIABLE: Final = "AGENTPAY_SERVER_ENCRYPTION_KEY"

PUBLIC_RATE_LIMIT: Final = 600
PUBLIC_FEE_BUDGET_SOL: Final = Decimal("0.01")
PUBLIC_ACCOUNTS_PER_DAY: Final = 10_000
PUBLIC_IDLE_SECONDS: Final = 24 * 3600
"""The defaults on mainnet, devnet and testnet; elsewhere there is no limit."""

_ON_PUBLIC_CLUSTERS: Final = "on mainnet, devnet and testnet"

UNLIMITED_SOL: Final = Decimal("Infinity")


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


def _to_sol_or_unlimited(value: Decimal | str | float) -> Decimal:
    # Infinity is the only amount that is passed as a float.
    return UNLIMITED_SOL if value == math.inf else _to_sol(value)  # type: ignore[arg-type]


def _is_count(_: object, attribute: "Attribute[int | float | None]", value: float | None) -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not (value is None or value == math.inf or is_count):
        raise ValueError(f"{attribute.name} must be at least 1, or infinity for no limit")


N = TypeVar("N", int, Decimal)


def limit_in_force(given: N | float | None, *, on_public_clusters: N, is_test_chain: bool) -> N | None:
    """Return a limit; None means no limit.

    A limit that was not given has its default on public clusters. Test chains have none, because their SOL
    has no value.
    """
    if given is None:
        return None if is_test_chain else on_public_clusters
    return None if given == math.inf else cast("N", given)


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
        rate_limit_per_minute: requests per minute and key (interface R18). None means 600 on mainnet, devnet
            and testnet, and no limit elsewhere; infinity means no limit.
        fee_budget_sol: how much SOL each account may cost the treasury in 24 hours without paying anybody, by
            work of agent keys, and as much by work that operator keys request or approve (interface F1). None
            means 0.01 on mainnet, devnet and testnet, and no limit elsewhere; infinity means no limit.
        max_accounts_per_day: how many accounts each operator may create in 24 hours, at least 1 (interface
            F4). None means 10,000 on mainnet, devnet and testnet, and no limit elsewhere; infinity means no
            limit.
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
            limit, a new connection replaces the one that has waited longest for its peer. The server
            works on at most three quarters of this number of requests of one operator.
        head_timeout_seconds: timeout for the head of a request.
        body_timeout_seconds: timeout for the body of a request, and for the peer to read a response.
        idle_timeout_seconds: how long a connection may stay open between two requests.
        serves_dashboard: whether the operator console is served at `/dashboard`.
        metrics_key: the key that `/metrics` requires, 1 to 200 visible ASCII characters; None means none.
    """

    policy_update: PolicyUpdate = field(
        default=PolicyUpdate.MERGE,
        converter=PolicyUpdate,
        metadata=option(
            "--policy-update",
            "Fields that a policy update omits: merge keeps them, replace resets them.",
        ),
    )
    onchain_memo: OnchainMemo = field(
        default=OnchainMemo.ID,
        converter=OnchainMemo,
        metadata=option(
            "--onchain-memo",
            "On-chain memo of a transfer: its id only, or full, with the caller's memo.",
        ),
    )
    settlement_wait_seconds: float = field(
        default=20.0,
        validator=Bounds(at_least=0),
        metadata=option(
            "--settlement-wait",
            "How long transfers, approvals and sessions wait for finality before they respond 503.",
        ),
    )
    approval_ttl_seconds: float = field(
        default=24 * 3600.0,
        validator=Bounds(above=0, at_most=366 * 24 * 3600),
        metadata=option("--approval-ttl", "How long a transfer waits for approval before it is rejected."),
    )
    session_idle_seconds: float | None = field(
        default=None,
        validator=Bounds(at_least=0.000001, or_none=True),
        metadata=option(
            "--session-idle",
            "How long a session may go without a charge before it is closed.",
            default=f"{PUBLIC_IDLE_SECONDS // 3600} hours {_ON_PUBLIC_CLUSTERS}; unlimited elsewhere",
        ),
    )
    session_lifetime_seconds: float | None = field(
        default=None,
        validator=Bounds(at_least=0.000001, or_none=True),
        metadata=option(
            "--session-lifetime",
            "How long a session may last before it is closed.",
            default="unlimited",
        ),
    )
    max_open_sessions: int = field(
        default=100,
        validator=Bounds(at_least=1),
        metadata=option(
            "--max-open-sessions", "Largest number of unsettled sessions per account.", metavar="COUNT"
        ),
    )
    min_session_cap_usdc: Decimal = field(
        default=Decimal("0.01"),
        converter=to_decimal,
        validator=Bounds(at_least=Decimal("0.000001")),
        metadata=option("--min-session-cap", "Smallest cap of a session."),
    )
    treasury_low_sol: Decimal = field(
        default=Decimal("0.1"),
        converter=_to_sol,
        validator=Bounds(at_least=0),
        metadata=option(
            "--treasury-low",
            "Log a warning when the treasury, which pays fees and rent, holds less than this.",
        ),
    )
    rate_limit_per_minute: int | float | None = field(
        default=None,
        validator=_is_count,
        metadata=option(
            "--rate-limit",
            "Requests per minute and key, or none for no limit.",
            metavar="PER_MINUTE",
            default=f"{PUBLIC_RATE_LIMIT} {_ON_PUBLIC_CLUSTERS}; none elsewhere",
        ),
    )
    fee_budget_sol: Decimal | None = field(
        default=None,
        converter=converters.optional(_to_sol_or_unlimited),
        validator=Bounds(at_least=0, or_none=True),
        metadata=option(
            "--fee-budget",
            "What each account may cost the treasury in 24 hours without paying anybody, or none for no "
            "limit.",
            default=f"{PUBLIC_FEE_BUDGET_SOL} {_ON_PUBLIC_CLUSTERS}; none elsewhere",
        ),
    )
    max_accounts_per_day: int | float | None = field(
        default=None,
        validator=_is_count,
        metadata=option(
            "--max-accounts-per-day",
            "Accounts that each operator may create in 24 hours, or none for no limit.",
            metavar="COUNT",
            default=f"{PUBLIC_ACCOUNTS_PER_DAY} {_ON_PUBLIC_CLUSTERS}; none elsewhere",
        ),
    )
    encryption_key: bytes | None = field(
        default=None,
        repr=False,
        validator=validators.optional(validators.and_(validators.min_len(32), validators.max_len(32))),
    )
    shutdown_seconds: float = field(
        default=5.0,
        validator=Bounds(at_least=0),
        metadata=option(
            "--shutdown-wait",
            "How long requests and transfers in progress may continue after SIGTERM or SIGINT.",
        ),
    )
    ready_lag_seconds: float = field(default=30.0, validator=Bounds(above=0))
    max_connections: int = field(
        default=1000,
        validator=Bounds(at_least=1),
        metadata=option("--max-connections", "Largest number of open connections.", metavar="N"),
    )
    head_timeout_seconds: float = field(default=10.0, validator=Bounds(above=0))
    body_timeout_seconds: float = field(default=30.0, validator=Bounds(above=0))
    idle_timeout_seconds: float = field(
        default=10.0,
        validator=Bounds(above=0),
        metadata=option("--idle-timeout", "How long a connection may stay open between two requests."),
    )
    serves_dashboard: bool = field(
        default=True,
        metadata=option("--no-dashboard", "Do not serve the operator console at /dashboard."),
    )
    metrics_key: str | None = field(
        default=None,
        repr=False,
        converter=converters.optional(checked_metrics_key),
        metadata=option(
            "--metrics-key",
            "Key that GET /metrics requires, as Authorization: Bearer KEY; 1 to 200 visible ASCII "
            "characters.",
            variable="AGENTPAY_SERVER_METRICS_KEY",
            metavar="KEY",
            default="no key",
            is_secret=True,
        ),
    )


DATABASE_SCHEMA: Final = "agentpay"
"""The default PostgreSQL schema for all tables."""

_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)


def check_database_schema(name: str) -> str:
    """Return the name if it is a valid schema name.

    Names that need quotes in SQL are invalid, so that administrators can type the rest.

    Raises:
        ValueError: the name is not valid.
    """
    if not _SCHEMA_NAME.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
        raise ValueError(
            f"{name!r} cannot be the database schema: use up to 63 lower-case letters, digits and "
            "underscores, not starting with a digit or pg_"
        )
    return name
