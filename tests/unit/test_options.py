"""Options of commands are declared once, with the setting that they set."""

import json
from decimal import Decimal
from pathlib import Path

import certifi
import pytest
import rpc_world
from attrs import fields
from click.testing import CliRunner

from agentpay_server import RpcSettings, Settings
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.chain.custody import TREASURY
from agentpay_server.cli import main, process
from agentpay_server.cli.options import Declared, SettingOption, settings_of
from agentpay_server.cli.serve import serve
from agentpay_server.platform.principals import KeyKind, new_key
from agentpay_server.platform.settings import Bounds

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
def test_every_declared_option_and_variable_sets_its_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, declared: Declared
) -> None:
    name, variable = declared.option.name, declared.option.variable
    text, expected = case_of(declared, tmp_path)
    needed = ["--rpc-url", "http://node.invalid"] if declared.kind is RpcSettings else []
    if name == "--rpc-url":
        needed = []
    if name == "--database-schema":
        needed = ["--database-url", "postgresql://db.invalid/x"]
    config = configured(monkeypatch, name, *([text] if text else []), *needed)
    assert value_of(config, declared) == expected
    if variable is not None:
        told = Path(text).read_text() if declared.field.type == (bytes | None) else text
        config = configured(monkeypatch, *needed, environment={variable: told})
        assert value_of(config, declared) == expected


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


def test_an_amount_of_sol_is_a_number_or_none_and_a_choice_is_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert configured(monkeypatch, "--fee-budget", "none").settings.fee_budget_sol == Decimal("Infinity")
    for arguments, says in (
        (["--fee-budget", "much"], "neither an amount of SOL, such as 0.1, nor none"),
        (["--onchain-memo", "bitter"], "'bitter' is not one of"),
        (["--fee-budget", "-1"], "neither an amount of SOL, such as 0.1, nor none"),
    ):
        result = CliRunner().invoke(main, ["serve", *arguments])
        assert (result.exit_code, says in " ".join(result.output.replace("│", "").split())) == (2, True)


# --- Bounds


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
