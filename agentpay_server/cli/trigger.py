"""`agentpay-server trigger`: building the scene of an event, and printing the event."""

import time
from decimal import Decimal
from typing import Final, cast

import click

from agentpay import AgentPay
from agentpay.cli.connection import CommandRefusedError
from agentpay.cli.naming import find_account
from agentpay.cli.options import complete_account, takes_server
from agentpay.cli.output import Output
from agentpay.cli.values import Usdc
from agentpay.contract.choices import EventType
from agentpay.contract.events import EVENTS, AnyEvent
from agentpay.contract.sessions import Session
from agentpay.errors import AgentPayError
from agentpay_server.clients import Sandbox
from agentpay_server.testkit.scenes.building import BuiltScene, build
from agentpay_server.testkit.scenes.document import SceneError
from agentpay_server.testkit.scenes.fitting import fitted, scaled
from agentpay_server.testkit.situations.bundled import bundled_scene

_PATIENCE_SECONDS: Final = 10.0
_LOOK_EVERY_SECONDS: Final = 0.05
_AGENT: Final = "agent"
"""The account in the scenes of the events."""


@click.command()
@click.argument("event", type=click.Choice(list(EVENTS)), metavar="EVENT")
@click.option(
    "--account",
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Account that the event is about. Default: a new account.",
)
@click.option(
    "--amount",
    type=Usdc(),
    metavar="USDC",
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
    *, server: AgentPay, output: Output, event: str, account: str | None, amount: Decimal | None
) -> None:
    """Cause an event by real operations, on a test chain.

    EVENT is one of the types that --list prints.

    Creates test USDC, a recipient and a webhook where needed. Never changes the account's policy, and fails
    if the policy forbids the payment. Preceding events occur too, and a session is closed at the end.
    """
    event_type = cast("EventType", event)
    # Fails on a public cluster, before any change.
    Sandbox(server).clock.now()
    account_id = None if account is None else find_account(server, output, account)
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
    scene = bundled_scene(event_type)
    if account_id is None:
        return set(), build(server, scaled(scene, amount_usdc or Decimal(1)))
    scene = fitted(
        scene,
        server.accounts.details(account_id),
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
