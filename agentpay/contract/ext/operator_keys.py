"""Operator keys: an operator creates, lists and revokes its own (interface K8, K9)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import text
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.requests import Request


class OperatorKeyKind(StrEnum):
    """Kind of an operator key."""

    OPERATOR = "operator"
    CONSOLE = "console"


@frozen(kw_only=True)
class CreateOperatorKey(Request):
    """Body of `POST /ext/v1/console/operator-keys`.

    Attributes:
        name: display label, 1 to 100 characters.
    """

    name: Annotated[str, text(minimum=1, maximum=100, trim=True, control=False)]


@frozen(kw_only=True)
class OperatorKey(Model):
    """An operator key, without the key itself.

    Attributes:
        key_id: identifier, `key_…`.
        name: display label.
        created_at: when it was created, UTC.
        kind: `operator`, or `console` for the key of a browser that signed in with a link; a
            value that this version does not know stays a plain string.
        expires_at: when it expires, UTC; None for a key that does not.
    """

    _example: ClassVar = {"expires_at": None}

    key_id: str
    name: str
    created_at: datetime
    kind: choices.OperatorKeyKind
    expires_at: datetime | None


@frozen(kw_only=True)
class NewOperatorKey(Model):
    """A newly created operator key. The key is shown only here.

    Its `repr` does not show the key.

    Attributes:
        key_id: identifier, `key_…`.
        name: display label.
        key: the key.
        created_at: when it was created, UTC.
    """

    _example: ClassVar = {"key": "ap_operator_" + "0" * 49}

    key_id: str
    name: str
    key: str = field(repr=False)
    created_at: datetime


CREATE_OPERATOR_KEY: Final = Endpoint(
    name="operator_keys.create",
    method="POST",
    path=EXTENSIONS + "/console/operator-keys",
    scope=Scope.OPERATOR_KEY,
    request=CreateOperatorKey,
    responses={201: NewOperatorKey},
    summary="Create an operator key.",
    description="It has the same rights as the key that creates it. It is shown only once.",
)
LIST_OPERATOR_KEYS: Final = Endpoint(
    name="operator_keys.list",
    method="GET",
    path=EXTENSIONS + "/console/operator-keys",
    scope=Scope.OPERATOR,
    query=PageQuery,
    responses={200: PageBody[OperatorKey]},
    summary="List the valid operator keys, newest first.",
)
REVOKE_OPERATOR_KEY: Final[Endpoint[None]] = Endpoint(
    name="operator_keys.revoke",
    method="DELETE",
    path=EXTENSIONS + "/console/operator-keys/{key_id}",
    scope=Scope.OPERATOR_KEY,
    responses={204: None},
    errors=(ErrorCode.LAST_OPERATOR_KEY,),
    summary="Revoke an operator key.",
    description="Requests with it are refused, also those in progress. The last valid key of an operator "
    "cannot be revoked: create another one first. A console key may revoke only itself.",
)

OPERATOR_KEY_ENDPOINTS: Final = (CREATE_OPERATOR_KEY, LIST_OPERATOR_KEYS, REVOKE_OPERATOR_KEY)
"""All operations on operator keys."""
