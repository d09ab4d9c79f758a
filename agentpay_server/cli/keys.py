"""`agentpay-server keys`: managing agent keys, and generating operator keys."""

import secrets

import click

from agentpay import AgentPay
from agentpay.contract.identifiers import ACCOUNT, KEY
from agentpay.contract.identity import KeyKind
from agentpay_server.cli.connection import takes_server
from agentpay_server.cli.output import Output, takes_json, takes_limit, up_to
from agentpay_server.cli.values import Identifier
from agentpay_server.credentials import new_key


@click.group()
def keys() -> None:
    """Manage agent keys, and generate operator keys.

    An agent key is bound to one account. It can pay from that account, within its policy, and read it.
    """


@keys.command("list")
@takes_limit
@takes_server
def list_keys(*, server: AgentPay, output: Output, limit: int) -> None:
    """List valid agent keys, newest first. The keys themselves are not shown."""
    output.table(
        up_to(server.console.agent_keys.list(limit=min(limit, 100)), limit, output),
        {
            "key_id": lambda key: key.key_id,
            "account_id": lambda key: key.account_id,
            "name": lambda key: key.name,
            "created_at": lambda key: key.created_at,
        },
        empty="No agent keys. Create one with agentpay-server keys create --account ACCOUNT_ID.",
    )


@keys.command("create")
@click.option(
    "--account",
    "account_id",
    type=Identifier(ACCOUNT),
    required=True,
    metavar="ACCOUNT_ID",
    help="Account that the key is bound to.",
)
@click.option("--name", help="Label, 1 to 100 characters.")
@takes_server
def create_key(*, server: AgentPay, output: Output, account_id: str, name: str | None) -> None:
    """Create an agent key. It is shown only once."""
    output.record_once(server.console.agent_keys.create(account_id, name=name), "New agent key")


@keys.command("generate")
@takes_json
def generate_key(*, is_json: bool) -> None:
    """Print a new operator key for serve --operator-key. Does not contact a server.

    Pass it in a variable, since other users of the machine may see command lines:

    \b
    export AGENTPAY_SERVER_OPERATOR_KEY="$(agentpay-server keys generate)"
    """  # noqa: D301 - the escape stops click from rewrapping the line
    key = new_key(KeyKind.OPERATOR, secrets.token_bytes(32))
    if is_json:
        Output(is_json=True).document({"key": key})
    else:
        # Only the key, without style, for use in $(...).
        click.echo(key)


@keys.command("revoke")
@click.argument("key_id", type=Identifier(KEY))
@takes_server
def revoke_key(*, server: AgentPay, output: Output, key_id: str) -> None:
    """Revoke an agent key. Its next request is refused."""
    server.console.agent_keys.revoke(key_id)
    output.revoked(key_id)
