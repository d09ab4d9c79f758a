"""`agentpay-lab receiver-test`: deliver to a webhook receiver what the service and attackers deliver."""

import asyncio
import secrets

import click

from agentpay.cli.options import IS_VISIBLE, Seconds, takes_json
from agentpay.cli.output import Output

_SEEDS = 1_000_000


@click.command("receiver-test")
@click.argument("url", metavar="URL")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]")
@click.option(
    "--acted",
    required=True,
    metavar="URL|FILE",
    help="Where the receiver shows what it has acted on: a text with an event's identifier for each "
    "time that it acted.",
)
@click.option(
    "--secret",
    envvar="AGENTPAY_WEBHOOK_SECRET",
    show_envvar=True,
    help=f"The receiver's secret. With COMMAND, a new one by default. {IS_VISIBLE}",
)
@click.option(
    "--old-secret",
    metavar="SECRET",
    help="A secret that was rotated out, which the receiver must refuse. Without it, this is not checked.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Repeat the events of another run.")
@click.option(
    "--wait",
    "wait_seconds",
    type=Seconds(min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the receiver may take to act.",
)
@click.option(
    "--kills",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="How often the receiver is killed and started again by COMMAND.",
)
@takes_json
def receiver_test(
    *,
    url: str,
    command: tuple[str, ...],
    acted: str,
    secret: str | None,
    old_secret: str | None,
    seed: int | None,
    wait_seconds: float,
    kills: int,
    is_json: bool,
) -> None:
    """Deliver genuine, forged, late, reordered, repeated, malformed and huge webhook events to a receiver.

    URL is where it accepts deliveries. It must act on each genuine event exactly once, and on nothing else.
    COMMAND starts it, with its secret in AGENTPAY_WEBHOOK_SECRET; then it is also killed around its response
    and started again.

    The exit code is 1 if the receiver missed anything.
    """
    output = Output(is_json=is_json)
    if secret is None and not command:
        raise click.UsageError("pass the receiver's --secret, or the COMMAND that starts it.")
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"URL must begin with http:// or https://, not {url!r}.")
    # Imported late, as by the other commands.
    from agentpay_lab.receiver_test.run import ReceiverError, ReceiverTest, ReceiverTestPlan, shown_lines  # noqa: PLC0415

    plan = ReceiverTestPlan(
        url=url,
        acted=acted,
        secret=secret or f"whsec_{secrets.token_hex(20)}",
        old_secret=old_secret,
        command=command,
        seed=secrets.randbelow(_SEEDS) if seed is None else seed,
        wait_seconds=wait_seconds,
        kills=kills,
    )
    try:
        with output.progress("Testing") as say:
            report = asyncio.run(ReceiverTest(plan, say).run())
    except ReceiverError as error:
        raise click.ClickException(str(error)) from None
    if output.is_json:
        output.document({"seed": report.seed, "has_passed": report.has_passed, "results": report.results})
    else:
        for line in shown_lines(report):
            output.line(line)
    if not report.has_passed:
        raise SystemExit(1)
