"""One request and its answer as plain values: what handlers see instead of ASGI."""

from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen

from agentpay_server.domain.principals import Principal

JSON_TYPE: Final = b"application/json"
DROP: Final = "agentpay.drop"
"""Where a port puts into the ASGI scope what ends the connection at once, without an answer."""

REFUSED: Final = "agentpay.refused"
"""ASGI scope key of the problem with which the application must refuse a request; set by a port."""

SHARE: Final = "agentpay.share"
"""ASGI scope key of the number of requests that one operator may have in service; set by a port."""

WHOLE: Final = "agentpay.whole"
"""Where a caller in process says in the ASGI scope that its body is there already: nothing is waited for."""


class DroppedError(Exception):
    """The connection is to end without an answer."""


@frozen(kw_only=True)
class Call:
    """A request that has passed authentication and validation.

    Attributes:
        principal: who asks.
        path: parameters of the path.
        headers: header fields, names in lower case.
        body: the model of the body, None where the endpoint takes none.
        query: the model of the query, None where the endpoint takes none.
    """

    principal: Principal
    path: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None
    query: Any = None


@frozen(kw_only=True)
class Reply:
    """A success: its status, its model, and headers beyond the usual ones."""

    status: int
    model: object = None
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())
