"""The header fields of requests and answers, beside `Authorization` and those of HTTP itself."""

from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen


@frozen(kw_only=True)
class Header:
    """One header field.

    Attributes:
        name: its name.
        meaning: what it says, one sentence.
        example: a value that it may have.
        keywords: its values in JSON Schema.
    """

    name: str
    meaning: str
    example: str | int
    keywords: Mapping[str, Any] = field(eq=False)


REQUEST_ID: Final = Header(
    name="X-Request-Id",
    meaning="Identifies the request in the service's logs.",
    example="req_01kdvdna0049bdrk9b68rp8kma",
    keywords={"type": "string", "pattern": "^req_"},
)
RETRY_AFTER: Final = Header(
    name="Retry-After",
    meaning="Seconds to wait before the request is sent again.",
    example=1,
    keywords={"type": "integer", "minimum": 1},
)
WWW_AUTHENTICATE: Final = Header(
    name="WWW-Authenticate",
    meaning="The scheme of authentication that is asked for.",
    example="Bearer",
    keywords={"type": "string", "const": "Bearer"},
)
ETAG: Final = Header(
    name="ETag",
    meaning="Names this version of the policy.",
    example='"1"',
    keywords={"type": "string", "pattern": '^"[0-9]+"$'},
)
IF_MATCH: Final = Header(
    name="If-Match",
    meaning="Change the policy only while this is its version: an `ETag` as received, or `*`.",
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
    429: (RETRY_AFTER,),
    503: (RETRY_AFTER,),
}
"""What an error answer carries beside `X-Request-Id`, by its status (interface E4, E7, R18)."""
