"""Lists as CSV (RFC 4180), for the service's exports and for the commands.

Each field of an item is a column, and each field of an object within it too: `policy.paused`. Lists, and
objects without declared fields, are JSON. Amounts and times are as on the wire.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args, get_origin

import attrs

from agentpay.contract import codec
from agentpay.contract.events import EVENTS, Event
from agentpay.contract.models import Model
from agentpay.contract.schemas import wire_name

# A spreadsheet runs what begins like a formula, in small and full width too, after quotes, white space and
# what is not shown; and after every separator that it may take a list to have.
_FORMULA: Final = re.compile(
    r"(^|[,;|\t\r\n])"
    r'(["\s\x00-\x1f\x7f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e'
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]*)"
    r"(?=[=+\-@\ufe62\ufe63\ufe66\ufe6b\uff1d\uff0b\uff0d\uff20])"
)
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)


class CsvPrinter:
    """Prints items of one model.

    Attributes:
        heading: the line of column names.
    """

    def __init__(self, model: type[Model]) -> None:
        self._columns = _columns(model)
        self.heading: str = _line([".".join(path) for path in self._columns])

    def lines(self, items: Iterable[Model]) -> str:
        """Return one line for each item."""
        values = map(codec.unstructure, items)
        return "".join(_line([_cell(_at(value, path)) for path in self._columns]) for value in values)


def _columns(model: type[Any], within: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: dict[tuple[str, ...], None] = {}
    for each in attrs.fields(model):
        path = (*within, wire_name(each))
        if issubclass(model, Event) and each.name == "data":
            inner: list[type[Any]] = [kind.data for kind in EVENTS.values()]
        else:
            kinds = (each.type, *(() if get_origin(each.type) is tuple else get_args(each.type)))
            inner = [kind for kind in kinds if isinstance(kind, type) and attrs.has(kind)]
        found |= dict.fromkeys([column for one in inner for column in _columns(one, path)] or [path])
    return list(found)


def _at(value: Any, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - a JSON value
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _cell(value: Any) -> str:  # noqa: ANN401 - a JSON value
    if value is None:
        return ""
    text = value if isinstance(value, str) else codec.print_json(value).decode("ascii")
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub(r"\1'\2", text)


def _line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()
