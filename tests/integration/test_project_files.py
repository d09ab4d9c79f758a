"""The files around the code: what they name exists, and what is drawn or stated once is current."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import surfpool
import yaml
from click.core import ParameterSource
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import agentpay

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import follow  # noqa: E402
import home  # noqa: E402
import release  # noqa: E402
import try_container  # noqa: E402


@pytest.mark.validator
@pytest.mark.timeout(900)
def test_the_guide_to_a_local_validator_works_from_nothing(tmp_path: Path) -> None:
    surfpool.needs_linux_and_node()
    assert follow.follow([ROOT / "docs" / "how-to" / "local-validator.md"], tmp_path) > 0


def test_no_test_module_imports_another() -> None:
    """Each can then run alone; what several need is a helper in their folder or in `tests/support`."""
    imports = re.compile(r"^ *(?:from|import) (test_\w+)", re.MULTILINE)
    found = {
        str(path.relative_to(ROOT)): names
        for path in (ROOT / "tests").rglob("*.py")
        if (names := imports.findall(path.read_text("utf-8")))
    }
    assert found == {}


def test_the_release_script_lists_every_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "version", lambda: "1.2.3")
    ready = "# Changelog\n\n## 1.2.3 · 2026-12-01\n\n- A change.\n\n## 1.2.2 · 2026-11-01\n\n- Another.\n"
    assert release.obstacles("v1.2.3", changelog=ready) == []
    found = release.obstacles("v999.0.0", changelog="## Unreleased\n")
    assert ["is not v1.2.3" in found[0], "no heading" in found[1]] == [True] * 2
    assert release.obstacles("v1.2.3", changelog=ready.replace("- A change.\n", "")) == [
        "CHANGELOG.md says nothing about 1.2.3: list below its heading what is in this version"
    ]


def test_the_version_of_the_tree_is_described_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert release.obstacles(f"v{release.version()}", changelog=changelog) == []


def test_the_home_is_stated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in home.NAMED_IN:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    old = home.home()
    monkeypatch.setattr(home, "ROOT", tmp_path)
    home.main("https://example.org/owner/kit/")
    assert home.home() == "https://example.org/owner/kit"
    texts = {name: (tmp_path / name).read_text("utf-8") for name in home.NAMED_IN}
    assert [name for name, text in texts.items() if old in text] == []
    assert "https://example.org/owner/kit/issues" in texts["pyproject.toml"]
    assert "(https://example.org/owner/kit)" in texts["SECURITY.md"]


def test_the_version_is_stated_once() -> None:
    assert release.version() == agentpay.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "version" in project["dynamic"]
    assert "version" not in project
    # The laboratory has the kit's.
    settings = tomllib.loads((ROOT / "agentpay_lab" / "pyproject.toml").read_text("utf-8"))
    stated = ROOT / "agentpay_lab" / settings["tool"]["hatch"]["version"]["path"]
    assert stated.resolve() == ROOT / "agentpay" / "_version.py"


def instructions() -> list[tuple[str, str]]:
    return try_container.instructions((ROOT / "Containerfile").read_text("utf-8"))


def test_the_container_runs_unprivileged_with_a_health_check() -> None:
    found = instructions()
    keywords = [keyword for keyword, _ in found]
    assert dict(found)["USER"] not in ("0", "root")
    assert keywords.index("USER") > max(place for place, keyword in enumerate(keywords) if keyword == "RUN")
    assert "/readyz" in dict(found)["HEALTHCHECK"]
    for keyword, rest in found:
        if keyword == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
        if keyword == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)


def serve_command() -> Any:
    from agentpay_server.cli import main  # noqa: PLC0415

    return main.get_command(click.Context(main), "serve")


def test_the_container_command_is_a_valid_server_command() -> None:
    serve = serve_command()
    _, *arguments = re.findall(r'"([^"]*)"', dict(instructions())["CMD"])
    with serve.make_context("serve", arguments) as context:
        assert context.params["allow_remote"] is True
        assert str(context.params["stored_data_dir"]) == "/data"


def test_the_compose_file_starts_a_server_on_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = serve_command()
    services = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]
    server = services["server"]
    assert server["depends_on"]["database"]["condition"] == "service_healthy"
    assert (ROOT / server["build"]["dockerfile"]).is_file()
    # Reachable from this machine alone.
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    for name, value in server["environment"].items():
        monkeypatch.setenv(name, value)
    command, *arguments = server["command"]
    assert command == "serve"
    with serve.make_context("serve", arguments) as context:
        named = ParameterSource.ENVIRONMENT
        given = {name for name in context.params if context.get_parameter_source(name) is named}
        assert given == {"stored_database_url", "stored_operator_key"}
    options = {name for option in serve.params for name in (option.envvar or "",)}
    assert set(server["environment"]) - options == {"AGENTPAY_SERVER_ENCRYPTION_KEY"}


# --- Pinned versions --------------------------------------------------------------------------------------

PINS = (ROOT / "constraints.txt").read_text("utf-8").splitlines()


def test_everything_that_is_declared_is_pinned_to_an_allowed_version() -> None:
    pinned: dict[str, list[Version]] = {}
    for line in PINS:
        name, _, version = line.partition(" ;")[0].partition("==")
        pinned.setdefault(name, []).append(Version(version))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = pyproject["project"]
    declared = [
        Requirement(line)
        for lines in (
            project["dependencies"],
            *project["optional-dependencies"].values(),
            *pyproject["dependency-groups"].values(),
        )
        for line in lines
        if isinstance(line, str)
    ]
    wrong = [
        str(each)
        for each in declared
        if each.name != project["name"]
        if not (found := pinned.get(canonicalize_name(each.name)))
        or not all(each.specifier.contains(version) for version in found)
    ]
    assert wrong == [], "run nox -s constraints"
