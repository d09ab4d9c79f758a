"""Options of commands are declared once, with the setting that they set."""

import json
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import certifi
import click
import pytest
import rpc_world
from attrs import field, fields, frozen
from click.testing import CliRunner

from agentpay_server import RpcSettings, Settings
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.chain.custody import TREASURY
from agentpay_server.cli import main, process
from agentpay_server.cli.options import Declared, SettingOption, settings_of, takes
from agentpay_server.cli.serve import log_format_of, serve
from agentpay_server.platform.logs import LogFormat
from agentpay_server.platform.principals import KeyKind, new_key
from agentpay_server.platform.settings import Bounds, option

DECLARED = [each for kind in (ServerConfig, Settings, RpcSettings) for each in settings_of(kind)]
VALUES: dict[str, tuple[str, object]] = {
    "--database-url": ("postgresql://db.invalid/x", "postgresql://db.invalid/x"),
    "--database-schema": ("other", "other"),
    "--policy-update": ("replace", "replace"),
    "--onchain-memo": ("full", "full"),
    "--finality": ("finalized", "finalized"),
    "--rpc-url": ("http://node.invalid/path", "http://node.invalid/path"),
    "--rpc-websocket-url": ("ws://node.invalid/path", "ws://node.invalid/path"),
    "--usdc-mint": ("7" * 32, "7" * 32),
    "--metrics-key": ("m3trics", "m3trics"),
    "--no-dashboard": ("", False),
    "--allow-mainnet": ("", True),
}
"""What to pass for an option, and what its setting then is; for all others, a number."""


def configured(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, environment: dict[str, str] | None = None
) -> ServerConfig:
    """Return the configuration of a server that is started with these arguments."""
    found: list[ServerConfig] = []
    monkeypatch.setattr(process, "run", lambda _host, _port, config, **_: found.append(config))
    result = CliRunner(env=environment).invoke(main, ["serve", *arguments])
    assert result.exit_code == 0, result.output
    (config,) = found
    return config


def value_of(config: ServerConfig, declared: Declared) -> object:
    holders = {ServerConfig: config, Settings: config.settings, RpcSettings: config.rpc}
    return getattr(holders[declared.kind], declared.field.name)


def case_of(declared: Declared, directory: Path) -> tuple[str, object]:
    if declared.field.type in (bytes | None, Path | None):
        path = directory / "given"
        if declared.field.name == "data_dir":
            return str(path), path
        path.write_text(json.dumps(list(rpc_world.GIVEN[TREASURY])))
        return str(path), rpc_world.GIVEN[TREASURY]
    if declared.field.name == "operator_key":
        key = new_key(KeyKind.OPERATOR, bytes(range(32)))
        return key, key
    if declared.field.name == "webhook_ca":
        return certifi.where(), certifi.where()
    return VALUES.get(declared.option.name, ("7", Decimal(7)))


@pytest.mark.parametrize("declared", DECLARED, ids=lambda each: each.option.name)
def test_every_declared_option_sets_its_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, declared: Declared
) -> None:
    text, expected = case_of(declared, tmp_path)
    arguments = [declared.option.name, text] if text else [declared.option.name]
    if declared.kind is RpcSettings and declared.option.name != "--rpc-url":
        arguments += ["--rpc-url", "http://node.invalid"]
    if declared.option.name == "--database-schema":
        arguments += ["--database-url", "postgresql://db.invalid/x"]
    assert value_of(configured(monkeypatch, *arguments), declared) == expected


@pytest.mark.parametrize(
    "declared", [each for each in DECLARED if each.option.variable], ids=lambda each: each.option.variable
)
def test_every_declared_variable_sets_its_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, declared: Declared
) -> None:
    text, expected = case_of(declared, tmp_path)
    if declared.field.type == (bytes | None):
        text = Path(text).read_text()
    assert declared.option.variable is not None
    arguments = ["--rpc-url", "http://node.invalid"] if declared.kind is RpcSettings else []
    if declared.option.name == "--rpc-url":
        arguments = []
    if declared.option.name == "--database-schema":
        arguments = ["--database-url", "postgresql://db.invalid/x"]
    config = configured(monkeypatch, *arguments, environment={declared.option.variable: text})
    assert value_of(config, declared) == expected


def test_without_options_a_server_has_the_defaults_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(monkeypatch)
    assert (config.settings, config.rpc) == (Settings(), None)
    cluster = configured(monkeypatch, "--rpc-url", "http://node.invalid").rpc
    assert cluster == RpcSettings(url="http://node.invalid")


