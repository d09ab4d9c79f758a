"""`agentpay-server serve`: the options of the server process and their validation.

`process.py` runs the server.
"""

import ipaddress
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from agentpay.cli.options import Seconds
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.chain.custody import read_key
from agentpay_server.cli.options import HOST, PROGRAM, Declared, require_database, settings_of, takes
from agentpay_server.platform.clock import SystemClock, manual_clock
from agentpay_server.platform.logs import LogFormat
from agentpay_server.platform.settings import Settings
from agentpay_server.plugins.cluster.settings import RpcSettings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8402,
    show_default=True,
    metavar="PORT",
    help="Port to listen on; 0 chooses a free one.",
)
@click.option("--in-memory", is_flag=True, help="Keep all data in memory. This is the default.")
@takes(ServerConfig, "stored")
@click.option(
    "--clock",
    type=click.Choice(["system", "manual"]),
    default="system",
    show_default=True,
    help="manual: the clock advances only by POST /ext/v1/sandbox/clock/advance.",
)
@takes(Settings, "settings")
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
    help="Serve the embedded chain's JSON-RPC and WebSocket at /ext/v1/sandbox/rpc, and an x402 facilitator "
    "at /ext/v1/sandbox/x402, without a key. Requires a loopback --host.",
)
@click.option(
    "--program",
    "channel_program",
    type=PROGRAM,
    metavar="channels=FILE",
    help="ELF file of the payment-channel program to run on the embedded chain, instead of ours.",
)
@click.option(
    "--scene",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Build a scene at the start: accounts, policies, keys, webhooks, sellers, history. The data must be "
    "empty.",
)
@click.option("--allow-remote", is_flag=True, help="Allow a --host that other machines can reach.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    type=HOST,
    multiple=True,
    metavar="HOST",
    help="Host name or IP address to accept in the Host header, such as the public name of a proxy. "
    "Repeatable. Default: loopback names, or any host if --host is not a loopback address.",
)
@click.option(
    "--json", "_", is_flag=True, expose_value=False, help="Accepted for consistency; output is always JSON."
)
@takes(RpcSettings, "rpc")
def serve(
    *,
    host: str,
    port: int,
    in_memory: bool,
    stored: dict[str, Any],
    clock: str,
    settings: dict[str, Any],
    start_wait: float,
    log_format: str | None,
    log_level: str,
    is_quiet: bool,
    chain_rpc: bool,
    channel_program: Path | None,
    scene: Path | None,
    allow_remote: bool,
    allowed_hosts: tuple[str, ...],
    rpc: dict[str, Any],
) -> None:
    """Run a server.

    Once it accepts requests, it prints one JSON line on standard output, with base_url, operator_key,
    console_url (a link that signs in to the operator console once) and, with --chain-rpc, rpc_url and
    facilitator_url, and with --scene, scene: the accounts by their names in the file, their keys, the
    secrets of webhooks, and the URLs of local sellers. operator_key is the new key; it is null if you passed
    a key, and absent if an earlier start created it. On a terminal, it also prints shell lines to paste, on
    standard error. SIGTERM or SIGINT stops it gracefully; a second signal ends it at once.
    """
    cluster = _cluster(rpc)
    if not _is_loopback(host) and not (allow_remote and stored.get("operator_key")):
        raise click.UsageError(
            f"{host} can be reached from other machines: pass --allow-remote and an --operator-key from "
            "agentpay-server keys generate, or keep the default --host."
        )
    if chain_rpc and not _is_loopback(host):
        raise click.UsageError(
            f"--chain-rpc serves without a key, and {host} can be reached from other machines: keep the "
            "default --host."
        )
    for what, is_given in (
        ("--chain-rpc serves", chain_rpc),
        ("--program is for", channel_program is not None),
        ("--scene is for", scene is not None),
    ):
        if is_given and cluster is not None:
            raise click.UsageError(
                f"{what} the embedded chain, and --rpc-url uses a cluster instead: omit one of them."
            )
    if (in_memory, "data_dir" in stored, "database_url" in stored).count(True) > 1:
        raise click.UsageError("pass only one of --in-memory, --data-dir and --database-url.")
    require_database(stored)
    # Imported late: loading the server takes longer than reporting a usage error.
    from agentpay_server.cli import process  # noqa: PLC0415
    from agentpay_server.plugins.scenes.document import SceneError, read_scene  # noqa: PLC0415

    try:
        to_build = None if scene is None else read_scene(scene)
    except SceneError as error:
        raise click.BadParameter(f"{error}.", param_hint="--scene") from None

    config = ServerConfig(
        settings=Settings(**settings),
        rpc=cluster,
        clock=manual_clock() if clock == "manual" else SystemClock(),
        may_crash=True,
        channel_program=None if channel_program is None else _content(channel_program),
        **stored,
    )
    process.run(
        host,
        port,
        config,
        allowed_hosts=allowed_hosts,
        serves_chain=chain_rpc,
        scene=to_build,
        log_format=log_format_of(log_format),
        log_level=logging.WARNING if is_quiet else logging.getLevelNamesMapping()[log_level.upper()],
        start_wait_seconds=start_wait,
    )


def _cluster(given: dict[str, Any]) -> RpcSettings | None:
    """Return the settings of a Solana cluster; None for the embedded chain."""
    declared = {each.field.name: each for each in settings_of(RpcSettings)}
    if "url" not in given:
        for name in given:
            raise click.UsageError(f"{declared[name].option.name} requires --rpc-url.")
        return None
    keys = {name: _key(given.get(name), each) for name, each in declared.items() if name.endswith("_key")}
    try:
        return RpcSettings(**{**given, **keys})
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None


def _key(path: Path | None, declared: Declared) -> bytes | None:
    """Return the key from a file or an environment variable, if one is set."""
    variable = declared.option.variable
    assert variable is not None  # noqa: S101 - declared for both keys
    try:
        text = os.environ.get(variable) if path is None else path.read_text("utf-8-sig")
    except (OSError, UnicodeError):
        raise click.UsageError(f"cannot read {path}.") from None
    if not text:
        return None
    try:
        return read_key(text)
    except ValueError as error:
        raise click.UsageError(f"{variable if path is None else path}: {error}.") from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"--program: cannot read {path}: {error.strerror}.") from None


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
