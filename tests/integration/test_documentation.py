"""The documentation as a whole: no broken link, no unresolved name, nothing left out, nothing out of date."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import tomllib
import typing
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

import agentpay
import agentpay_server
from agentpay import cli as client
from agentpay import errors, payments, resources, types, webhooks
from agentpay.contract.errors import ErrorCode, RejectionReason
from agentpay.contract.events import EVENTS
from agentpay.integrations import WebhookRouter
from agentpay.mcp.command import parser as tools_parser
from agentpay_lab import cli as laboratory
from agentpay_server import AgentPayServer, Sandbox, Settings, WebhookInbox, cli

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]

_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_REFERENCE = re.compile(r"^::: (\S+)(?:\n    options:\n(?:      .*\n)*)?", re.MULTILINE)

every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@cache
def prose(path: Path) -> str:
    """The text of a document without its blocks of code."""
    return _FENCE.sub("", path.read_text("utf-8"))


def blocks(path: Path, language: str) -> list[str]:
    return [text for _, name, text in _FENCE.findall(path.read_text("utf-8")) if name == language]


def anchors(path: Path) -> set[str]:
    """The anchors of a document: explicit ones, and the ones that both the site and GitHub generate."""
    found = set(_ANCHOR.findall(prose(path)))
    for heading in _HEADING.findall(prose(path)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        ascii_words = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode()
        on_site = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_words).strip().lower())
        on_github = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        if on_site == on_github:
            found.add(on_site)
    return found


def navigation(nav: list[Any]) -> list[str]:
    """The pages of the navigation, in its order."""
    pages: list[str] = []
    for entry in nav:
        for target in entry.values():
            pages += [target] if isinstance(target, str) else navigation(target)
    return pages


def in_navigation() -> list[str]:
    return navigation(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"])


def resolved(name: str) -> object:
    """The object of a dotted name, found as the interpreter finds it."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def is_there(name: str) -> bool:
    try:
        if importlib.util.find_spec(name) is not None:
            return True  # A module, even if the extra that it needs is not installed.
    except ModuleNotFoundError:
        pass  # The last part is not a module.
    try:
        resolved(name)
    except (AssertionError, AttributeError):
        return False
    return True


def test_the_first_example_of_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    readme = ROOT / "README.md"
    exec(blocks(readme, "python")[0], {})
    assert capsys.readouterr().out == blocks(readme, "text")[0]


# --- Links and pages --------------------------------------------------------------------------------------


