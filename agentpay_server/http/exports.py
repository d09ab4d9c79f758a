"""Whole lists as CSV or lines of JSON: any list of the extensions, by `Accept`, under its own filters.

The pages are read one after another while they are sent. What goes wrong after the response has begun closes
the connection before its end, so that no reader takes a part for the whole.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, get_args, get_origin

import attrs

from agentpay.contract import codec
from agentpay.contract.csv_text import CsvPrinter
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody
from agentpay_server.http.messages import DroppedError
from agentpay_server.platform.logs import log

CSV: Final = "text/csv"
JSON_LINES: Final = "application/jsonl"

_PAGE: Final = 100

logger: logging.Logger = logging.getLogger(__name__)


def is_list(endpoint: Endpoint) -> bool:
    """Whether an endpoint can be exported."""
    return endpoint.is_extension and get_origin(endpoint.responses.get(200)) is PageBody


def wanted(endpoint: Endpoint, headers: Mapping[str, str]) -> str | None:
    """Return the media type of the export that a request asks for, or None."""
    accept = headers.get("accept", "").partition(",")[0].partition(";")[0].strip().lower()
    return accept if accept in (CSV, JSON_LINES) and is_list(endpoint) else None


async def exported(
    endpoint: Endpoint,
    kind: str,
    query: Any,  # noqa: ANN401 - whatever the endpoint takes
    read: Callable[[Any], Awaitable[PageBody[Any]]],
) -> AsyncGenerator[bytes]:
    """Return the pieces of a list, from its first item to its last.

    Raises:
        Problem: of the first page; the response has not begun.
    """
    query = attrs.evolve(query, limit=_PAGE, cursor="")
    first = await read(query)
    if kind == CSV:
        csv = CsvPrinter(get_args(endpoint.responses[200])[0])
        heading, printed = csv.heading, csv.lines
    else:
        heading, printed = "", _json_lines

    async def pieces(page: PageBody[Any]) -> AsyncGenerator[bytes]:
        try:
            yield heading.encode()
            while True:
                yield printed(page.data).encode()
                if not page.has_more:
                    return
                page = await read(attrs.evolve(query, cursor=page.cursor))
        except Exception as error:  # the status has been sent
            log(logger, logging.WARNING, "export.broken_off", exception=error)
            raise DroppedError from error

    return pieces(first)


def _json_lines(items: Iterable[Model]) -> str:
    return "".join(f"{codec.print_json(codec.unstructure(each)).decode('ascii')}\n" for each in items)
