"""The options of `agentpay-server serve` for a Solana cluster and its fees."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from agentpay.cli.values import Seconds
from agentpay_server.chain.custody import read_key
from agentpay_server.chain.protocol import MOST_COMPUTE_UNITS
from agentpay_server.chain.rpc.settings import Finality, RpcSettings

FEE_PAYER_VARIABLE: Final = "AGENTPAY_SERVER_FEE_PAYER_KEY"
MINT_AUTHORITY_VARIABLE: Final = "AGENTPAY_SERVER_MINT_AUTHORITY_KEY"

_KEY_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS: Final = (
    click.option(
        "--rpc-url",
        envvar="AGENTPAY_SERVER_RPC_URL",
        show_envvar=True,
        metavar="URL",
        help="JSON-RPC endpoint of a Solana cluster to use instead of the embedded chain.",
    ),
    click.option(
        "--rpc-websocket-url",
        envvar="AGENTPAY_SERVER_RPC_WEBSOCKET_URL",
        show_envvar=True,
        metavar="URL",
        help="WebSocket endpoint of the same node; reduces latency.",
    ),
    click.option(
        "--rpc-timeout",
        type=Seconds(min_open=True),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest duration of one call to the endpoint.",
    ),
    click.option(
        "--finality",
        type=click.Choice([choice.value for choice in Finality]),
        default=Finality.CONFIRMED.value,
        show_default=True,
        help="When a transfer counts as settled on a cluster.",
    ),
    click.option("--allow-mainnet", is_flag=True, help="Allow mainnet, where money is real."),
    click.option(
        "--usdc-mint",
        metavar="ADDRESS",
        help="Mint to use on a cluster without Circle's USDC.  [default: the address of mainnet's USDC]",
    ),
    click.option(
        "--fee-payer-key-file",
        type=_KEY_FILE,
        help="solana-keygen file of the key that pays fees and rent; or put its content into "
        f"{FEE_PAYER_VARIABLE}. Default: a key that the server creates.",
    ),
    click.option(
        "--mint-authority-key-file",
        type=_KEY_FILE,
        help="solana-keygen file of the key that mints for the sandbox, on your own cluster; or put its "
        f"content into {MINT_AUTHORITY_VARIABLE}.",
    ),
    click.option(
        "--priority-fee",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="MICRO_LAMPORTS",
        help="Priority fee per compute unit.",
    ),
    click.option(
        "--priority-fee-cap",
        type=click.IntRange(min=0),
        default=0,
        metavar="MICRO_LAMPORTS",
        help="Raise the priority fee to what other transactions recently paid, from --priority-fee up to "
        "this.  [default: off]",
    ),
    click.option(
        "--compute-unit-limit",
        type=click.IntRange(min=1, max=MOST_COMPUTE_UNITS),
        default=60_000,
        show_default=True,
        help="Largest number of compute units of a transaction. Applies with a priority fee; a simulation "
        "may lower it.",
    ),
)


def takes_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the cluster options, as an argument `rpc`; None for the embedded chain."""

    @functools.wraps(command)
    def with_cluster(
        *,
        rpc_url: str | None,
        rpc_websocket_url: str | None,
        rpc_timeout: float,
        finality: str,
        allow_mainnet: bool,
        usdc_mint: str | None,
        fee_payer_key_file: Path | None,
        mint_authority_key_file: Path | None,
        priority_fee: int,
        priority_fee_cap: int,
        compute_unit_limit: int,
        **others: Any,  # noqa: ANN401 - the values of other options
    ) -> None:
        if rpc_url is None:
            _require_cluster(
                rpc_websocket_url=rpc_websocket_url,
                allow_mainnet=allow_mainnet,
                usdc_mint=usdc_mint,
                fee_payer_key_file=fee_payer_key_file,
                mint_authority_key_file=mint_authority_key_file,
                priority_fee=priority_fee,
                priority_fee_cap=priority_fee_cap,
            )
            command(rpc=None, **others)
            return
        try:
            rpc = RpcSettings(
                url=rpc_url,
                websocket_url=rpc_websocket_url,
                finality=finality,
                allow_mainnet=allow_mainnet,
                usdc_mint=usdc_mint,
                timeout_seconds=rpc_timeout,
                compute_unit_limit=compute_unit_limit,
                priority_fee_micro_lamports=priority_fee,
                priority_fee_cap_micro_lamports=priority_fee_cap,
                fee_payer_key=_key(fee_payer_key_file, FEE_PAYER_VARIABLE),
                mint_authority_key=_key(mint_authority_key_file, MINT_AUTHORITY_VARIABLE),
            )
        except ValueError as error:
            raise click.UsageError(f"{error}.") from None
        command(rpc=rpc, **others)

    for option in reversed(_OPTIONS):
        with_cluster = option(with_cluster)
    return with_cluster


def _require_cluster(**given: object) -> None:
    for name, value in given.items():
        if value:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} requires --rpc-url.")


def _key(path: Path | None, variable: str) -> bytes | None:
    """Return the key from a file or an environment variable, if one is set."""
    try:
        text = os.environ.get(variable) if path is None else path.read_text("utf-8")
    except (OSError, UnicodeError):
        raise click.UsageError(f"cannot read {path}.") from None
    if not text:
        return None
    try:
        return read_key(text)
    except ValueError as error:
        raise click.UsageError(f"{variable if path is None else path}: {error}.") from None
