"""Lists for people: one line per item, identifiers whole, names before identifiers.

On a narrow terminal, text is shortened with an ellipsis, in optional columns first; optional columns that
still do not fit are left out. Identifiers, amounts and times are never cut; of an on-chain address, the ends
are shown. Elsewhere nothing is cut or left out.
"""

import re
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from agentpay.cli.columns import Column, Show, amount
from agentpay.contract.events import EVENTS
from agentpay.contract.fields import format_timestamp
from agentpay.contract.printable import printable

_GAP: Final = "  "
_TEXT_MINIMUM: Final = 10
_REQUIRED_TEXT: Final = 16
"""Minimum width of text in required columns, if all of them fit. Most names are shorter."""
_ADDRESS: Final = re.compile(r"[1-9A-HJ-NP-Za-km-z]{32,44}", re.ASCII)
_RELATIVE_SECONDS: Final = 7 * 24 * 3600

_TONES: Final = {"good": "green", "warning": "yellow", "bad": "red"}

STYLES: Final[Mapping[str, str]] = {
    "active": "green",
    "approved": "green",
    "delivered": "green",
    "settled": "green",
    "settled, not delivered": "red",
    "pending": "yellow",
    "pending_approval": "yellow",
    "retrying": "yellow",
    "submitted": "yellow",
    "failed": "red",
    "paused": "red",
    "rejected": "red",
    "suspended": "red",
    "undelivered": "red",
    **{name: _TONES[kind.tone] for name, kind in EVENTS.items() if kind.tone},
}


def lines(
    items: Sequence[object], columns: Sequence[Column], *, width: int, is_wide: bool, now: datetime
) -> list[Text]:
    """Return the heading and one line per item.

    `width` is in cells. `is_wide` shows every column, nothing shortened, and times as timestamps; otherwise
    they are relative to `now`.
    """
    shown = [column for column in columns if is_wide or column.show is not Show.WIDE]
    values = {column.heading: [column.look(item) for item in items] for column in shown}
    cells = {
        heading: [cell(value, is_wide=is_wide, now=now, decimals=_decimals(found)) for value in found]
        for heading, found in values.items()
    }
    amounts = {heading for heading, found in values.items() if any(isinstance(v, Decimal) for v in found)}
    natural = _natural(cells)
    if not is_wide and _total(natural) > width:
        cells = {heading: [_brief(text) for text in texts] for heading, texts in cells.items()}
        natural = _natural(cells)
    widths = natural if is_wide else _fitted(shown, natural, width)
    heading = [Text(name, style="dim") for name in widths]
    rows = [heading, *([cells[name][place] for name in widths] for place in range(len(items)))]
    return [_line(row, widths, amounts) for row in rows]


def cell(value: object, *, is_wide: bool, now: datetime, decimals: int = 2) -> Text:
    """Return a value as text for a table; an amount with at least this number of decimals."""
    if isinstance(value, datetime) and not is_wide:
        return Text(relative(value, now))
    if isinstance(value, Decimal) and not is_wide:
        return Text(amount(value, decimals))
    return styled(value)


def styled(value: object) -> Text:
    """Return a value as text for the terminal; escape sequences are made harmless."""
    if isinstance(value, Text):
        shown = printable(value.plain)
        return value if shown == value.plain else Text(shown, style=value.style)
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, datetime):
        return Text(format_timestamp(value))
    text = printable(str(value))
    return Text(text, style=STYLES.get(text, ""))


def _decimals(values: Sequence[object]) -> int:
    """Return the number of decimals with which all amounts of a column are shown."""
    return max((len(amount(v).partition(".")[2]) for v in values if isinstance(v, Decimal)), default=2)


def relative(moment: datetime, now: datetime) -> str:
    """Return a time relative to now, such as `5m ago`; beyond a week, its date."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) > _RELATIVE_SECONDS:
        return f"{moment.astimezone(UTC):%Y-%m-%d}"
    size = abs(seconds)
    for unit, length in (("d", 24 * 3600), ("h", 3600), ("m", 60)):
        if size >= length:
            distance = f"{int(size // length)}{unit}"
            break
    else:
        distance = f"{int(size)}s"
    return f"{distance} ago" if seconds >= 0 else f"in {distance}"


def _natural(cells: Mapping[str, Sequence[Text]]) -> dict[str, int]:
    return {
        heading: max(map(cell_len, (heading, *(text.plain for text in texts))))
        for heading, texts in cells.items()
    }


def _brief(text: Text) -> Text:
    return Text(f"{text.plain[:4]}…{text.plain[-4:]}") if _ADDRESS.fullmatch(text.plain) else text


def _fitted(columns: Sequence[Column], natural: Mapping[str, int], width: int) -> dict[str, int]:
    """Return the columns to show and their widths: required ones, then each optional one that fits."""
    required = [column for column in columns if column.show is not Show.IF_IT_FITS]
    kept = _REQUIRED_TEXT if _total(_least(required, natural, _REQUIRED_TEXT)) <= width else _TEXT_MINIMUM
    least = _least(required, natural, kept)
    for column in columns:
        if column.show is Show.IF_IT_FITS:
            with_it = least | _least([column], natural, _TEXT_MINIMUM)
            if _total(with_it) <= width:
                least = with_it
    widths = {column.heading: least[column.heading] for column in columns if column.heading in least}
    spare = max(width - _total(widths), 0)
    for heading, least_width in widths.items():
        more = min(natural[heading] - least_width, spare)
        widths[heading] += more
        spare -= more
    return widths


def _least(columns: Sequence[Column], natural: Mapping[str, int], text: int) -> dict[str, int]:
    """Return the smallest width of each column, where text keeps the given number of cells."""
    return {
        column.heading: min(natural[column.heading], max(text, cell_len(column.heading)))
        if column.is_text
        else natural[column.heading]
        for column in columns
    }


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _line(row: Sequence[Text], widths: Mapping[str, int], amounts: Container[str]) -> Text:
    """Return a row as one line: amounts to the right, everything else to the left."""
    line = Text()
    for place, (text, (heading, width)) in enumerate(zip(row, widths.items(), strict=True)):
        fitted = text.copy()
        if fitted.cell_len > width:
            fitted.truncate(width, overflow="ellipsis")
        space = " " * (width - fitted.cell_len)
        if heading in amounts:
            line.append(space)
            space = ""
        line.append_text(fitted)
        if place < len(row) - 1:
            line.append(space + _GAP)
    return line
