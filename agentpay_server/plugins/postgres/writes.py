"""Writes that a unit of work on PostgreSQL holds back, to send them as one statement.

An INSERT is held until its result is read, another statement names its table, or the unit ends. All rows of
all held statements are then one statement: a round trip costs the server more than the write itself.

    WITH w0 AS (INSERT INTO transfers (...) SELECT ... FROM unnest($1::VARCHAR[], ...) ... RETURNING 1),
         w1 AS (INSERT INTO audit (...) SELECT $24::VARCHAR, ... RETURNING 1)
    SELECT (SELECT count(*) FROM w0), (SELECT count(*) FROM w1)

PostgreSQL runs the parts in no particular order. So a table is in one part only, whose rows are in order.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import define, field, frozen
from sqlalchemy import Executable, Insert

from agentpay_server.database.connection import Prepared

_PLACEHOLDER: Final = re.compile(r"\$(\d+)")
_VALUES: Final = re.compile(r"(INSERT INTO \w+ \([^)]*\)) VALUES \((\$\d+::\w+(?:, \$\d+::\w+)*)\)")


@frozen
class _InsertShape:
    """A statement that can be held.

    Attributes:
        head: the statement up to its rows.
        types: the types of its parameters; None if it is not a list of values, and takes one row only.
    """

    table: str
    head: str
    types: tuple[str, ...] | None
    width: int

    def part(self, first: int) -> str:
        """Return it as a part of a larger statement, whose parameters up to `first` belong to others."""
        if self.types is None:
            return _PLACEHOLDER.sub(lambda found: f"${first + int(found[1])}", self.head)
        arrays = ", ".join(f"${first + n}::{name}[]" for n, name in enumerate(self.types, 1))
        columns = ", ".join(f"p{n}" for n in range(1, self.width + 1))
        # In order, because the rows get their sequence numbers so.
        rows = f"unnest({arrays}) WITH ORDINALITY AS given({columns}, place)"
        return f"{self.head} SELECT {columns} FROM {rows} ORDER BY place"  # noqa: S608 - of our statements


@define(eq=False)
class HeldRows:
    """Rows of one statement that are held, or were sent.

    Attributes:
        count: how many rows were written; None until they are sent.
    """

    shape: _InsertShape
    rows: list[Sequence[Any]] = field(factory=list)
    count: int | None = None

    @property
    def parameters(self) -> list[Any]:
        """The parameters of its part."""
        if self.shape.types is None:
            return list(self.rows[0])
        return [list(column) for column in zip(*self.rows, strict=True)]


class HeldWrites:
    """The writes that one unit of work has not sent yet."""

    def __init__(self) -> None:
        self._held: dict[str, HeldRows] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def concern(self, text: str) -> bool:
        """Return whether a statement may name a table that has held writes."""
        return any(table in text for table in self._held)

    def add(self, shape: _InsertShape, rows: Sequence[Sequence[Any]]) -> HeldRows | None:
        """Hold rows; None if the writes that are held must be sent first."""
        held = self._held.get(shape.table)
        if shape.types is None:
            # It may read what is held, which parts of one statement do not see of each other.
            if len(rows) > 1 or self.concern(shape.head):
                return None
        elif held is not None and held.shape is not shape:
            return None
        if held is None:
            held = self._held[shape.table] = HeldRows(shape)
        held.rows.extend(rows)
        return held

    def take(self) -> tuple[list[HeldRows], str, list[Any]]:
        """Return what is held, the one statement for it, and its parameters; nothing is held any more."""
        taken = list(self._held.values())
        self._held.clear()
        return taken, _together(tuple(held.shape for held in taken)), [p for h in taken for p in h.parameters]


_shapes: dict[str, _InsertShape | None] = {}
_texts: dict[tuple[_InsertShape, ...], str] = {}


def shape_of(statement: Executable, prepared: Prepared) -> _InsertShape | None:
    """Return how a statement can be held; None if it must be sent at once."""
    if not isinstance(statement, Insert):
        return None
    try:
        return _shapes[prepared.text]
    except KeyError:
        found = _shapes[prepared.text] = _shape(statement, prepared)
        return found


def _shape(statement: Insert, prepared: Prepared) -> _InsertShape | None:
    text, table = " ".join(prepared.text.split()), statement.table.name
    if "RETURNING" in text:
        return None
    found = _VALUES.fullmatch(text)
    if found is None:
        return _InsertShape(table, text, None, len(prepared.names))
    given = [each.split("::") for each in found[2].split(", ")]
    if [place for place, _ in given] != [f"${n}" for n in range(1, len(given) + 1)]:
        return None
    return _InsertShape(table, found[1], tuple(name for _, name in given), len(given))


def _together(shapes: tuple[_InsertShape, ...]) -> str:
    text = _texts.get(shapes)
    if text is None:
        parts, first = [], 0
        for n, shape in enumerate(shapes):
            parts.append(f"w{n} AS ({shape.part(first)} RETURNING 1)")
            first += shape.width
        counts = [f"(SELECT count(*) FROM w{n})" for n in range(len(shapes))]  # noqa: S608 - of our statements
        text = _texts[shapes] = f"WITH {', '.join(parts)} SELECT {', '.join(counts)}"
    return text
