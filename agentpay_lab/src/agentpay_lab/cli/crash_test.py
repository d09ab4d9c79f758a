"""`agentpay-lab crash-test`: kill servers and agents while hostile sellers are paid, and count."""

import secrets
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from attrs import fields

from agentpay.cli.commands import Column
from agentpay.cli.options import IS_VISIBLE, Seconds, takes_json
from agentpay.cli.output import Output

if TYPE_CHECKING:
    from agentpay_lab.crash_test.orders import TrialReport

_SEEDS: Final = 1_000_000
_SECONDS: Final = 30.0
_COMMAND_SECONDS: Final = 60.0
_AGENTS: Final = 4
_PURCHASES_PER_SECOND: Final = 4
_MOST_ORDERS: Final = 10_000
_ADAPTERS: Final = {
    "python": "payer.py",
    "shell": "payer.sh",
    "typescript": "payer.mjs",
    "x402-python": "wallets/x402_python.py",
    "x402-fetch": "wallets/x402_fetch.mjs",
    "pympp": "wallets/pympp_client.py",
}
"""The first three use the service; the others have a wallet of their own."""


@click.command("crash-test")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]")
@click.option(
    "--adapter",
    type=click.Choice(list(_ADAPTERS)),
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, name: _print_adapter(context, name),
    help="Print a payer to start from, for COMMAND, and exit.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also write the report as one HTML page.",
)
@click.option(
    "--for",
    "seconds",
    type=Seconds(min_open=True),
    metavar="SECONDS",
    help="How long agents buy and processes are killed; then every payment is awaited, for about 30 seconds. "
    "With COMMAND: how long the trial takes, unless it fails.  [default: 30, with COMMAND 60]",
)
@click.option("--seed", type=click.IntRange(min=0), help="Repeat the sellers and the kills of another run.")
@click.option(
    "--agents",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Agents that buy at the same time.  [default: 4, with COMMAND 1]",
)
@click.option(
    "--purchases",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop early when each agent has tried N purchases.  [default: unlimited]",
)
@click.option(
    "--servers",
    type=click.IntRange(1, 8),
    help="Server processes. More than one needs --database-url.  [default: 2 with it, else 1]",
)
@click.option(
    "--database-url",
    envvar="AGENTPAY_CRASH_TEST_DATABASE_URL",
    show_envvar=True,
    metavar="URL",
    help=f"Empty PostgreSQL database to use instead of an SQLite file. {IS_VISIBLE}",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Keep data and logs in this new directory.",
)
@click.option(
    "--protocol",
    "protocols",
    type=click.Choice(["x402_v2", "x402_v1", "mpp", "mcp", "session", "upto"]),
    multiple=True,
    help="With COMMAND: how the sellers are paid. Repeatable.  [default: x402_v2 and mpp]",
)
@takes_json
def crash_test(
    *,
    command: tuple[str, ...],
    html: Path | None,
    seconds: float | None,
    seed: int | None,
    agents: int | None,
    purchases: int | None,
    servers: int | None,
    database_url: str | None,
    keep: Path | None,
    protocols: tuple[str, ...],
    is_json: bool,
) -> None:
    """Kill servers and agents while hostile sellers are paid, then count payments on the chain.

    Agent processes buy from sellers that lose replies, fail after settling, ask twice, hold payments back and
    lie about their terms. Each is told what to buy in lines of JSON, killed, started again and asked again.
    Payments are counted on the chain, for each order. Everything runs on this machine; no money is real.

    With COMMAND, the agent is your own payer, in any language.

    Without it, the agents are the adapter `python`. Servers are killed too, and one account pays, under a
    daily limit that is smaller than what the agents want to buy.

    The exit code is 1 if an order was paid twice, too much or by mistake, or fewer than ten orders were paid
    by COMMAND, because that proves little. Without COMMAND also if the limit was exceeded, nothing was paid,
    a payment has no outcome at the end, or chain and books differ for any order: each must have landed once
    or never, for its price, as the books say.
    """
    output = Output(is_json=is_json)
    if protocols and not command:
        raise click.UsageError(
            "--protocol needs COMMAND: the agents of this test buy in every exact protocol."
        )
    if html is not None and not html.absolute().parent.is_dir():
        raise click.UsageError(f"--html: {html.parent} is not a directory.")
    count = servers if servers is not None else (1 if database_url is None else 2)
    if count > 1 and database_url is None:
        raise click.UsageError("several servers need one PostgreSQL database: pass --database-url.")
    seed = secrets.randbelow(_SEEDS) if seed is None else seed
    if command:
        seconds, agents = seconds or _COMMAND_SECONDS, agents or 1
        protocols, most = protocols or ("x402_v2", "mpp"), _MOST_ORDERS
    else:
        seconds, agents = seconds or _SECONDS, agents or _AGENTS
        protocols = ("x402_v2", "x402_v1", "mpp")
        most = max(int(seconds * _PURCHASES_PER_SECOND / agents), 1)
    # Imported late: loading the server takes longer than reporting a usage error.
    from agentpay_lab.crash_test.orders import TrialPlan, TrialProtocol  # noqa: PLC0415
    from agentpay_lab.crash_test.pages import page_of, verdict_of  # noqa: PLC0415
    from agentpay_lab.crash_test.payer import PayerError  # noqa: PLC0415
    from agentpay_lab.crash_test.trial import Trial  # noqa: PLC0415
    from agentpay_lab.crash_test.world import CannotStartError  # noqa: PLC0415

    plan = TrialPlan(
        command=command,
        seed=seed,
        seconds=seconds,
        orders=purchases or most,
        protocols=tuple(TrialProtocol(each) for each in protocols),
        agents=agents,
        servers=count,
        database_url=database_url,
        keep=keep,
    )
    try:
        with output.progress("Running") as say:
            report = Trial(plan, say).run()
    except (CannotStartError, PayerError) as error:
        raise click.ClickException(str(error)) from None
    if html is not None:
        try:
            html.write_text(page_of(report), "utf-8")
        except OSError as error:
            raise click.ClickException(f"cannot write {html}: {error.strerror or error}") from None
    if output.is_json:
        verdict = verdict_of(report)
        output.document({"seed": seed, "has_passed": report.has_passed, "verdict": verdict, "report": report})
    else:
        _print(output, report)
    if not report.has_passed:
        raise SystemExit(1)


def _print(output: Output, report: "TrialReport") -> None:
    from agentpay_lab.crash_test.pages import SellerRow, lines_of_trial, rows_of  # noqa: PLC0415 - as above

    if report.reconciliation is not None:
        columns = [Column(each, attrgetter(each)) for each in (field.name for field in fields(SellerRow))]
        output.items(list(rows_of(report)), columns, empty="No purchases.")
    for line in lines_of_trial(report):
        output.line(line)


def _print_adapter(context: click.Context, name: str | None) -> None:
    if name is None or context.resilient_parsing:
        return
    adapters = Path(__file__).parents[1] / "crash_test/adapters"
    click.echo((adapters / _ADAPTERS[name]).read_text("utf-8"), nl=False)
    context.exit()
