"""`agentpay-server trigger`: causing an event by real operations, and printing it."""

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
from agentpay_server.clients import Sandbox
from agentpay_server.testkit.situations.triggers import CannotHappenError, Stage, Trace, caused, new_account

_PATIENCE_SECONDS: Final = 10.0
_LOOK_EVERY_SECONDS: Final = 0.05


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
            stage = Stage(server, account_id or new_account(server, event_type, amount), amount, say)
            known = {each.id for each in _newest(server, event_type, stage.account_id)}
            with caused(event_type, stage) as trace:
                say(f"Waiting for {event}")
                happened = _awaited(server, event_type, stage.account_id, trace, known)
    except CannotHappenError as error:
        raise CommandRefusedError(f"{error}.", output, error="cannot_happen") from None
    if happened is None:
        raise CommandRefusedError(
            f"{event} did not occur within {_PATIENCE_SECONDS:g} s, but still may: watch for it with "
            f"agentpay listen.",
            output,
            error="not_seen",
        )
    output.result(happened, "Event")


def _print_types(context: click.Context) -> None:
    for event_type in EVENTS:
        click.echo(event_type)
    context.exit()


def _awaited(
    server: AgentPay, event_type: EventType, account_id: str, trace: Trace, known: set[str]
) -> AnyEvent | None:
    """Poll for the event, which some stores write shortly after the response."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        for event in _newest(server, event_type, account_id):
            if event.id not in known and event.to_dict()["data"].get(trace.field) == trace.value:
                return event
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_EVERY_SECONDS)


def _newest(server: AgentPay, event_type: EventType, account_id: str) -> tuple[AnyEvent, ...]:
    return server.events.list(type=event_type, account_id=account_id, limit=100).data
