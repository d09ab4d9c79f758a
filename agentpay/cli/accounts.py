"""`agentpay accounts` and `agentpay budget`: accounts, test USDC and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import click

from agentpay.cli.columns import Column, Show, amount
from agentpay.cli.options import complete_account, takes_listing, takes_server, takes_yes
from agentpay.cli.values import Label, LimitOrNone, Usdc
from agentpay.contract.choices import POLICY_RULES, AccountStatus, TransactionStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output
    from agentpay.contract.accounts import Account
    from agentpay.contract.ext.console import AccountDetails

_COLUMNS: Final = [
    Column("name", lambda account: account.name, is_text=True),
    Column("balance", lambda account: account.balance_usdc),
    Column("status", lambda account: "suspended" if account.signing_stopped_at else account.status),
    Column("created", lambda account: account.created_at, show=Show.IF_IT_FITS),
    Column("handle", lambda account: account.handle, show=Show.WIDE),
    Column("account_id", lambda account: account.account_id),
    Column("usdc_token_account", lambda account: account.usdc_token_account, show=Show.WIDE),
]


@click.group()
def accounts() -> None:
    """Create, list, fund, read and unblock accounts; set policies."""


@accounts.command("create")
@click.argument("name", type=Label())
@takes_server
def create_account(*, server: AgentPay, output: Output, name: str) -> None:
    """Create an account with no USDC and a policy without limits.

    NAME is a label, 1 to 100 characters.
    """
    with output.progress(f"Creating {name}"):
        account = server.accounts.create(name=name)
    output.result(account, "New account")


@accounts.command("list")
@click.option(
    "--status",
    type=click.Choice(get_args(AccountStatus)),
    help="Only accounts with this status.",
)
@takes_listing
@takes_server
def list_accounts(
    *, server: AgentPay, output: Output, listing: Listing, status: AccountStatus | None
) -> None:
    """List accounts, newest first."""
    listing.show(
        output,
        lambda: server.console.list_details(limit=listing.page, status=status),
        _COLUMNS,
        empty="No accounts. Create one with agentpay accounts create NAME.",
        moment=lambda each: each.created_at,
    )


@accounts.command("get")
@click.argument("account", shell_complete=complete_account)
@takes_server
def get_account(*, server: AgentPay, output: Output, account: str) -> None:
    """Show an account, its live balance, its policy, and why it is suspended.

    ACCOUNT is an identifier, or a unique name or handle.
    """
    from agentpay import errors
    from agentpay.cli.naming import find_account

    account_id = find_account(server, output, account)
    found: Account | AccountDetails
    with output.progress("Reading"):
        try:
            found = server.console.details(account_id)
        except errors.PermissionDeniedError:
            # An agent key reads less of its account.
            found = server.accounts.get(account_id)
    output.record(found, found.name)


@accounts.command("history")
@click.argument("account", required=False, shell_complete=complete_account)
@click.option(
    "--status", type=click.Choice(get_args(TransactionStatus)), help="Only entries with this status."
)
@takes_listing
@takes_server
def list_history(
    *,
    server: AgentPay,
    output: Output,
    listing: Listing,
    account: str | None,
    status: TransactionStatus | None,
) -> None:
    """List what came in, went out and was rejected, newest first.

    ACCOUNT is an identifier, or a unique name or handle. Default: all accounts. For each account, what came
    in minus what went out is its balance.
    """
    from agentpay.cli.naming import AccountNames, find_account

    account_id = None if account is None else find_account(server, output, account)
    names = AccountNames(server)
    columns = [
        Column("when", lambda each: each.created_at),
        Column("account", lambda each: names(each.account_id), is_text=True),
        Column("type", lambda each: each.type),
        Column("direction", lambda each: each.direction),
        Column("amount", lambda each: each.amount_usdc),
        Column("status", lambda each: each.status, show=Show.IF_IT_FITS),
        Column("with", lambda each: names(each.counterparty or "") or None, show=Show.IF_IT_FITS),
        Column("tx_signature", lambda each: each.tx_signature, show=Show.WIDE),
        Column("transaction_id", lambda each: each.transaction_id),
    ]
    listing.show(
        output,
        lambda: server.accounts.history(
            account_id=account_id,
            status=status,
            since=listing.since,
            until=listing.until,
            limit=listing.page,
        ),
        columns,
        empty="No entries match.",
    )


@accounts.command("unblock")
@click.argument("account", shell_complete=complete_account)
@takes_yes
@takes_server
def unblock_account(*, server: AgentPay, output: Output, account: str, is_yes: bool) -> None:
    """Let a suspended account sign again.

    First compare its history with the chain: accounts get shows the transaction that suspended it.
    """
    from agentpay.cli.confirming import confirm
    from agentpay.cli.naming import AccountNames, find_account

    account_id = find_account(server, output, account)
    question = "Let {} sign again?"
    confirm(output, lambda: question.format(AccountNames(server)(account_id)), is_yes=is_yes)
    output.result(server.console.unblock(account_id), "Unblocked")


@accounts.command("fund")
@click.argument("account", shell_complete=complete_account)
@click.argument("amount", type=Usdc())
@takes_server
def fund_account(*, server: AgentPay, output: Output, account: str, amount: Decimal) -> None:
    """Mint test USDC into an account, on a test chain."""
    from agentpay import errors
    from agentpay.cli.connection import CommandRefusedError
    from agentpay.cli.naming import find_account
    from agentpay.contract.endpoints import EXTENSIONS

    account_id = find_account(server, output, account)
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


def takes_limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each amount and each flag of a policy; pausing has its own."""
    for rule in reversed(POLICY_RULES):
        option = "--" + rule.name.replace("_", "-")
        if rule.kind == "amount":
            text = f"{rule.label}; none: {rule.null}."
            command = click.option(option, type=LimitOrNone(), metavar="USDC|none", help=text)(command)
        elif rule.kind == "flag" and rule.name != "paused":
            both = f"{option}/--no-{option[2:]}"
            command = click.option(both, default=None, help=f"{rule.label}, or not.")(command)
    return command


