"""`agentpay keys`, `operator-keys`, `whoami`, `console-link`, and what keys did: `audit`, `requests`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from agentpay.cli.commands import Column, Show, command, group, listing
from agentpay.cli.options import ACCOUNT, AGENT_KEY, OPERATOR_KEY, account_option, by_option
from agentpay.contract.bounds import MAX_KEY_SECONDS

if TYPE_CHECKING:
    from agentpay import AgentPay
    from agentpay.cli.output import Output
    from agentpay.contract.ext.console import AuditEntry, ServedRequest


def _agent_key(client: AgentPay, key_id: str) -> str:
    found = (each for each in client.agent_keys.list(limit=100) if each.key_id == key_id)
    return next((f"agent key {each.name!r} of {each.account_id}" for each in found), key_id)


keys: Final = group(
    "keys",
    """Manage agent keys.

    An agent key is bound to one account. It can pay from that account, within its policy, and read it.
    """,
    listing(
        "list",
        "List valid agent keys, newest first. The keys themselves are not shown.",
        account_option("Only keys of this account."),
        click.option("--revoked", "include_revoked", is_flag=True, help="Revoked and expired keys too."),
        call=lambda client: client.agent_keys.list,
        columns=[
            Column("name", is_text=True),
            Column("account", "account_id", is_text=True, is_account=True),
            Column("created", "created_at", Show.IF_IT_FITS),
            Column("expires", "expires_at", Show.IF_IT_FITS),
            Column("revoked", "revoked_at", Show.IF_IT_FITS),
            Column("spent", "spent_total_usdc", Show.IF_IT_FITS),
            Column("of", "max_total_usdc", Show.IF_IT_FITS),
            Column("key_id"),
        ],
        empty="No agent keys. Create one with agentpay keys create --account ACCOUNT.",
        moment="created_at",
    ),
    command(
        "create",
        "Create an agent key. It is shown only once.",
        click.option(
            "--account", "account_id", required=True, type=ACCOUNT, help="Account that the key is bound to."
        ),
        click.option("--name", help="Label, 1 to 100 characters."),
        click.option(
            "--expires-in",
            type=click.IntRange(1, MAX_KEY_SECONDS),
            metavar="SECONDS",
            help="Let the key expire after this time. Default: it does not expire.",
        ),
        click.option(
            "--max-total",
            "max_total_usdc",
            metavar="USDC",
            help="USDC that the key may spend in its lifetime. Default: only the policy limits it.",
        ),
        call=lambda client: client.agent_keys.create,
        progress="Creating the key",
        makes_secret="New agent key",  # noqa: S106 - a title
    ),
    command(
        "revoke",
        "Revoke an agent key, given by identifier or name. It does nothing any more.",
        click.argument("key_id", type=AGENT_KEY),
        call=lambda client: client.agent_keys.revoke,
        asks=lambda client, key_id: f"Revoke {_agent_key(client, key_id)}? It can pay nothing more.",
        progress="Revoking {key_id}",
        ends="revoked",
    ),
)


def _operator_key(client: AgentPay, key_id: str) -> str:
    found = (each for each in client.operator_keys.list(limit=100) if each.key_id == key_id)
    return next((f"operator key {each.name!r}" for each in found), key_id)


operator_keys: Final = group(
    "operator-keys",
    """Manage your operator keys.

    To replace a leaked key, create another one, give it to your programs, then revoke the old one.
    """,
    listing(
        "list",
        "List your valid operator keys, newest first. The keys themselves are not shown.",
        call=lambda client: client.operator_keys.list,
        columns=[
            Column("name", is_text=True),
            Column("kind"),
            Column("created", "created_at"),
            Column("expires", "expires_at"),
            Column("key_id"),
        ],
        empty="No operator keys.",
        moment="created_at",
    ),
    command(
        "create",
        """Create another operator key. It is shown only once.

        NAME is a label, 1 to 100 characters.
        """,
        click.argument("name"),
        call=lambda client: client.operator_keys.create,
        progress="Creating the key",
        makes_secret="New operator key",  # noqa: S106 - a title
    ),
    command(
        "revoke",
        "Revoke an operator key, given by identifier or name. The last valid key cannot be revoked.",
        click.argument("key_id", type=OPERATOR_KEY),
        call=lambda client: client.operator_keys.revoke,
        asks=lambda client, key_id: (
            f"Revoke {_operator_key(client, key_id)}? Programs that use it are refused from then on."
        ),
        progress="Revoking {key_id}",
        ends="revoked",
    ),
)

whoami: Final = command(
    "whoami",
    "Show the key that commands use, and whether its money is real.",
    call=lambda client: client.whoami,
    reads="Key",
)


def _print_link(output: Output, link: str) -> None:
    from agentpay.contract.printable import printable

    if output.is_json:
        output.document({"console_url": link})
    else:
        click.echo(printable(link))


console_link: Final = command(
    "console-link",
    """Print a link that signs in to the operator console.

    The link works once, within 10 minutes. The browser stays signed in for 12 hours.
    """,
    call=lambda client: (
        lambda: f"{client.base_url}/dashboard#code={client.console.create_sign_in_code().code}"
    ),
    prints=_print_link,
)


def _by(each: AuditEntry | ServedRequest) -> str:
    """Return the name of a key; of an agent's key without one, its account."""
    if each.key_name is not None:
        return each.key_name
    if each.key_account_id is not None:
        return f"agent of {each.key_account_id}"
    return each.key_id or "the service"


audit: Final = group(
    "audit",
    "List who changed what.",
    listing(
        "list",
        "List changes, newest first. With --json, includes the state before and after each.",
        account_option("Only changes that name this account."),
        by_option("Only changes that this key made."),
        call=lambda client: client.console.audit_log.list,
        columns=[
            Column("when", "created_at"),
            Column("by", _by, is_text=True, is_account=True),
            Column("action"),
            Column("subject", is_text=True, is_account=True),
            Column("request_id", show=Show.WIDE),
        ],
        empty="No changes.",
    ),
)

requests: Final = group(
    "requests",
    "List requests that the service has responded to.",
    listing(
        "list",
        """List requests of the operator, newest first.

        The server process keeps the last 1,000.
        """,
        call=lambda client: client.console.request_logs.list,
        columns=[
            Column("when", "at"),
            Column("by", _by, is_text=True, is_account=True),
            Column("method"),
            Column("route", is_text=True),
            Column("status"),
            Column("ms", "duration_ms"),
            Column("request_id", show=Show.IF_IT_FITS),
        ],
        empty="No requests.",
        moment="at",
    ),
)
