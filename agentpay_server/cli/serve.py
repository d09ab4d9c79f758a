"""`agentpay-server serve`: the server as a process (decisions, "What stands beside /v1", last paragraphs).

The options and what is refused of them; `process.py` does the serving. One JSON line on standard output says
where it is reached and with which key; everything else is logged to standard error.
"""

import ipaddress
from pathlib import Path

import click

from agentpay_server.chain.rpc.settings import RpcSettings
from agentpay_server.cli.rpc_options import takes_cluster
from agentpay_server.cli.values import Host, Seconds
from agentpay_server.logs import LogFormat
from agentpay_server.settings import KEY_VARIABLE, OnchainMemo, PolicyUpdate, Settings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8402,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--in-memory", is_flag=True, help="Keep everything in memory. The default.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to keep everything in; made if it is not there.",
)
@click.option(
    "--database-url",
    envvar="AGENTPAY_SERVER_DATABASE_URL",
    show_envvar=True,
    metavar="URL",
    help=f"PostgreSQL database to keep everything in, postgresql://…; {KEY_VARIABLE} must be set.",
)
@click.option(
    "--operator-key",
    envvar="AGENTPAY_SERVER_OPERATOR_KEY",
    show_envvar=True,
    help="Operator key to use instead of a new one; at a later start, one to use beside those there are.",
)
@click.option(
    "--clock",
    type=click.Choice(["system", "manual"]),
    default="system",
    show_default=True,
    help="manual stands still until it is advanced over /sandbox/clock/advance.",
)
@click.option(
    "--policy-update",
    type=click.Choice([choice.value for choice in PolicyUpdate]),
    default=PolicyUpdate.MERGE.value,
    show_default=True,
    help="What becomes of the fields that a policy update leaves out.",
)
@click.option(
    "--onchain-memo",
    type=click.Choice([choice.value for choice in OnchainMemo]),
    default=OnchainMemo.ID.value,
    show_default=True,
    help="What a transaction publishes of a transfer's memo.",
)
@click.option(
    "--settlement-wait",
    type=Seconds(),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="How long transfers, approvals and sessions wait for finality.",
)
@click.option(
    "--approval-ttl",
    type=Seconds(min_open=True),
    default=24 * 3600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a transfer that needs approval waits for an operator.",
)
@click.option(
    "--session-idle",
    type=Seconds(0.000001),
    metavar="SECONDS",
    help="How long a session may go without a charge before it closes by itself; without it there is no end.",
)
@click.option(
    "--session-lifetime",
    type=Seconds(0.000001),
    metavar="SECONDS",
    help="How long a session may last before it closes by itself; without it there is no end.",
)
@click.option(
    "--rate-limit",
    type=click.IntRange(min=1),
    metavar="PER_MINUTE",
    help="Requests that one key may make in a minute; without it there is no limit.",
)
@click.option(
    "--shutdown-wait",
    type=Seconds(),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long requests and transfers under way may go on after SIGTERM or SIGINT.",
)
@click.option(
    "--log-format",
    type=click.Choice([choice.value for choice in LogFormat]),
    default=LogFormat.JSON.value,
    show_default=True,
    help="How events are printed on standard error.",
)
@click.option("--allow-remote", is_flag=True, help="Allow a --host that other machines can reach.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    type=Host(),
    multiple=True,
    metavar="HOST",
    help="Host name or IP address to accept in the Host header, such as the public name of a proxy. "
    "Repeatable. Default: loopback names, or any host if --host is not a loopback address.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Largest number of open connections.",
)
@click.option(
    "--idle-timeout",
    type=Seconds(min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a connection may stay open between two requests.",
)
@click.option("--json", "_", is_flag=True, expose_value=False, help="The line is JSON, with and without it.")
@takes_cluster
def serve(
    *,
    host: str,
    port: int,
    in_memory: bool,
    data_dir: Path | None,
    database_url: str | None,
    operator_key: str | None,
    clock: str,
    policy_update: str,
    onchain_memo: str,
    settlement_wait: float,
    approval_ttl: float,
    session_idle: float | None,
    session_lifetime: float | None,
    rate_limit: int | None,
    shutdown_wait: float,
    log_format: str,
    allow_remote: bool,
    allowed_hosts: tuple[str, ...],
    max_connections: int,
    idle_timeout: float,
    rpc: RpcSettings | None,
) -> None:
    """Serve until it is stopped.

    Prints one JSON line on standard output once it accepts requests, with base_url, and with operator_key
    when that was made now or given. SIGTERM and SIGINT stop it in good order; a second one ends it at once.
    """
    if not _is_loopback(host) and not (allow_remote and operator_key):
        raise click.UsageError(
            f"{host} can be reached by other machines: give --allow-remote and --operator-key, or keep the "
            "default --host."
        )
    if (in_memory, data_dir is not None, database_url is not None).count(True) > 1:
        raise click.UsageError("give one of --in-memory, --data-dir and --database-url.")
    settings = Settings(
        policy_update=policy_update,
        onchain_memo=onchain_memo,
        settlement_wait_seconds=settlement_wait,
        approval_ttl_seconds=approval_ttl,
        rate_limit_per_minute=rate_limit,
        session_idle_seconds=session_idle,
        session_lifetime_seconds=session_lifetime,
        shutdown_seconds=shutdown_wait,
        max_connections=max_connections,
        idle_timeout_seconds=idle_timeout,
    )
    # All of the server takes longer to load than it takes to say what is wrong with the options.
    from agentpay_server.cli import process  # noqa: PLC0415

    try:
        process.run(
            host,
            port,
            settings,
            allowed_hosts=allowed_hosts,
            data_dir=data_dir,
            database_url=database_url,
            rpc=rpc,
            is_clock_manual=clock == "manual",
            operator_key=operator_key,
            log_format=LogFormat(log_format),
        )
    except process.OptionError as error:
        raise click.BadParameter(str(error), param_hint=error.option) from None
    except process.CannotServeError as error:
        raise click.ClickException(str(error)) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
