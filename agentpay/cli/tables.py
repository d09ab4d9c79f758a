"""Lists for people: one line per item, identifiers whole, names before identifiers.

On a narrow terminal, optional columns that do not fit are left out, and text is shortened with an ellipsis.
Identifiers, amounts and times are never cut; of an on-chain address, the ends are shown. Elsewhere nothing is
cut or left out.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from typing import Final

from rich.console import Console
from rich.text import Text

from agentpay.cli.commands import Column, Show
from agentpay.contract.events import EVENTS
from agentpay.contract.fields import format_timestamp
from agentpay.contract.printable import printable

_GAP: Final = 2
_TEXT_MINIMUM: Final = 10
_TEXT_KEPT: Final = 16
"""The width of texts that optional columns leave. Most names are shorter."""
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
    items: Sequence[object],
    columns: Sequence[Column],
    *,
    width: int,
    is_wide: bool,
    now: datetime,
    names: Callable[[Sequence[str]], Sequence[str]] = list,
) -> list[Text]:
    """Return the heading and one line per item.

    `width` is in cells. `is_wide` shows every column, nothing shortened, and times as timestamps; otherwise
    they are relative to `now`. `names` puts names in place of the identifiers of accounts in texts.
    """
    from rich.table import Table

    cells: dict[Column, list[Text]] = {}
    amounts = set()
    for column in columns:
        if is_wide or column.show is not Show.WIDE:
            values = [column.value(item) for item in items]
            if column.is_account:
                named = iter(names([str(value) for value in values if value]))
                values = [value and next(named) for value in values]
            decimals = [len(amount(v).partition(".")[2]) for v in values if isinstance(v, Decimal)]
            if decimals:
                amounts.add(column)
            cells[column] = [
                styled(value) if is_wide else _cell(value, now, max(decimals, default=0)) for value in values
            ]
    natural = _widths(cells)
    if not is_wide and _total(natural) > width:
        cells = {column: [_brief(text) for text in texts] for column, texts in cells.items()}
        natural = _widths(cells)
    least = natural if is_wide else _narrowed(_fitting(natural, width), _TEXT_MINIMUM)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for column in least:
        table.add_column(
            Text(column.heading),
            justify="right" if column in amounts else "left",
            # The table shortens what has no fixed width.
            width=None if column.is_text else natural[column],
        )
        for text in cells[column]:
            text.no_wrap, text.overflow = True, "ellipsis"
    for place in range(len(items)):
        table.add_row(*(cells[column][place] for column in least))
    console = Console(width=max(width, _total(least)), file=StringIO())
    printed = [
        Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        for segments in console.render_lines(table, pad=False)
    ]
    for line in printed:
        line.rstrip()
    return printed


def _cell(value: object, now: datetime, decimals: int) -> Text:
    if isinstance(value, datetime):
        return Text(relative(value, now))
    if isinstance(value, Decimal):
        return Text(amount(value, decimals))
    return styled(value)


def amount(value: Decimal, decimals: int = 2) -> str:
    """Return an amount with at least this number of decimals, without further trailing zeros."""
    whole, _, fraction = f"{value:f}".partition(".")
    return f"{whole}.{fraction.rstrip('0'):0<{decimals}}"


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


def _brief(text: Text) -> Text:
    return Text(f"{text.plain[:4]}…{text.plain[-4:]}") if _ADDRESS.fullmatch(text.plain) else text


def _widths(cells: Mapping[Column, Sequence[Text]]) -> dict[Column, int]:
    return {
        column: max(len(column.heading), *(text.cell_len for text in texts))
        for column, texts in cells.items()
    }


def _fitting(natural: Mapping[Column, int], width: int) -> dict[Column, int]:
    """Return the columns to show: required ones, and each optional one that fits besides them."""
    widths = _narrowed(natural, _TEXT_KEPT)
    shown = {column for column in natural if column.show is not Show.IF_IT_FITS}
    for column in natural:
        if _total({each: widths[each] for each in (*shown, column)}) <= width:
            shown.add(column)
    return {column: natural[column] for column in natural if column in shown}


def _narrowed(widths: Mapping[Column, int], text: int) -> dict[Column, int]:
    return {column: min(width, text) if column.is_text else width for column, width in widths.items()}


def _total(widths: Mapping[Column, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)
