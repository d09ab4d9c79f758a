"""Arguments of the resources, checked where the service could not: exact amounts, lists of names, moments.

Everything that the service checks itself is left to it, so that there is one truth about what is valid.
"""

from collections.abc import Sequence
from decimal import Decimal

from agentpay.contract.policies import Limit, PolicyChange
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.contract.usdc import to_decimal

Names = Sequence[str] | None
"""What a caller may give for an allowlist: names, none of them for nobody, or None for everybody."""


def limit(value: Limit | UnsetType) -> Decimal | UnsetType | None:
    """Return a limit in USDC, exact.

    Raises:
        TypeError: a float, or another type that cannot hold USDC exactly.
        ValueError: negative, not finite, or with more than 6 decimals.
    """
    return value if value is None or value is UNSET else to_decimal(value)


def names(argument: str, value: Sequence[str]) -> tuple[str, ...]:
    """Return a list of names as a tuple.

    Raises:
        TypeError: a single string, whose characters would be taken for names.
    """
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
    """Return the change of a policy that carries what is given and not `UNSET`.

    Raises:
        TypeError: a limit is a float, or an allowlist is a single string.
        ValueError: a limit is negative, not finite, or has more than 6 decimals.
    """
    return PolicyChange(
        max_single_transfer=limit(max_single_transfer),
        max_daily_spend=limit(max_daily_spend),
        allowed_counterparties=_allowlist("allowed_counterparties", allowed_counterparties),
        categories=_allowlist("categories", categories),
        require_memo=require_memo,
        escalation_threshold=limit(escalation_threshold),
        paused=paused,
    )


def _allowlist(argument: str, value: Names | UnsetType) -> tuple[str, ...] | UnsetType | None:
    return value if value is None or value is UNSET else names(argument, value)