@every_document
def test_every_link_has_a_target(path: Path) -> None:
    broken = []
    for target in _LINK.findall(prose(path)):
        if re.match(r"https?://|mailto:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        leads_out = path.is_relative_to(DOCS) and not there.is_relative_to(DOCS)
        if leads_out or not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(in_navigation()) == [page.relative_to(DOCS).as_posix() for page in PAGES]


@pytest.mark.parametrize("path", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.stem)
def test_an_image_loads_nothing_from_the_network(path: Path) -> None:
    picture = path.read_text("utf-8")
    addresses = set(re.findall(r"[a-z]+://[^\s\"&<:]+", picture))
    # The name of SVG itself, and what the pictured programs print.
    assert addresses <= {"http://www.w3.org/2000/svg", "http://127.0.0.1"}
    assert not re.search(r"url\((?!#)|@import|<image|<script", picture)


# --- Code -------------------------------------------------------------------------------------------------


# They need packages that cannot be installed here: tests/peers and the tests marked `validator` run them in
# separate environments.
_PROGRAMS_OF_OTHERS = {
    "test-x402-server.md": {"js", "py"},
    "seller.md": {"py"},
    "local-validator.md": {"js"},
    "scenes.md": {"toml"},
    "test-your-agent.md": {"py", "toml"},
}


@every_document
def test_code_blocks_are_python_shell_or_output(path: Path) -> None:
    # Other names would not be collected.
    may = {"python", "sh", "text", "json", "nginx", *_PROGRAMS_OF_OTHERS.get(path.name, ())}
    assert {language for _, language, _ in _FENCE.findall(path.read_text("utf-8"))} <= may


@every_document
def test_commands_can_be_pasted(path: Path) -> None:
    for block in blocks(path, "sh"):
        checked = subprocess.run(["bash", "-n", "-c", block], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@every_document
def test_the_paths_of_the_service_in_commands_exist(path: Path) -> None:
    known = {"/healthz", "/readyz", "/metrics", "/dashboard"}
    for name in ("openapi.json", "openapi-extensions.json"):
        known |= set(json.loads((DOCS / name).read_text("utf-8"))["paths"])
    known = {re.sub(r"\{\w+\}", "…", each) for each in known}
    named = re.findall(r"BASE_URL\}?(/[^\"'`\s?]+)", path.read_text("utf-8"))
    assert not [each for each in named if re.sub(r"\$\{?\w+\}?|\{\w+\}", "…", each) not in known]


def test_the_seller_tutorial_has_the_program_that_runs_with_the_package_x402() -> None:
    tutorial, guide = (
        [code for _, language, code in _FENCE.findall((DOCS / page).read_text("utf-8")) if language == "py"]
        for page in ("tutorial/seller.md", "how-to/test-x402-server.md")
    )
    assert len(tutorial) == 1
    assert tutorial[0] in guide


def commands(group: click.Group) -> dict[str, click.Command]:
    """The commands of a program, and those below them, by the words that name them."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {rest}": below for rest, below in commands(command).items()}
    return found


PROGRAMS = {"agentpay": client.main, "agentpay-server": cli.main, "agentpay-lab": laboratory.main}


def options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@every_document
def test_the_commands_of_the_programs_exist(path: Path) -> None:
    programs = {name: commands(program) for name, program in PROGRAMS.items()}
    lines = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    for line in lines:
        if match := re.match(r"(agentpay(?:-server|-lab)?) ((?:[a-z]\S* ?)+)(.*?)(?:#|>|$)", line):
            known, words = programs[match[1]], match[2].split()
            named = [" ".join(words[:end]) for end in range(len(words), 0, -1)]
            command = next((known[name] for name in named if name in known), None)
            assert command is not None, line
            assert set(re.findall(r"(?<!\S)--[a-z-]+", match[3])) <= options(command), line


@every_document
def test_named_options_variables_files_and_sessions_exist(path: Path) -> None:
    words = prose(path)
    known = set().union(*(options(each) for main in PROGRAMS.values() for each in commands(main).values()))
    known |= {option for action in tools_parser()._actions for option in action.option_strings}
    others = {"--check", "--chain", "--strict", "--store", "--write"}  # of scripts and of pytest
    others |= {"--agentpay-seed", "--agentpay-timeline-dir", "--allow-unix-socket"}
    assert set(re.findall(r"`(--[a-z-]+)", words)) <= known | others
    named = re.findall(r"(?:tests|examples|benchmarks|scripts)/[\w/.]*\w", words)
    named += re.findall(r"`(agentpay\w*/[\w/]+\.py)`", words)
    assert [name for name in named if not (ROOT / name).exists()] == []
    modules = re.findall(r"benchmarks/run\.py (\w+)`", words)
    assert [name for name in modules if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []
    sessions = re.findall(r"nox -s (\w+)", words.replace("\n", " "))
    defined = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text("utf-8"), re.MULTILINE)
    assert set(sessions) <= set(defined)


CLIENT = agentpay.AgentPay(api_key="ap_operator_x", base_url="http://agentpay.invalid")
SANDBOX = Sandbox(CLIENT)
OBJECTS: dict[str, tuple[object, ...]] = {
    **{
        name: (getattr(CLIENT, name),)
        for name in dir(CLIENT)
        if type(getattr(CLIENT, name)).__module__.startswith("agentpay.")
    },
    "inbox": (WebhookInbox,),
    "payments": (CLIENT.payments, payments),
    "server": (AgentPayServer,),
    "server.sandbox": (SANDBOX,),
    "server.sandbox.clock": (SANDBOX.clock,),
    "server.sessions": (CLIENT.sessions,),
    "webhooks": (CLIENT.webhooks, webhooks, WebhookRouter),
}
"""The names of objects in the pages."""


@every_document
def test_code_names_in_the_text_exist(path: Path) -> None:
    if path.name == "metrics-and-logs.md":
        return  # Log events have names of this form too.
    unresolved = []
    for name in re.findall(r"`((?:client\.|await )?[a-z_]+(?:\.\w+)+)", prose(path)):
        text = name.removeprefix("await ").removeprefix("client.")
        owner, _, attribute = text.rpartition(".")
        if text in OBJECTS:
            continue
        if owner in OBJECTS:
            known = any(
                hasattr(each, attribute) or attribute in getattr(each, "__annotations__", ())
                for each in OBJECTS[owner]
            )
        elif text.startswith(("agentpay.", "agentpay_server.")):
            known = is_there(text)
        else:
            continue
        if not known:
            unresolved.append(name)
    assert not unresolved


# --- The reference ----------------------------------------------------------------------------------------


def documented() -> list[str]:
    return [name for path in PAGES for name in _REFERENCE.findall(path.read_text("utf-8"))]


def test_every_documented_name_exists_and_has_a_docstring() -> None:
    for name in documented():
        found = resolved(name)
        if inspect.isclass(found) or inspect.isroutine(found) or inspect.ismodule(found):
            assert inspect.getdoc(found), name
    assert len(documented()) == len(set(documented()))


@pytest.mark.parametrize(
    "package", [agentpay, agentpay_server, webhooks, errors, resources, types], ids=lambda it: it.__name__
)
def test_every_public_name_is_in_the_reference(package: Any) -> None:
    shown = {id(resolved(name)) for name in documented()} | {
        id(getattr(whole, name)) for whole in (errors, payments) for name in whole.__all__
    }
    assert {"agentpay.errors", "agentpay.payments"} <= set(documented())
    public = getattr(package, "__all__", [name for name in vars(package) if not name.startswith("_")])
    missing = [name for name in public if id(getattr(package, name)) not in shown]
    assert missing == ["__version__"] if package is agentpay else missing == []


# --- Errors, events, promises ------------------------------------------------------------------------------


def exception_of(code: ErrorCode) -> type[errors.APIError]:
    body = {"error": code.value, "message": "m", "request_id": "req_1"}
    transport = httpx.MockTransport(lambda _: httpx.Response(code.status, json=body))
    client = agentpay.AgentPay(
        api_key="ap_operator_x", base_url="http://agentpay.invalid", transport=transport, max_retries=0
    )
    with pytest.raises(errors.APIError) as raised:
        client.transfers.get("txn_1")
    return raised.type


def test_the_index_of_errors_has_every_code_with_its_status_and_exception() -> None:
    page = (DOCS / "reference" / "errors.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| \[`(\w+)`\]\(#\2\) \| `(\w+)` \|$", page, re.MULTILINE)
    expected = {(str(code.status), code.value, exception_of(code).__name__) for code in ErrorCode}
    assert set(rows) == expected
    assert len(rows) == len(expected)
    sections = set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))
    assert sections == {*(code.value for code in ErrorCode), *(reason.value for reason in RejectionReason)}


def log_events() -> set[str]:
    sources = (path.read_text("utf-8") for path in (ROOT / "agentpay_server").rglob("*.py"))
    calls = [
        node
        for source in sources
        if " log(" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "log"
    ]
    return {str(call.args[2].value) for call in calls if isinstance(call.args[2], ast.Constant)}


def scenarios() -> set[str]:
    hints = (scenario.__annotations__["name"] for scenario in typing.get_overloads(AgentPayServer.scenario))
    return {name for hint in hints if hint is not str for name in typing.get_args(hint)}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("how-to/test-your-agent.md", scenarios),
        ("how-to/make-calls.md", agentpay.CallOptions.__annotations__.keys),
        ("reference/embedded-server.md", Settings.__annotations__.keys),
        ("reference/events.md", lambda: EVENTS),
        ("reference/metrics-and-logs.md", log_events),
    ],
    ids=["scenarios", "calls", "settings", "events", "logs"],
)
def test_a_page_that_lists_something_lists_all_of_it(page: str, names: Callable[[], Iterable[str]]) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert [*names()]
    assert [name for name in names() if f"`{name}`" not in text] == []


def test_the_pages_show_the_figures_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    measured = importlib.import_module("pages")
    assert measured.stored().keys() == measured.FIGURES.keys()
    for table in measured.TABLES:
        text = table.page.read_text("utf-8")
        assert table.written(text, measured.stored()) == text, "measure again with `nox -s bench -- --write`"
