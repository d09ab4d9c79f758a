"""`agentpay-server serve`: the options of the server process and their validation.

`process.py` runs the server.
"""

import ipaddress
import logging
import sys
from decimal import Decimal
from pathlib import Path

import click

from agentpay.cli.values import Seconds, Usdc
from agentpay_server.chain.rpc.settings import RpcSettings
from agentpay_server.cli.rpc_options import takes_cluster
from agentpay_server.cli.values import DataDirectory, Host, MetricsKey, SchemaName, Sol
from agentpay_server.clock import SystemClock, manual_clock
from agentpay_server.database.schema_name import DATABASE_SCHEMA
from agentpay_server.logs import LogFormat
from agentpay_server.settings import KEY_VARIABLE, OnchainMemo, PolicyUpdate, Settings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8402,
    show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)
@click.option("--in-memory", is_flag=True, help="Keep all data in memory. This is the default.")
@click.option(
    "--data-dir",
    type=DataDirectory(),
    help="Directory for all data; created if missing.",
)
@click.option(
    "--database-url",
    envvar="AGENTPAY_SERVER_DATABASE_URL",
    show_envvar=True,
    metavar="URL",
    help=f"PostgreSQL database for all data, postgresql://…; requires {KEY_VARIABLE}.",
)
@click.option(
    "--database-schema",
    type=SchemaName(),
    envvar="AGENTPAY_SERVER_DATABASE_SCHEMA",
    show_envvar=True,
    metavar="NAME",
    help=f"Schema for all tables; created if missing.  [default: {DATABASE_SCHEMA}]",
)
@click.option(
    "--operator-key",
    envvar="AGENTPAY_SERVER_OPERATOR_KEY",
    show_envvar=True,
    help="Operator key to use instead of a new one; it is never printed. On existing data it is added to "
    "the existing keys. Generate one with agentpay-server keys generate.",
)
@click.option(
    "--clock",
    type=click.Choice(["system", "manual"]),
    default="system",
    show_default=True,
    help="manual: the clock advances only by POST /sandbox/clock/advance.",
)
@click.option(
    "--policy-update",
    type=click.Choice([choice.value for choice in PolicyUpdate]),
    default=PolicyUpdate.MERGE.value,
    show_default=True,
    help="Fields that a policy update omits: merge keeps them, replace resets them.",
)
@click.option(
    "--onchain-memo",
    type=click.Choice([choice.value for choice in OnchainMemo]),
    default=OnchainMemo.ID.value,
    show_default=True,
    help="On-chain memo of a transfer: its id only, or full, with the caller's memo.",
)
@click.option(
    "--settlement-wait",
    type=Seconds(),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="How long transfers, approvals and sessions wait for finality before they respond 503.",
)
@click.option(
    "--approval-ttl",
    type=Seconds(min_open=True),
    default=24 * 3600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a transfer waits for approval before it is rejected.",
)
@click.option(
    "--session-idle",
    type=Seconds(0.000001),
    metavar="SECONDS",
    help="How long a session may go without a charge before it is closed.  [default: 24 hours on mainnet, "
    "devnet and testnet; unlimited elsewhere]",
)
@click.option(
    "--session-lifetime",
    type=Seconds(0.000001),
    metavar="SECONDS",
    help="How long a session may last before it is closed.  [default: unlimited]",
)
@click.option(
    "--max-open-sessions",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="COUNT",
    help="Largest number of unsettled sessions per account.",
)
@click.option(
    "--min-session-cap",
    type=Usdc(),
    default="0.01",
    show_default=True,
    metavar="USDC",
    help="Smallest cap of a session.",
)
@click.option(
    "--treasury-low",
    type=Sol(),
    default="0.1",
    show_default=True,
    metavar="SOL",
    help="Log a warning when the treasury, which pays fees and rent, holds less than this.",
)
@click.option(
    "--rate-limit",
    type=click.IntRange(min=1),
    metavar="PER_MINUTE",
    help="Requests per minute and key.  [default: unlimited]",
)
@click.option(
    "--shutdown-wait",
    type=Seconds(),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long requests and transfers in progress may continue after SIGTERM or SIGINT.",
)
@click.option(
    "--start-wait",
    type=Seconds(),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait at start for a database or RPC endpoint that does not respond; 0 fails at once.",
)
@click.option(
    "--log-format",
    type=click.Choice([choice.value for choice in LogFormat]),
    help="Format of the log on standard error.  [default: text on a terminal, json elsewhere]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level to log. debug adds the requests of listen.",
)
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Log warnings and errors only.")
@click.option(
    "--chain-rpc",
    is_flag=True,
    help="Serve the embedded chain's JSON-RPC and WebSocket at /sandbox/rpc, and an x402 facilitator at "
    "/sandbox/x402, without a key. Requires a loopback --host.",
)
@click.option("--no-dashboard", is_flag=True, help="Do not serve the operator console at /dashboard.")
@click.option(
    "--metrics-key",
    type=MetricsKey(),
    envvar="AGENTPAY_SERVER_METRICS_KEY",
    show_envvar=True,
    metavar="KEY",
    help="Key that GET /metrics requires, as Authorization: Bearer KEY; 1 to 200 visible ASCII characters.  "
    "[default: no key]",
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
@click.option(
    "--json", "_", is_flag=True, expose_value=False, help="Accepted for consistency; output is always JSON."
)
@takes_cluster
def serve(
    *,
    host: str,
    port: int,
    in_memory: bool,
    data_dir: Path | None,
    database_url: str | None,
    database_schema: str | None,
    operator_key: str | None,
    clock: str,
    policy_update: str,
    onchain_memo: str,
    settlement_wait: float,
    approval_ttl: float,
    session_idle: float | None,
    session_lifetime: float | None,
    max_open_sessions: int,
    min_session_cap: Decimal,
    treasury_low: Decimal,
    rate_limit: int | None,
    shutdown_wait: float,
    start_wait: float,
    log_format: str | None,
    log_level: str,
    is_quiet: bool,
    chain_rpc: bool,
    no_dashboard: bool,
    metrics_key: str | None,
    allow_remote: bool,
    allowed_hosts: tuple[str, ...],
    max_connections: int,
    idle_timeout: float,
    rpc: RpcSettings | None,
) -> None:
    """Run a server.

    Once it accepts requests, it prints one JSON line on standard output, with base_url, operator_key,
    console_url (a link that signs in to the operator console once) and, with --chain-rpc, rpc_url and
    facilitator_url. operator_key is the new key; it is null if you passed a key, and absent if an earlier
    start created it. On a terminal, it also prints shell lines to paste, on standard error. SIGTERM or SIGINT
    stops it gracefully; a second signal ends it at once.
    """
    if not _is_loopback(host) and not (allow_remote and operator_key):
        raise click.UsageError(
            f"{host} can be reached from other machines: pass --allow-remote and an --operator-key from "
            "agentpay-server keys generate, or keep the default --host."
        )
    if chain_rpc and not _is_loopback(host):
        raise click.UsageError(
            f"--chain-rpc serves without a key, and {host} can be reached from other machines: keep the "
            "default --host."
        )
    if chain_rpc and rpc is not None:
        raise click.UsageError(
            "--chain-rpc serves the embedded chain, and --rpc-url uses a cluster instead: omit one of them."
        )
    if (in_memory, data_dir is not None, database_url is not None).count(True) > 1:
        raise click.UsageError("pass only one of --in-memory, --data-dir and --database-url.")
    if database_schema is not None and database_url is None:
        raise click.UsageError("--database-schema requires --database-url.")
    settings = Settings(
        policy_update=policy_update,
        onchain_memo=onchain_memo,
        settlement_wait_seconds=settlement_wait,
        approval_ttl_seconds=approval_ttl,
        rate_limit_per_minute=rate_limit,
        session_idle_seconds=session_idle,
        session_lifetime_seconds=session_lifetime,
        max_open_sessions=max_open_sessions,
        min_session_cap_usdc=min_session_cap,
        treasury_low_sol=treasury_low,
        shutdown_seconds=shutdown_wait,
        max_connections=max_connections,
        idle_timeout_seconds=idle_timeout,
        serves_dashboard=not no_dashboard,
        metrics_key=metrics_key,
    )
    # Imported late: loading the server takes longer than reporting a usage error.
    from agentpay_server.cli import process  # noqa: PLC0415
    from agentpay_server.config import ServerConfig  # noqa: PLC0415

    config = ServerConfig(
        settings=settings,
        data_dir=data_dir,
        database_url=database_url,
        database_schema=database_schema or DATABASE_SCHEMA,
        rpc=rpc,
        clock=manual_clock() if clock == "manual" else SystemClock(),
        operator_key=operator_key,
        may_crash=True,
    )
    try:
        process.run(
            host,
            port,
            config,
            allowed_hosts=allowed_hosts,
            serves_chain=chain_rpc,
            log_format=log_format_of(log_format),
            log_level=logging.WARNING if is_quiet else logging.getLevelNamesMapping()[log_level.upper()],
            start_wait_seconds=start_wait,
        )
    except process.OptionError as error:
        raise click.BadParameter(str(error), param_hint=error.option) from None
    except process.CannotServeError as error:
        raise click.ClickException(str(error)) from None


def log_format_of(given: str | None) -> LogFormat:
    """By default text on a terminal and JSON elsewhere."""
    if given is not None:
        return LogFormat(given)
    return LogFormat.TEXT if sys.stderr is not None and sys.stderr.isatty() else LogFormat.JSON


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
