"""The header fields of requests and responses, besides `Authorization` and those of HTTP itself."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from attrs import field, frozen


@frozen(kw_only=True)
class Header:
    """One header field.

    Attributes:
        name: its name.
        meaning: its meaning, one sentence.
        example: an example value.
        keywords: its JSON Schema keywords.
        is_optional: whether a response that may have it may also lack it.
    """

    name: str
    meaning: str
    example: str | int
    keywords: Mapping[str, Any] = field(eq=False)
    is_optional: bool = False


REQUEST_ID: Final = Header(
    name="X-Request-Id",
    meaning="Identifies the request in the service's logs.",
    example="req_01kdvdna0049bdrk9b68rp8kma",
    keywords={"type": "string", "pattern": "^req_"},
)
RETRY_AFTER: Final = Header(
    name="Retry-After",
    meaning="Seconds to wait before retrying the request.",
    example=1,
    keywords={"type": "integer", "minimum": 1},
)
IDEMPOTENCY_REPLAYED: Final = Header(
    name="Idempotency-Replayed",
    meaning="When the refusal was decided. Sent only if the response repeats it for its `idempotency_key`.",
    example="2026-01-31T12:00:00.000Z",
    keywords={"type": "string", "format": "date-time"},
    is_optional=True,
)
WWW_AUTHENTICATE: Final = Header(
    name="WWW-Authenticate",
    meaning="The required authentication scheme.",
    example="Bearer",
    keywords={"type": "string", "const": "Bearer"},
)
ETAG: Final = Header(
    name="ETag",
    meaning="Identifies this version of the policy.",
    example='"1"',
    keywords={"type": "string", "pattern": '^"[0-9]+"$'},
)
IF_MATCH: Final = Header(
    name="If-Match",
    meaning="Change the policy only if this is its version: an `ETag` as received, or `*`.",
    example='"1"',
    keywords={"type": "string"},
)

LAST_EVENT_ID: Final = Header(
    name="Last-Event-ID",
    meaning="The `id` of the last event that was received: the stream continues after it.",
    example="evt_01kdvdna0049bdrk9b68rp8kma",
    keywords={"type": "string"},
)

STATUS_HEADERS: Final[Mapping[int, tuple[Header, ...]]] = {
    401: (WWW_AUTHENTICATE,),
    402: (IDEMPOTENCY_REPLAYED,),
    429: (RETRY_AFTER,),
    503: (RETRY_AFTER,),
}
"""Header fields of an error response besides `X-Request-Id`, by status."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)


def is_header_name(name: object) -> TypeGuard[str]:
    """Return whether a header field can have this name."""
    return isinstance(name, str) and _TOKEN.fullmatch(name) is not None


def is_header_value(value: object) -> TypeGuard[str]:
    """Return whether it is printable ASCII text without blanks at its ends; it may be empty."""
    return isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip()
