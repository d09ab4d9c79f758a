"""`agentpay accounts`, `budget`, `spend` and `search`: accounts, test USDC, policies, and what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from agentpay.cli.commands import Column, Show, command, group, listing
from agentpay.cli.options import (
    ACCOUNT,
    ACCOUNT_ID,
    LABEL,
    LIMIT,
    MOMENT,
    OWN_ACCOUNT,
    PAYEE,
    USDC,
    account_option,
    either,
    is_given,
    status_option,
    takes_server,
    takes_yes,
)
from agentpay.contract.choices import POLICY_RULES, AccountSort, AccountStatus, TransactionStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.options import Function
    from agentpay.cli.output import Output
    from agentpay.contract.accounts import Account
    from agentpay.contract.ext.console import AccountDetails
    from agentpay.contract.ext.search import SearchResult
    from agentpay.contract.ext.spending import Budget


def _account(client: AgentPay, account_id: str) -> Account | AccountDetails:
    from agentpay import errors

    try:
        return client.console.details(account_id)
    except errors.PermissionDeniedError:
        # An agent key reads less of its account.
        return client.accounts.get(account_id)


_ORDERS: Final[Mapping[str, AccountSort]] = {
    "name": "name",
    "balance": "-balance",
    "spent": "-spent",
    "limit": "-limit",
}

accounts: Final = group(
    "accounts",
    "Create, list, fund, read and unblock accounts; set policies.",
    command(
        "create",
        """Create an account with no USDC and a policy without limits.

        NAME is a label, 1 to 100 characters. Names and handles are not unique: another account may have the
        same.
        """,
        click.argument("name", type=LABEL),
        call=lambda client: client.accounts.create,
        progress="Creating {name}",
        makes="New account",
    ),
    listing(
        "list",
        "List accounts, newest first or sorted.",
        status_option(AccountStatus, "accounts"),
        click.option(
            "--sort",
            type=click.Choice(list(_ORDERS)),
            help="By name; or by balance, 24-hour spending or its limit, the largest first.",
        ),
        call=lambda client: (
            lambda sort="", **given: client.console.list_details(sort=_ORDERS.get(sort), **given)
        ),
        columns=[
            Column("name", is_text=True),
            Column("balance", "balance_usdc"),
            Column("spent", "spent_usdc", Show.IF_IT_FITS),
            Column("status", lambda each: "suspended" if each.signing_stopped_at else each.status),
            Column("created", "created_at", Show.IF_IT_FITS),
            Column("handle", show=Show.WIDE),
            Column("account_id"),
            Column("usdc_token_account", show=Show.WIDE),
        ],
        empty="No accounts. Create one with agentpay accounts create NAME.",
        moment="created_at",
    ),
    command(
        "get",
        """Show an account with its live balance and its policy.

        A suspended one has the reason. ACCOUNT is an identifier, or a unique name or handle.
        """,
        ACCOUNT_ID,
        call=lambda client: lambda account_id: _account(client, account_id),
        reads="{.name}",
    ),
    listing(
        "history",
        """List what came in, went out and was rejected, newest first.

        ACCOUNT is an identifier, or a unique name or handle. Default: all accounts. For each account, what
        came in minus what went out is its balance.
        """,
        click.argument("account_id", type=ACCOUNT, required=False),
        status_option(TransactionStatus, "entries"),
        call=lambda client: client.accounts.history,
        columns=[
            Column("when", "created_at"),
            Column("account", "account_id", is_text=True, is_account=True),
            Column("type"),
            Column("direction"),
            Column("amount", "amount_usdc"),
            Column("status", show=Show.IF_IT_FITS),
            Column("with", "counterparty", Show.IF_IT_FITS, is_account=True),
            Column("tx_signature", show=Show.WIDE),
            Column("transaction_id"),
        ],
        empty="No entries match.",
    ),
    command(
        "unblock",
        """Let a suspended account sign again.

        First compare its history with the chain: accounts get shows the transaction that suspended it.
        """,
        ACCOUNT_ID,
        call=lambda client: client.console.unblock,
        asks=lambda _client, account_id: f"Let {account_id} sign again?",
        progress="Unblocking {account_id}",
        makes="Unblocked",
    ),
    command(
        "pause-all",
        """Pause all accounts: nothing more is paid from any.

        Accounts that are created afterwards are not paused.
        """,
        call=lambda client: client.console.pause_all,
        asks=lambda _client: "Pause all accounts?",
        progress="Pausing",
        makes="Accounts",
    ),
    command(
        "resume-all",
        """Resume the accounts that pause-all has paused.

        An account that was paused before, or whose policy was written since, stays as it is.
        """,
        call=lambda client: client.console.resume_all,
        asks=lambda _client: "Resume these accounts?",
        progress="Resuming",
        makes="Accounts",
    ),
)


@accounts.command("fund")
@ACCOUNT_ID
@click.argument("amount", type=USDC)
@takes_server
def fund_account(*, server: AgentPay, output: Output, account_id: str, amount: Decimal) -> None:
    """Mint test USDC into an account, on a test chain."""
    from agentpay import errors
    from agentpay.cli.output import CommandRefusedError
    from agentpay.contract.endpoints import EXTENSIONS

    with output.progress(f"Minting {amount} test USDC"):
        try:
            reply = server.request(
                "POST", f"{EXTENSIONS}/sandbox/accounts/{account_id}/fund", json={"amount": str(amount)}
            )
        except errors.NotFoundError:
            # If no such account exists, this raises the appropriate error.
            known = server.accounts.get(account_id)
            raise CommandRefusedError(
                f"this service has no sandbox. Send USDC to the token account {known.usdc_token_account}.",
                output,
                error="not_found",
            ) from None
    output.result({"account_id": account_id, **reply.json()}, "Funded")


def _takes_limits(command: Function) -> Function:
    """Give a command an option for each amount and each flag of a policy; pausing has its own."""
    for rule in reversed(POLICY_RULES):
        option = "--" + rule.name.replace("_", "-")
        if rule.kind == "amount":
            command = click.option(option, type=LIMIT, help=f"{rule.label}; none: {rule.null}.")(command)
        elif rule.kind == "flag" and rule.name != "paused":
            both = f"{option}/--no-{option[2:]}"
            command = click.option(both, default=None, help=f"{rule.label}, or not.")(command)
    return command


@accounts.command("policy")
@ACCOUNT_ID
@_takes_limits
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    type=PAYEE,
    help="Account or address that may be paid. Repeatable: the new list replaces the old one.",
)
@click.option("--allow-any", is_flag=True, help="Allow every payee.")
@click.option(
    "--category",
    "categories",
    multiple=True,
    metavar="CATEGORY",
    help="Category that may be paid for. Repeatable: the new list replaces the old one.",
)
@click.option("--any-category", is_flag=True, help="Allow every category.")
@click.option("--pause", is_flag=True, help="Block all outgoing transfers.")
@click.option("--resume", is_flag=True, help="Allow outgoing transfers again.")
@either("--allow", "--allow-any")
@either("--category", "--any-category")
@either("--pause", "--resume")
@takes_yes
@takes_server
def set_policy(
    *,
    server: AgentPay,
    output: Output,
    account_id: str,
    allowed: tuple[str, ...],
    allow_any: bool,
    categories: tuple[str, ...],
    any_category: bool,
    pause: bool,
    resume: bool,
    is_yes: bool,
    **limits: Any,  # noqa: ANN401 - the values of the other options
) -> None:
    """Show the policy of an account, or change fields of it.

    Only the fields that you pass are changed. To remove a limit, pass the word none as its value. The change
    takes effect at the next transfer.
    """
    change = {name: value for name, value in limits.items() if is_given(name)}
    if allowed or allow_any:
        change["allowed_counterparties"] = allowed or None
    if categories or any_category:
        change["categories"] = categories or None
    if pause or resume:
        change["paused"] = pause
    if pause and not is_yes:
        output.confirm(lambda: f"Block all outgoing transfers of {account_id}?")
    with output.progress("Writing the policy" if change else "Reading"):
        policy = server.policies.update(account_id, **change) if change else server.policies.get(account_id)
    (output.result if change else output.record)(policy, "Policy")


def _print_budget(output: Output, found: Budget) -> None:
    from agentpay.cli.tables import amount

    if not output.is_json and not output.is_quiet:
        limits = (found.available_usdc, found.max_single_transfer, found.remaining_usdc)
        most = amount(min(limit for limit in limits if limit is not None))
        state = "paused: no transfer is allowed" if found.paused else f"{most} USDC in one transfer"
        output.line(f"{output.names([found.account_id])[0]} may spend now:", state)
    output.record(found, "Budget")


budget: Final = command(
    "budget",
    """Show what an account may spend now.

    ACCOUNT may be omitted with an agent key, which has one account.
    """,
    click.argument("account_id", type=OWN_ACCOUNT, required=False),
    call=lambda client: client.accounts.budget,
    prints=_print_budget,
)

_PERIODS: Final = [
    Column("from", lambda entry: f"{entry.at:%Y-%m-%d %H:%M}"),
    Column("settled", "settled_usdc"),
    Column("rejected"),
]

spend: Final = command(
    "spend",
    """Show what was spent, by day or hour.

    Prints what was settled and how many requests were rejected in each period (UTC), oldest first.
    """,
    account_option("Only spends of this account."),
    click.option(
        "--by",
        type=click.Choice(["day", "hour"]),
        default="day",
        show_default=True,
        help="Length of a period.",
    ),
    click.option(
        "--since",
        type=MOMENT,
        help="Only what is after this time. Default: 30 days ago, or 24 hours with --by hour.",
    ),
    click.option("--until", type=MOMENT, help="Only what is up to and including this time. Default: now."),
    call=lambda client: client.console.spend_report,
    prints=lambda output, report: output.items(report.data, _PERIODS, empty="No periods."),
)


def _what(item: Any) -> str:  # noqa: ANN401 - an item of a search
    from agentpay.contract.events import Event
    from agentpay.contract.ext.console import AccountDetails
    from agentpay.contract.ext.sessions import Session

    if isinstance(item, AccountDetails):
        return item.name
    if isinstance(item, Event):
        return item.type
    return f"{item.cap_usdc if isinstance(item, Session) else item.amount_usdc} USDC"


def _print_found(output: Output, found: SearchResult) -> None:
    from agentpay.cli.output import identifier_of
    from agentpay.contract.fields import format_timestamp

    columns = [
        Column("what", _what, is_text=True),
        Column("status", lambda each: getattr(each, "status", "")),
        Column("identifier", identifier_of),
    ]
    items = [*found.accounts, *found.transfers, *found.sessions, *found.deposits, *found.events]
    output.items(items, columns, empty="Nothing found.")
    if found.parts_since is not None:
        output.note(
            f"Parts of memos and origins were looked for back to {format_timestamp(found.parts_since)}."
        )


search: Final = command(
    "search",
    """Find accounts, transfers, sessions, deposits and events.

    TEXT is part of a name, handle, memo or seller's origin; an identifier, address, signature, idempotency
    key or error code; an amount in USDC; or the name of an event type.
    """,
    click.argument("q", metavar="TEXT"),
    click.option(
        "--limit",
        type=click.IntRange(1, 20),
        default=5,
        show_default=True,
        metavar="N",
        help="Maximum number of each kind.",
    ),
    call=lambda client: client.console.search,
    prints=_print_found,
)
