"""`agentpay status`: one screen that says whether all is well, for people and for monitors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from agentpay.cli import NEEDS_ATTENTION
from agentpay.cli.options import takes_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentpay import AgentPay
    from agentpay.cli.output import Output
    from agentpay.contract.ext.console import ConsoleSummary

_LAMPORTS: Final = 1_000_000_000


@click.command()
@takes_server
def status(*, server: AgentPay, output: Output) -> None:
    """Show whether all is well, and what needs attention.

    The exit code is 0 if all is well, and 7 if the chain does not respond, the treasury is low or lasts less
    than 7 days, the server is not ready, or accounts are suspended, deliveries undelivered or settlements
    stuck. Paused accounts and transfers that wait for approval are shown, but are not wrong. With --quiet,
    prints only what needs attention.
    """
    from attrs import evolve

    with output.progress("Reading"):
        summary = server.console.summary()
        wrong = summary.needs_attention or _not_ready(server)
    if output.is_json:
        output.record(evolve(summary, needs_attention=wrong), "Status")
    elif output.is_quiet:
        output.lines([each] for each in wrong)
    else:
        output.lines(_lines(server.base_url, summary, wrong))
        for part in wrong:
            output.note(_ADVICE.get(part, f"{part} needs attention."))
    if wrong:
        click.get_current_context().exit(NEEDS_ATTENTION)


def _not_ready(server: AgentPay) -> tuple[str, ...]:
    """Return `readiness` if `/readyz` is not 200: the database may be read, but not written to."""
    from agentpay import errors

    try:
        server.request("GET", "/readyz", max_retries=0)
    except errors.ServerError:
        return ("readiness",)
    except errors.APIError:
        # A proxy may not serve it.
        return ()
    return ()


def _lines(url: str, summary: ConsoleSummary, wrong: tuple[str, ...]) -> Iterator[Sequence[object]]:
    from rich.text import Text

    verdict = Text("needs attention", style="red") if wrong else Text("all is well", style="green")
    yield f"{summary.operator_name} at {url}:", verdict
    accounts = f"{summary.accounts}, {summary.suspended_accounts} suspended, {summary.paused_accounts} paused"
    deliveries = f"{summary.undelivered_deliveries} undelivered, {summary.retrying_deliveries} being retried"
    for name, text, part in (
        ("chain", "responds" if summary.is_chain_reachable else "does not respond", "chain"),
        ("treasury", _treasury(summary), "treasury"),
        ("accounts", accounts, "suspended_accounts"),
        ("approvals", f"{summary.pending_approvals} waiting", None),
        ("deliveries", deliveries, "undelivered_deliveries"),
        ("sessions", f"{summary.open_sessions} open", None),
        ("stuck", f"{summary.stuck_settlements} settlements", "stuck_settlements"),
    ):
        yield Text(f"{name:<10}", style="dim"), Text(text, style="red" if part in wrong else "")


def _treasury(summary: ConsoleSummary) -> str:
    if summary.treasury_lamports is None:
        return "unknown"
    burn, days = summary.treasury_burn_lamports, summary.treasury_days_left
    spent = "its use is not measured yet" if burn is None else f"uses {_sol(burn)} SOL a day"
    left = "" if days is None else f", {days} days left"
    return f"{_sol(summary.treasury_lamports)} SOL, {spent}{left}"


def _sol(lamports: int) -> str:
    from decimal import Decimal

    from agentpay.cli.tables import amount

    return amount(Decimal(lamports) / _LAMPORTS)


_ADVICE: Final = {
    "chain": "The chain does not respond: nothing settles until it does.",
    "treasury": "Send SOL to the treasury: without it nothing new is paid.",
    "clock": "The server's clock differs from the database's: correct it.",
    "workers": "The server's work is late: see its log.",
    "readiness": "The server is not ready: GET /readyz says why.",
    "suspended_accounts": "agentpay accounts list shows suspended accounts, and agentpay accounts get why.",
    "undelivered_deliveries": "agentpay deliveries list --status undelivered shows what was given up.",
    "stuck_settlements": "agentpay sessions list --status closing --wide shows why a session is stuck, and "
    "agentpay transfers list --status submitted what is in flight.",
}
