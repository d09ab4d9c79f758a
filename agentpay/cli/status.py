"""`agentpay status`: one screen that says whether all is well, for people and for monitors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentpay.cli import NEEDS_ATTENTION
from agentpay.cli.commands import command

if TYPE_CHECKING:
    from agentpay import AgentPay
    from agentpay.cli.output import Output
    from agentpay.contract.ext.console import ConsoleSummary

_STUCK: Final = "agentpay sessions list --status closing, agentpay transfers list --status submitted"


def _read(client: AgentPay) -> ConsoleSummary:
    from attrs import evolve

    from agentpay import errors

    summary = client.console.summary()
    if not summary.needs_attention:
        try:
            client.request("GET", "/readyz", max_retries=0)
        except errors.ServerError:
            # Its database may be read, but not written to.
            return evolve(summary, needs_attention=("server",))
        except errors.APIError:
            # A proxy may not pass it on.
            pass
    return summary


def _print(output: Output, found: ConsoleSummary) -> None:
    from rich.text import Text

    wrong = found.needs_attention
    if output.is_json:
        output.record(found, "Status")
    elif output.is_quiet:
        output.lines([part] for part in wrong)
    else:
        verdict = Text("needs attention", style="red") if wrong else Text("all is well", style="green")
        lines: list[tuple[object, object]] = [(f"{found.operator_name}:", verdict)]
        for name, (part, text, advice) in _rows(found).items():
            shown = Text(f"{text}: {advice}", style="red") if part in wrong else text
            lines.append((Text(f"{name:<10}", style="dim"), shown))
        output.lines(lines)


def _rows(found: ConsoleSummary) -> dict[str, tuple[str, str, str]]:
    """Return by name what may need attention, how it is, and what to do then."""
    accounts = f"{found.accounts}, {found.suspended_accounts} suspended, {found.paused_accounts} paused"
    deliveries = f"{found.undelivered_deliveries} undelivered, {found.retrying_deliveries} being retried"
    rows = {
        "chain": ("chain", "responds" if found.is_chain_reachable else "does not respond", "nothing settles"),
        "treasury": ("treasury", _treasury(found), "send it SOL, or nothing new is paid"),
        "accounts": ("suspended_accounts", accounts, "agentpay accounts list"),
        "approvals": ("", f"{found.pending_approvals} waiting", ""),
        "deliveries": ("undelivered_deliveries", deliveries, "agentpay deliveries list --status undelivered"),
        "sessions": ("", f"{found.open_sessions} open", ""),
        "stuck": ("stuck_settlements", f"{found.stuck_settlements} settlements", _STUCK),
    }
    others = set(found.needs_attention) - {part for part, _, _ in rows.values()}
    return rows | {part: (part, "not ready", "GET /readyz") for part in sorted(others)}


def _treasury(found: ConsoleSummary) -> str:
    from decimal import Decimal

    from agentpay.cli.tables import amount

    held, burn, days = found.treasury_lamports, found.treasury_burn_lamports, found.treasury_days_left
    if held is None:
        return "unknown"
    sol = amount(Decimal(held).scaleb(-9))
    used = (
        "its use is not measured yet"
        if burn is None
        else f"uses {amount(Decimal(burn).scaleb(-9))} SOL a day"
    )
    return f"{sol} SOL, {used}" + ("" if days is None else f", {days} days left")


status: Final = command(
    "status",
    """Show whether all is well, and what needs attention.

    The exit code is 0 if all is well, and 7 if the chain does not respond, the treasury is low or lasts less
    than 7 days, the server is not ready, or accounts are suspended, deliveries undelivered or settlements
    stuck. Paused accounts and transfers that wait for approval are shown, but are not wrong. With --quiet,
    prints only what needs attention.
    """,
    call=lambda client: lambda: _read(client),
    prints=_print,
    exit_code=lambda found: NEEDS_ATTENTION if found.needs_attention else 0,
)
