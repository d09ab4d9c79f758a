"""The pages of the interface: numbered rules, nothing left out, and nothing cited that is not there."""

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import attrs
import pytest

from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import ErrorBody, ErrorCode, RejectionReason
from agentpay.contract.events import EVENTS
from agentpay.contract.ext.deliveries import DeliveryStatusFilter
from agentpay.contract.ext.sessions import ClosingReason, SessionStatus
from agentpay.contract.schemas import wire_name
from agentpay.contract.transactions import Direction, TransactionStatusFilter, TransactionType
from agentpay.contract.transfers import TransferStatus
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS, HttpEffect

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference" / "interface"
PAGES = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.md"))}
PAGE = "\n".join(PAGES.values())
CODE = ("agentpay", "agentpay_server", "benchmarks", "examples", "scripts", "tests")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(path for name in CODE for path in (ROOT / name).rglob("*.py"))

_RULE = re.compile(r'^- <a id="([^"]+)"></a>\*\*([A-Z]+)(\d+)(?: \((\w+)\))?\.\*\* (.*)', re.MULTILINE)
_ID = r"[A-Z]{1,2}\d+"
# As docstrings cite rules, on one line or two: `interface T4`, `interface T4 and I5`, `interface S1 to S4`.
_CITATION = re.compile(rf"\binterface[\s#]+({_ID}(?:(?:,|,? and| to)[\s#]+{_ID})*)")


@cache
def rules() -> list[tuple[str, int, str]]:
    """The prefix, number and mark of every rule, in the order of the page."""
    return [(prefix, int(number), mark) for _, prefix, number, mark, _ in _RULE.findall(PAGE)]


def cited(text: str) -> Iterator[str]:
    """Every rule that a text cites."""
    for listed in _CITATION.findall(text):
        yield from re.findall(_ID, listed)


@cache
def named() -> set[str]:
    """Every word that stands in a span of code of the page."""
    return {word for span in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w-]+", span)}


def models(kind: Any) -> Iterator[type]:
    """The models that a type is made of, those within them included."""
    for argument in get_args(kind):
        yield from models(argument)
    model = get_origin(kind) or kind
    if isinstance(model, type) and attrs.has(model):
        yield model
        for field in attrs.fields(model):
            yield from models(field.type)


# --- The rules


def test_rules_have_unique_ascending_numbers_and_matching_anchors() -> None:
    assert len(rules()) > 150
    for anchor, prefix, number, _, _ in _RULE.findall(PAGE):
        assert anchor == f"{prefix}{number}".lower()
    by_prefix: dict[str, list[int]] = {}
    for prefix, number, _ in rules():
        by_prefix.setdefault(prefix, []).append(number)
    for prefix, numbers in by_prefix.items():
        # A number that is withdrawn leaves a gap.
        assert numbers == sorted(set(numbers)), prefix
    # None is written so that it would be overlooked here.
    assert len(re.findall(r'<a id="', PAGE)) == len(rules())


def test_every_rule_is_marked_with_its_origin() -> None:
    unmarked = {f"{prefix}{number}" for prefix, number, mark in rules() if not mark}
    assert {mark for _, _, mark in rules() if mark} == {"contract", "ours"}
    assert unmarked == {"E5", "L1"}
    for rule in unmarked:
        table = PAGE.partition(f"**{rule}.**")[2].partition("\n\n")[2].partition("\n\n")[0]
        head, _, *rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
        marks = {row[head.index("mark")] for row in rows}
        assert marks == {"contract", "ours"}


# --- Nothing is left out


@pytest.mark.parametrize("endpoint", BOUND_ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_every_endpoint_and_each_of_its_fields_is_on_the_page(endpoint: Endpoint[Any]) -> None:
    assert f"`{endpoint.method} {endpoint.path}`" in PAGE
    statuses = [str(status) for status in endpoint.responses]
    (row,) = [line for line in PAGE.splitlines() if f"| `{endpoint.method} {endpoint.path}` |" in line]
    assert [status for status in statuses if status not in row] == []
    kinds = [endpoint.request, endpoint.query, *endpoint.responses.values()]
    fields = {wire_name(field) for kind in kinds for model in models(kind) for field in attrs.fields(model)}
    assert fields - named() == set()


def test_every_error_code_is_on_the_page_with_its_status() -> None:
    rows = dict(re.findall(r"^\| (?:\d+) \| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE))
    for code in ErrorCode:
        assert f"| {code.status} | `{code}` | {code.mark} |" in PAGE
    contract = {code for code, mark in rows.items() if mark == "contract"}
    assert contract == {
        "policy_violation",
        "account_paused",
        "insufficient_balance",
        "idempotency_conflict",
        "invalid_recipient",
        "chain_unavailable",
    }
    assert {field.name for field in attrs.fields(ErrorBody)} - named() == set()


@pytest.mark.parametrize(
    "values",
    [
        ClosingReason,
        DeliveryStatusFilter,
        Direction,
        HttpEffect,
        RejectionReason,
        SessionStatus,
        TransactionStatusFilter,
        TransactionType,
        TransferStatus,
    ],
    ids=lambda values: values.__name__,
)
def test_every_value_of_a_field_is_on_the_page(values: type[StrEnum]) -> None:
    assert {value for value in values if f"`{value}`" not in PAGE} - named() == set()


def test_every_event_type_is_on_the_page_with_its_fields() -> None:
    for kind in EVENTS.values():
        (row,) = re.findall(rf"^\| `{re.escape(kind.name)}` \|.*", PAGE, re.MULTILINE)
        fields = {wire_name(field) for field in attrs.fields(cast("Any", kind.data))}
        assert {f"`{name}`" for name in fields} - set(re.findall(r"`[a-z_]+`", row)) == set(), kind.name


# --- Nothing is cited that is not there


def test_every_rule_that_code_or_a_document_cites_is_on_the_page() -> None:
    known = {f"{prefix}{number}" for prefix, number, _ in rules()}
    unknown = {
        f"{path.relative_to(ROOT)}: {rule}"
        for path in [*DOCUMENTS, *SOURCES]
        for rule in cited(path.read_text("utf-8"))
        if rule not in known
    }
    assert unknown == set()
    # Within the pages a rule is named without the word, as a link.
    within = set(re.findall(rf"(?<![\w*`]){_ID}\b", re.sub(r"`[^`]*`|^\|.*", "", PAGE, flags=re.MULTILINE)))
    assert within <= known
    for name, text in PAGES.items():
        prose = re.sub(r"`[^`]*`|<a id=.*?\*\*.*?\*\*|\[[A-Z]+\d+\]\([^)]*\)", "", text)
        assert re.findall(rf"(?<![\w/#]){_ID}\b", prose) == [], name
