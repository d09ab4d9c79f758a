"""`agentpay-server trigger`: building the scene of an event, and printing the event."""

import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, TypeVar, cast

import attrs
import click
from attrs import evolve

from agentpay import AgentPay
from agentpay.cli.options import USDC, account_option, takes_server
from agentpay.cli.output import CommandRefusedError, Output
from agentpay.contract import identifiers
from agentpay.contract.choices import EventType
from agentpay.contract.events import EVENTS, AnyEvent
from agentpay.contract.ext.console import AccountDetails
from agentpay.contract.ext.sessions import Session
from agentpay.contract.usdc import MICRO, from_micro, to_micro
from agentpay.errors import AgentPayError
from agentpay_server.clients import Sandbox
from agentpay_server.plugins.scenes.building import BuiltScene, build
from agentpay_server.plugins.scenes.document import (
    Scene,
    SceneAccount,
    SceneError,
    ScenePolicy,
    SceneStep,
    SceneWebhook,
    StepStatus,
    bundled_scene,
)

_PATIENCE_SECONDS: Final = 10.0
_LOOK_EVERY_SECONDS: Final = 0.05
_AGENT: Final = "agent"
"""The account in the scenes of the events."""
_LEAST: Final = from_micro(1)

T = TypeVar("T", SceneAccount, ScenePolicy, SceneWebhook, SceneStep)


@click.command()
@click.argument("event", type=click.Choice(list(EVENTS)), metavar="EVENT")
@account_option("Account that the event is about. Default: a new account.")
@click.option(
    "--amount",
    type=USDC,
    help="Amount to pay, or cap of the session. Default: 1, or less if the policy allows less.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, is_given: _print_types(context) if is_given else None,
    help="Print the events that can be caused, and exit.",
)
@takes_server
def trigger(
    *, server: AgentPay, output: Output, event: str, account_id: str | None, amount: Decimal | None
) -> None:
    """Cause an event by real operations, on a test chain.

    EVENT is one of the types that --list prints.

    Creates test USDC, a recipient and a webhook where needed. Never changes the account's policy, and fails
    if the policy forbids the payment. Preceding events occur too, and a session is closed at the end.
    """
    event_type = cast("EventType", event)
    # Fails on a public cluster, before any change.
    Sandbox(server).clock.now()
    try:
        with output.progress(f"Causing {event}") as say:
            known, built = _caused(server, event_type, account_id, amount)
            say(f"Waiting for {event}")
            try:
                happened = _awaited(server, event_type, built, known)
            finally:
                for webhook_id in built.webhook_ids:
                    server.webhooks.delete(webhook_id)
    except SceneError as error:
        if isinstance(error.__cause__, AgentPayError):
            raise error.__cause__ from None
        raise CommandRefusedError(f"{error}.", output, error="cannot_happen") from None
    if happened is None:
        raise CommandRefusedError(
            f"{event} did not occur within {_PATIENCE_SECONDS:g} s, but still may: watch for it with "
            f"agentpay listen.",
            output,
            error="not_seen",
        )
    output.result(happened, "Event")


def _caused(
    server: AgentPay, event_type: EventType, account_id: str | None, amount_usdc: Decimal | None
) -> tuple[set[str], BuiltScene]:
    """Build the event's scene, on the account if one is given; return it, and the events before."""
    scene = bundled_scene(EVENTS[event_type].cause or event_type)
    if account_id is None:
        return set(), build(server, _scaled(scene, amount_usdc or Decimal(1)))
    scene = _fitted(
        scene,
        server.console.details(account_id),
        balance_usdc=server.accounts.balance(account_id).balance_usdc,
        thresholds_usdc=_thresholds(server, account_id),
        amount_usdc=amount_usdc,
    )
    known = {each.id for each in _newest(server, event_type, account_id)}
    return known, build(server, scene, existing={_AGENT: account_id})


def _thresholds(server: AgentPay, account_id: str) -> list[Decimal]:
    return [
        webhook.low_balance_threshold_usdc
        for webhook in server.webhooks.list(limit=100)
        if webhook.low_balance_threshold_usdc
        and "balance.low_threshold" in webhook.events
        and (not webhook.account_ids or account_id in webhook.account_ids)
    ]


def _print_types(context: click.Context) -> None:
    for event_type in EVENTS:
        click.echo(event_type)
    context.exit()


def _awaited(server: AgentPay, event_type: EventType, built: BuiltScene, known: set[str]) -> AnyEvent | None:
    """Poll for the event, which some stores write shortly after the response."""
    account_id = built.accounts[_AGENT]
    (step,) = built.steps
    subjects = {account_id}
    if step is not None and event_type != "balance.low_threshold":
        subjects = {step.session_id if isinstance(step, Session) else step.transfer_id}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        for event in _newest(server, event_type, account_id):
            if event.id not in known and subjects & set(map(str, event.to_dict()["data"].values())):
                return event
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_EVERY_SECONDS)


def _newest(server: AgentPay, event_type: EventType, account_id: str) -> tuple[AnyEvent, ...]:
    return server.events.list(type=event_type, account_id=account_id, limit=100).data


def _scaled(scene: Scene, amount_usdc: Decimal) -> Scene:
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


def _fitted(
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
    scene = _scaled(scene, amount_usdc)
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