@accounts.command("policy")
@click.argument("account", shell_complete=complete_account)
@takes_limits
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="PAYEE",
    shell_complete=complete_account,
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
@takes_yes
@takes_server
def set_policy(
    *,
    server: AgentPay,
    output: Output,
    account: str,
    allowed: tuple[str, ...],
    allow_any: bool,
    categories: tuple[str, ...],
    any_category: bool,
    pause: bool,
    resume: bool,
    is_yes: bool,
    **fields: Any,  # noqa: ANN401 - the values of the other options
) -> None:
    """Show the policy of an account, or change fields of it.

    Only the fields that you pass are changed. To remove a limit, pass the word none as its value. The change
    takes effect at the next transfer.
    """
    from agentpay.cli.confirming import confirm
    from agentpay.cli.naming import AccountNames, find_account, find_payee

    if allowed and allow_any:
        raise click.UsageError("pass either --allow or --allow-any.")
    if categories and any_category:
        raise click.UsageError("pass either --category or --any-category.")
    if pause and resume:
        raise click.UsageError("pass either --pause or --resume.")
    account_id = find_account(server, output, account)
    change = {name: value for name, value in fields.items() if _is_given(name)}
    if allowed or allow_any:
        change["allowed_counterparties"] = [find_payee(server, output, each) for each in allowed] or None
    if categories or any_category:
        change["categories"] = list(categories) or None
    if pause or resume:
        change["paused"] = pause
    if pause:
        question = "Block all outgoing transfers of {}?"
        confirm(output, lambda: question.format(AccountNames(server)(account_id)), is_yes=is_yes)
    with output.progress("Writing the policy" if change else "Reading"):
        policy = server.policies.update(account_id, **change) if change else server.policies.get(account_id)
    (output.result if change else output.record)(policy, "Policy")


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


@click.command()
@click.argument("account", required=False, shell_complete=complete_account)
@takes_server
def budget(*, server: AgentPay, output: Output, account: str | None) -> None:
    """Show what an account may spend now.

    ACCOUNT may be omitted with an agent key, which has one account.
    """
    from agentpay.cli.naming import AccountNames, find_account_or_own

    account_id = find_account_or_own(server, output, account)
    with output.progress("Reading"):
        found = server.accounts.budget(account_id)
    if output.is_json or output.is_quiet:
        output.record(found, "Budget")
        return
    name = AccountNames(server)(account_id)
    state = (
        "paused: no transfer is allowed" if found.paused else f"{amount(_most(found))} USDC in one transfer"
    )
    output.line(f"{name} may spend now:", state)
    output.record(found, "Budget")


def _most(found: Any) -> Decimal:  # noqa: ANN401 - a budget
    limits: Mapping[str, Decimal | None] = {
        "balance": found.available_usdc,
        "single": found.max_single_transfer,
        "daily": found.remaining_usdc,
    }
    return min(limit for limit in limits.values() if limit is not None)
