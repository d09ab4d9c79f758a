"""Argument conversions that only the client can do: exact amounts, lists of names, times.

All other validation is left to the service, so that there is a single source of truth.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from agentpay._argument_types import check_body
from agentpay.contract.policies import Limit, PolicyChange
from agentpay.contract.requests import MAX_NESTING, UNSET, UnsetType
from agentpay.contract.usdc import to_decimal

Names = Sequence[str] | None
"""An allowlist: names; an empty list for none, None for all."""


def usdc(argument: str, value: Decimal | int | str) -> Decimal:
    """Convert exactly; errors name the argument.

    Raises TypeError for a float, ValueError if negative, not finite, or with more than 6 decimals.
    """
    try:
        return to_decimal(value)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("an amount of USDC", argument, 1)) from None


def limit(argument: str, value: Limit | UnsetType) -> Decimal | UnsetType | None:
    return value if value is None or value is UNSET else usdc(argument, value)


def json_object(argument: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a caller's JSON object, with floats converted to the decimals that Python prints.

    Floats are accepted only here, because none of these numbers is money. Raises TypeError without a JSON
    form, ValueError for a float that is not finite, or too deep nesting.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a mapping of strings to JSON values, not {type(value).__name__}")
    converted: dict[str, Any] = _json(argument, value, 0)
    return converted


def _json(place: str, value: object, depth: int) -> Any:  # noqa: ANN401 - a JSON value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | Decimal):
        if not math.isfinite(value):
            raise ValueError(f"{place} must be a finite number: JSON has no form for {value}")
        return Decimal(repr(value)) if isinstance(value, float) else value
    if depth == MAX_NESTING:
        raise ValueError(f"{place} nests deeper than the {MAX_NESTING} levels that a request may have")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a key of {place} must be a string, not {type(key).__name__}: {key!r:.64}")
        return {key: _json(f"{place}.{key[:64]}", item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(f"{place}[{number}]", item, depth + 1) for number, item in enumerate(value)]
    raise TypeError(
        f"{place} must be a JSON value (a string, a number, a boolean, None, a list or a mapping), not "
        f"{type(value).__name__}"
    )


def names(argument: str, value: Sequence[str]) -> tuple[str, ...]:
    """Refuse a single string, whose characters would count as names."""
    if isinstance(value, str):
        raise TypeError(f"{argument} is a list of strings, not one string: write [{value[:64]!r}]")
    return tuple(value)


def policy_change(
    *,
    max_single_transfer: Limit | UnsetType,
    max_daily_spend: Limit | UnsetType,
    allowed_counterparties: Names | UnsetType,
    categories: Names | UnsetType,
    require_memo: bool | UnsetType,
    escalation_threshold: Limit | UnsetType,
    paused: bool | UnsetType,
) -> PolicyChange:
    """Leave out arguments that are `UNSET`."""
    change = PolicyChange(
        max_single_transfer=limit("max_single_transfer", max_single_transfer),
        max_daily_spend=limit("max_daily_spend", max_daily_spend),
        allowed_counterparties=_allowlist("allowed_counterparties", allowed_counterparties),
        categories=_allowlist("categories", categories),
        require_memo=require_memo,
        escalation_threshold=limit("escalation_threshold", escalation_threshold),
        paused=paused,
    )
    check_body(change)  # before the policy is read
    return change


def _allowlist(argument: str, value: Names | UnsetType) -> tuple[str, ...] | UnsetType | None:
    return value if value is None or value is UNSET else names(argument, value)
