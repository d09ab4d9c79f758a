"""The options of `agentpay-server serve` for a Solana cluster and its fees."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agentpay_server.chain.custody import read_key
from agentpay_server.chain.rpc.settings import RpcSettings
from agentpay_server.cli.declared import Declared, settings_of, takes


def takes_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the cluster options, as an argument `rpc`; None for the embedded chain."""

    @takes(RpcSettings, "rpc")
    @functools.wraps(command)
    def with_cluster(*, rpc: dict[str, Any], **others: Any) -> None:  # noqa: ANN401 - the values of other options
        command(rpc=_cluster(rpc), **others)

    return with_cluster


def _cluster(given: dict[str, Any]) -> RpcSettings | None:
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
