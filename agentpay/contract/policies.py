"""Spending policies: the Policy object, the policy of one account, and its change (interface PO1, PO2)."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import ClassVar, Final, TypedDict

import attrs
from attrs import frozen

from agentpay.contract.fields import Category, Counterparty
from agentpay.contract.models import Model
from agentpay.contract.requests import UNSET, Request, UnsetType
from agentpay.contract.usdc import UsdcNumber


@frozen(kw_only=True)
class Policy(Model):
    """The spending rules of an account, checked for every transfer.

    Attributes:
        max_single_transfer: maximum USDC per transfer or session charge; None means no limit, 0 blocks all.
        max_daily_spend: maximum USDC in a rolling 24-hour window, over transfers and sessions; None means no
            limit.
        allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an empty
            list none.
        categories: allowed spend categories; None allows all, an empty list none.
        require_memo: refuse transfers without a memo.
        escalation_threshold: USDC from which a transfer needs an operator's approval; None means never.
        paused: block every outgoing transfer.
    """

    _example: ClassVar = {
        "max_single_transfer": 25,
        "max_daily_spend": 100,
        "allowed_counterparties": None,
        "categories": ["inference", "data"],
        "require_memo": False,
        "escalation_threshold": 50,
    }

    max_single_transfer: UsdcNumber | None = None
    max_daily_spend: UsdcNumber | None = None
    allowed_counterparties: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    require_memo: bool = False
    escalation_threshold: UsdcNumber | None = None
    paused: bool = False


@frozen(kw_only=True)
class AccountPolicy(Policy):
    """The policy of one account, as `GET` and `PUT /v1/accounts/{id}/policy` return it.

    Attributes:
        account_id: the account, `acct_…`.
        updated_at: when the policy last changed, UTC.
    """

    account_id: str
    updated_at: datetime


@frozen(kw_only=True)
class PolicyChange(Request):
    """Body of `PUT /v1/accounts/{id}/policy`: any of the seven fields of a Policy. Omit the others.

    A field that is None is sent as `null`, which lifts the limit; a field that is `UNSET` is not sent.

    Attributes:
        max_single_transfer: maximum USDC per transfer or session charge; null means no limit.
        max_daily_spend: maximum USDC in a rolling 24-hour window across all transfers and session
            settlements; null means no limit.
        allowed_counterparties: allowlist of on-chain addresses or account IDs; if set, all other recipients
            are blocked; null allows all.
        categories: allowlist of spend categories; a transfer without a matching category is rejected; null
            allows all.
        require_memo: if true, transfers without a memo are rejected.
        escalation_threshold: a transfer at or above this USDC amount fires `escalation.required` before
            executing; null means never.
        paused: if true, all outgoing transfers are blocked immediately.
    """

    _example: ClassVar = {"max_daily_spend": 100, "paused": True}

    max_single_transfer: UsdcNumber | None | UnsetType = UNSET
    max_daily_spend: UsdcNumber | None | UnsetType = UNSET
    allowed_counterparties: tuple[Counterparty, ...] | None | UnsetType = UNSET
    categories: tuple[Category, ...] | None | UnsetType = UNSET
    require_memo: bool | UnsetType = UNSET
    escalation_threshold: UsdcNumber | None | UnsetType = UNSET
    paused: bool | UnsetType = UNSET

    def applied_to(self, policy: Policy) -> Policy:
        """Return `policy` with the fields of this change, as a plain `Policy`."""
        return Policy(
            **{
                name: current if (new := getattr(self, name)) is UNSET else new
                for name in POLICY_FIELDS
                for current in (getattr(policy, name),)
            }
        )


POLICY_FIELDS: Final = tuple(field.name for field in attrs.fields(Policy))

Limit = Decimal | int | str | None
"""A limit as callers may pass it: exact USDC, or None for no limit. Floats are refused."""

Names = Sequence[str] | None
"""An allowlist as callers may pass it: names; an empty list for none, None for all."""


class PolicyParams(TypedDict, total=False):
    """Arguments of `policies.update` and `policies.replace`, except the account."""

    max_single_transfer: Limit
    max_daily_spend: Limit
    allowed_counterparties: Names
    categories: Names
    require_memo: bool
    escalation_threshold: Limit
    paused: bool


PolicyParams.__module__ = "agentpay"
