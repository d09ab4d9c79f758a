"""`agentpay-lab crash-test`: kill servers and agents while hostile sellers are paid, and count."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from agentpay.cli.columns import Column
from agentpay.cli.options import takes_json
from agentpay.cli.output import Output
from agentpay.cli.values import Seconds
from agentpay.cli.variables import IS_VISIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentpay_lab.crash_test.run import CrashTestVerdict

_SEEDS: Final = 1_000_000
_SECONDS: Final = 30.0
_TRIAL_SECONDS: Final = 60.0
_PURCHASES_PER_SECOND: Final = 4
_MOST_ORDERS: Final = 10_000
_ADAPTERS: Final = {
    "python": "payer.py",
    "shell": "payer.sh",
    "typescript": "payer.ts",
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
    help="With COMMAND: also write the report as one HTML page.",
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
@click.option("--agents", type=click.IntRange(1, 64), default=4, show_default=True, help="Agent processes.")
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
    help="Keep data, logs and journals in this new directory.",
)
@click.option(
    "--protocol",
    "protocols",
    type=click.Choice(["x402_v2", "x402_v1", "mpp", "session", "upto"]),
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
    agents: int,
    purchases: int | None,
    servers: int | None,
    database_url: str | None,
    keep: Path | None,
    protocols: tuple[str, ...],
    is_json: bool,
) -> None:
    """Kill servers and agents while hostile sellers are paid, then count payments on the chain.

    Agent processes buy from sellers that lose replies, fail after settling, ask twice, hold payments back and
    lie about their terms. Servers and agents are killed in between. One account pays, under a daily limit
    that is smaller than what the agents want to buy. Everything runs on this machine; no money is real.

    With COMMAND, your own payer is on trial, in any language: it is started, told what to buy in lines of
    JSON, killed, started again and asked again. Payments are counted on the chain, for each order. The exit
    code is 1 also if fewer than ten orders were paid, because that proves little.

    The exit code is 1 if a purchase was paid twice, the limit was exceeded, nothing was paid, a
    payment has no outcome at the end, or chain and books differ for any purchase: each must have landed
    once or never, for its price, as the books say.
    """
    output = Output(is_json=is_json)
    seed = secrets.randbelow(_SEEDS) if seed is None else seed
    if command:
        _try_payer(
            output,
            command,
            seed=seed,
            seconds=_TRIAL_SECONDS if seconds is None else seconds,
            purchases=purchases,
            protocols=protocols or ("x402_v2", "mpp"),
            html=html,
        )
        return
    if protocols:
        raise click.UsageError(
            "--protocol needs COMMAND: the agents of this test buy in every exact protocol."
        )
    seconds = _SECONDS if seconds is None else seconds
    count = servers if servers is not None else (1 if database_url is None else 2)
    if count > 1 and database_url is None:
        raise click.UsageError("several servers need one PostgreSQL database: pass --database-url.")
    # Imported late: loading the server takes longer than reporting a usage error.
    from agentpay_lab.crash_test.run import CrashTest, CrashTestPlan  # noqa: PLC0415
    from agentpay_lab.crash_test.servers import CannotStartError  # noqa: PLC0415

    plan = CrashTestPlan(
        seed=seed,
        seconds=seconds,
        agents=agents,
        purchases=purchases or max(int(seconds * _PURCHASES_PER_SECOND / agents), 1),
        servers=count,
        database_url=database_url,
        keep=keep,
    )
    try:
        with output.progress("Running") as say:
            verdict = CrashTest(plan, say).run()
    except CannotStartError as error:
        raise click.ClickException(str(error)) from None
    _report(output, verdict, plan.seed)
    if not verdict.has_passed:
        raise SystemExit(1)


def _print_adapter(context: click.Context, name: str | None) -> None:
    if name is None or context.resilient_parsing:
        return
    adapters = Path(__file__).parents[1] / "crash_test/adapters"
    click.echo((adapters / _ADAPTERS[name]).read_text("utf-8"), nl=False)
    context.exit()


def _try_payer(
    output: Output,
    command: tuple[str, ...],
    *,
    seed: int,
    seconds: float,
    purchases: int | None,
    protocols: "Sequence[str]",
    html: Path | None,
) -> None:
    from agentpay_lab.crash_test.orders import TrialProtocol  # noqa: PLC0415
    from agentpay_lab.crash_test.pages import lines_of_trial, page_of, verdict_of  # noqa: PLC0415 - as above
    from agentpay_lab.crash_test.payer import PayerError  # noqa: PLC0415
    from agentpay_lab.crash_test.servers import CannotStartError  # noqa: PLC0415
    from agentpay_lab.crash_test.trial import Trial, TrialPlan  # noqa: PLC0415

    if html is not None and not html.absolute().parent.is_dir():
        raise click.UsageError(f"--html: {html.parent} is not a directory.")
    plan = TrialPlan(
        command=command,
        seed=seed,
        seconds=seconds,
        orders=purchases or _MOST_ORDERS,
        protocols=tuple(TrialProtocol(each) for each in protocols),
    )
    try:
        with output.progress("Trying") as say:
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
        for line in lines_of_trial(report):
            output.line(line)
    if not report.has_passed:
        raise SystemExit(1)


def _report(output: Output, verdict: "CrashTestVerdict", seed: int) -> None:
    if output.is_json:
        output.document({"seed": seed, "has_passed": verdict.has_passed, "verdict": verdict})
        return
    columns = ("purchases", "asked", "served", "refused", "settled", "twice")

    def total(name: str) -> int:
        return sum(getattr(line, name) for line in verdict.lines)

    output.items(
        verdict.lines,
        [Column("seller", lambda line: line.mode), *(Column(name, _column(name)) for name in columns)],
        empty="No purchases.",
    )
    output.line(
        f"{total('purchases')} purchases, asked {total('asked')} times, {total('settled')} settled, "
        f"{total('twice')} paid twice"
    )
    output.line(
        f"{verdict.settled_usdc} USDC paid, limit {verdict.cap_usdc} USDC, {verdict.over_cap_usdc} over it"
    )
    output.line(
        f"{verdict.kills} processes killed in {verdict.seconds} s; {verdict.undecided} payments "
        f"undecided, {len(verdict.differences)} differences between chain and books"
    )
    for difference in verdict.differences:
        output.line(f"  {difference}")
    for reason in verdict.reasons:
        output.line("FAILED:", reason)
    output.line("passed" if verdict.has_passed else "FAILED", f"(seed {seed})")


def _column(name: str) -> "Callable[[object], object]":
    def value(line: object) -> object:
        return getattr(line, name)

    return value
