"""Fits a scene of 1 USDC to an amount, and to an account that exists and whose policy stays as it is."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, TypeVar

import attrs
from attrs import evolve

from agentpay.contract import identifiers
from agentpay.contract.console import AccountDetails
from agentpay.contract.usdc import MICRO, from_micro, to_micro
from agentpay_server.testkit.scenes.document import (
    Scene,
    SceneAccount,
    SceneError,
    ScenePolicy,
    SceneStep,
    SceneWebhook,
    StepStatus,
)

T = TypeVar("T", SceneAccount, ScenePolicy, SceneWebhook, SceneStep)

_LEAST: Final = from_micro(1)


def scaled(scene: Scene, amount_usdc: Decimal) -> Scene:
    """Return a scene whose amounts, written for 1 USDC, are for another one; parts of a micro-USDC up."""
    factor = to_micro(amount_usdc)

    def of(part: T) -> T:
        amounts: dict[str, Any] = {
            each.name: from_micro(-(-to_micro(value) * factor // MICRO))
            for each in attrs.fields(type(part))
            if isinstance(value := getattr(part, each.name), Decimal)
        }
        return evolve(part, **amounts)

    return evolve(
        scene,
        accounts={
            name: evolve(of(account), policy=of(account.policy)) for name, account in scene.accounts.items()
        },
        webhooks=tuple(of(webhook) for webhook in scene.webhooks),
        history=tuple(of(step) for step in scene.history),
    )


def fitted(
    scene: Scene,
    account: AccountDetails,
    *,
    balance_usdc: Decimal,
    thresholds_usdc: Sequence[Decimal],
    amount_usdc: Decimal | None = None,
) -> Scene:
    """Return a scene of one account, written for 1 USDC, that can happen to an existing account.

    It pays a payee and in a category that the policy allows.

    Args:
        scene: the scene; its history is one step, by the only account.
        account: the existing account.
        balance_usdc: its balance.
        thresholds_usdc: low-balance thresholds that webhooks have for the account.
        amount_usdc: what to pay instead of 1 USDC, or of less if the policy allows less.

    Raises:
        SceneError: the policy does not let it happen.
    """
    (step,) = scene.history
    if step.status is StepStatus.PENDING_APPROVAL:
        amount_usdc = _escalated(account, amount_usdc)
    elif step.status is StepStatus.REJECTED:
        # More than the balance, so that the transfer is rejected even if the policy allows it.
        amount_usdc = balance_usdc + (amount_usdc or 1)
    elif scene.webhooks and thresholds_usdc:
        return _dropping(scene, account, balance_usdc, sorted(thresholds_usdc))
    else:
        amount_usdc = _settled(account, amount_usdc, step)
    scene = scaled(scene, amount_usdc)
    before_usdc = max(balance_usdc, amount_usdc)
    webhooks = tuple(evolve(each, low_balance_threshold_usdc=before_usdc) for each in scene.webhooks)
    return evolve(scene, webhooks=webhooks, history=(_permitted(scene.history[0], account),))


def _escalated(account: AccountDetails, amount_usdc: Decimal | None) -> Decimal:
    threshold = account.policy.escalation_threshold
    if threshold is None:
        raise SceneError(
            f"the policy of {account.account_id} has no escalation_threshold; set one, or omit --account to "
            "use a new account"
        )
    if amount_usdc is not None and amount_usdc < threshold:
        raise SceneError(
            f"escalation_threshold of {account.account_id} is {threshold} USDC; pass at least that as "
            "--amount, or omit it"
        )
    return amount_usdc or max(threshold, _LEAST)


def _settled(account: AccountDetails, amount_usdc: Decimal | None, step: SceneStep) -> Decimal:
    policy = account.policy
    threshold = policy.escalation_threshold
    if amount_usdc is None:
        limits = [Decimal(1), policy.max_single_transfer, account.remaining_usdc]
        limits.append(None if threshold is None else threshold - _LEAST)
        # If the policy allows nothing, request the smallest amount, and let the server explain the refusal.
        amount_usdc = max(min(limit for limit in limits if limit is not None), _LEAST)
    if step.amount is not None and threshold is not None and amount_usdc >= threshold:
        raise SceneError(
            f"the policy of {account.account_id} requires approval from {threshold} USDC on; pass a smaller "
            "--amount, or omit it"
        )
    return amount_usdc


def _dropping(
    scene: Scene, account: AccountDetails, balance_usdc: Decimal, thresholds_usdc: Sequence[Decimal]
) -> Scene:
    """Drop below the highest threshold that the balance reaches, or, funded first, below the least."""
    reached = [threshold for threshold in thresholds_usdc if threshold <= balance_usdc]
    threshold = reached[-1] if reached else thresholds_usdc[0]
    amount_usdc = max(balance_usdc, threshold) - threshold + _LEAST
    ((name, own),) = scene.accounts.items()
    return evolve(
        scene,
        accounts={name: evolve(own, balance_usdc=threshold - _LEAST)},
        webhooks=(),
        history=(_permitted(evolve(scene.history[0], amount=amount_usdc), account),),
    )


def _permitted(step: SceneStep, account: AccountDetails) -> SceneStep:
    policy = account.policy
    if policy.categories:
        step = evolve(step, category=policy.categories[0])
    if policy.allowed_counterparties is None:
        return step
    own = (account.account_id, account.chain_address, account.usdc_token_account)
    # Prefer accounts: an address may be a wallet, which may have no token account to pay.
    others = sorted(
        (payee for payee in policy.allowed_counterparties if payee not in own),
        key=lambda payee: not payee.startswith(identifiers.ACCOUNT),
    )
    if not others:
        raise SceneError(f"allowed_counterparties of {account.account_id} names no payee; add one")
    return evolve(step, to=others[0])
