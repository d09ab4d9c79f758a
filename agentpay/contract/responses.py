"""The HTTP response to a call, which each returned model keeps."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from agentpay.contract import json_text
from agentpay.contract.printable import printable

_ID_MAX_CHARACTERS = 2000


@frozen
class RawResponse:
    """The HTTP response to a call: `response` of the returned model, and the result of `client.request`.

    Attributes:
        status_code: HTTP status.
        headers: header fields; lookups ignore case.
        content: the whole body. Not in `repr`, because it may contain a secret.
        retries_made: how many attempts failed before.
    """

    __module__ = "agentpay"

    status_code: int
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)
    retries_made: int = 0

    @property
    def request_id(self) -> str | None:
        """Identifies the request in the service's logs; None if the response has none."""
        value = self.headers.get("x-request-id")
        return None if value is None else printable(value[:_ID_MAX_CHARACTERS])

    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """Return the JSON value of the body, with numbers with a fraction as `Decimal`; None if it is empty.

        Raises:
            ValueError: the body is not JSON.
        """
        return json_text.parse_json(self.content) if self.content else None
