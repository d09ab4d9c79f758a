"""Raw responses: status, headers and body, with the parsed result."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

from attrs import field, frozen

from agentpay._requests import Reply
from agentpay.contract import json_text
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.errors import ResponseValidationError

T_co = TypeVar("T_co", covariant=True)


@frozen(kw_only=True)
class RawResponse(Generic[T_co]):
    """The response to a call, from `client.with_raw_response` or `client.request`.

    Failed calls raise the usual errors. If a call makes several requests, as `policies.update` does, this is
    the response to the last.

    Attributes:
        status: HTTP status, a success.
        headers: header fields; lookups ignore case.
        body: the whole body. Not in `repr`, because it may contain a secret.
        retries_made: how many attempts failed before.
    """

    __module__ = "agentpay"

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    retries_made: int
    _model: T_co | UnsetType = field(repr=False, alias="model")

    @classmethod
    def of(cls, reply: Reply, model: Any = UNSET) -> "RawResponse[Any]":  # noqa: ANN401 - of any endpoint
        return RawResponse(
            status=reply.status,
            headers=reply.headers,
            body=reply.body,
            retries_made=reply.retries_made,
            model=model,
        )

    @property
    def request_id(self) -> str | None:
        """Identifies the request in the service's logs; None if the response has none."""
        return Reply(self.status, self.headers, b"").request_id

    def parse(self) -> T_co:
        """Return what the method itself returns; after `client.request`, the JSON value of the body.

        An empty body is None, and numbers with a fraction are `Decimal`.

        Raises:
            ResponseValidationError: after `client.request`, the body is not JSON.
        """
        if self._model is not UNSET:
            return self._model
        if not self.body:
            return cast("T_co", None)
        try:
            return cast("T_co", json_text.parse_json(self.body))
        except json_text.InvalidJsonError as error:
            raise ResponseValidationError(
                f"the body {error}; read it as `body`", status_code=self.status, request_id=self.request_id
            ) from None