def test_every_setting_of_the_command_is_declared() -> None:
    options = [each for each in serve.params if isinstance(each, SettingOption)]
    assert sorted(each.opts[0] for each in options) == sorted(each.option.name for each in DECLARED)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--finality", "finalized"],
        ["--rpc-timeout", "3"],
        ["--compute-unit-limit", "7"],
        ["--priority-fee", "1"],
        ["--allow-mainnet"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_option_of_a_cluster_requires_one(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 2
    assert f"{arguments[0]} requires --rpc-url." in result.output


# --- A new setting


class Taste(StrEnum):
    SWEET = "sweet"
    SOUR = "sour"


@frozen(kw_only=True)
class Kitchen:
    """Settings that no command knows."""

    cook_seconds: float = field(
        default=2.5,
        validator=Bounds(above=0, at_most=10),
        metadata=option("--cook-for", "How long to cook.", variable="KITCHEN_COOK_FOR"),
    )
    taste: Taste = field(default=Taste.SOUR, converter=Taste, metadata=option("--taste", "The taste."))
    price_sol: Decimal | None = field(
        default=None,
        validator=Bounds(at_least=0, or_none=True),
        metadata=option("--price", "The price, or none for no limit.", default="the market's"),
    )
    is_heated: bool = field(default=True, metadata=option("--no-heat", "Serve it cold."))
    hidden: int = 3


@click.command()
@takes(Kitchen, "kitchen")
@click.option("--table", type=int)
def order(*, kitchen: dict[str, Any], table: int | None) -> None:
    """Print what was given."""
    click.echo(f"{Kitchen(**kitchen)} {table}")


def test_a_setting_becomes_an_option_by_its_declaration() -> None:
    assert CliRunner().invoke(order, []).output == f"{Kitchen()} None\n"
    arguments = ["--cook-for", "7", "--taste", "sweet", "--price", "none", "--no-heat", "--table", "4"]
    chosen = Kitchen(cook_seconds=7.0, taste=Taste.SWEET, price_sol=Decimal("Infinity"), is_heated=False)
    assert CliRunner().invoke(order, arguments).output == f"{chosen} 4\n"
    from_variable = CliRunner(env={"KITCHEN_COOK_FOR": "9"}).invoke(order, [])
    assert from_variable.output == f"{Kitchen(cook_seconds=9.0)} None\n"


def test_the_help_has_the_declared_unit_default_and_range() -> None:
    said = " ".join(CliRunner().invoke(order, ["--help"]).output.split())
    assert "--cook-for SECONDS How long to cook. [env var: KITCHEN_COOK_FOR; default: 2.5; 0<x<=10]" in said
    assert "--taste [sweet|sour] The taste. [default: sour]" in said
    assert "--price SOL The price, or none for no limit. [default: the market's]" in said
    assert "--hidden" not in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--cook-for", "0"], "0.0 is not in the range 0<x<=10"),
        (["--cook-for", "nan"], "not a number"),
        (["--taste", "bitter"], "'bitter' is not one of 'sweet', 'sour'"),
        (["--price", "much"], "neither an amount of SOL, such as 0.1, nor none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_value_outside_the_declaration_is_refused(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(order, arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_bounds_name_the_setting_the_limit_and_the_value() -> None:
    with pytest.raises(ValueError, match=r"^idle_timeout_seconds must be more than 0, not 0$"):
        Settings(idle_timeout_seconds=0)
    with pytest.raises(ValueError, match=r"^max_open_sessions must be at least 1, not 0$"):
        Settings(max_open_sessions=0)
    with pytest.raises(ValueError, match=r"^blockhash_seconds must be at least 0 and at most 20, not 21$"):
        RpcSettings(url="http://node.invalid", blockhash_seconds=21)
    with pytest.raises(ValueError, match="not nan"):
        Settings(shutdown_seconds=float("nan"))
    with pytest.raises(TypeError, match="shutdown_seconds must be a number, not None"):
        Settings(shutdown_seconds=None)  # type: ignore[arg-type]


def test_the_defaults_pass_their_own_bounds() -> None:
    for kind in (Settings, RpcSettings, ServerConfig):
        for each in fields(kind):
            if isinstance(each.validator, Bounds) and each.default is not None:
                each.validator(None, each, each.default)


def test_a_server_on_a_terminal_logs_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = {}
    for is_terminal in (True, False):
        monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda is_it=is_terminal: is_it))
        formats[is_terminal] = [log_format_of(given) for given in (None, "json", "text")]
    assert formats[True] == [LogFormat.TEXT, LogFormat.JSON, LogFormat.TEXT]
    assert formats[False] == [LogFormat.JSON, LogFormat.JSON, LogFormat.TEXT]
