"""Signing in to the console: one-use codes, and the keys of browsers (interface CO18 to CO20)."""

from datetime import datetime
from typing import Annotated, ClassVar, Final

from attrs import field, frozen

from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Scope
from agentpay.contract.fields import text
from agentpay.contract.models import Model
from agentpay.contract.requests import Request


@frozen(kw_only=True)
class SignIn(Request):
    """Body of `POST /ext/v1/console/sign-in`.

    Its `repr` does not show the code.

    Attributes:
        code: the code of a sign-in link, 1 to 128 characters.
    """

    _example: ClassVar = {"code": "ap_code_" + "0" * 49}

    code: Annotated[str, text(minimum=1, maximum=128)] = field(repr=False)


@frozen(kw_only=True)
class ConsoleKey(Model):
    """A console key. It is shown only here.

    Its `repr` does not show the key.

    Attributes:
        key_id: identifier, `key_…`.
        key: the key. It can do what an operator key can, except create sign-in codes and create or revoke
            operator keys; it can revoke itself.
        expires_at: when it expires, UTC: 12 hours after the sign-in.
    """

    _example: ClassVar = {"key": "ap_console_" + "0" * 49}

    key_id: str
    key: str = field(repr=False)
    expires_at: datetime


@frozen(kw_only=True)
class SignInCode(Model):
    """A code that signs in to the console once. It is shown only here.

    Its `repr` does not show the code.

    Attributes:
        code: the code; the link is the address of the console with `#code=` and the code.
        expires_at: when it expires, UTC: 10 minutes after its creation.
    """

    _example: ClassVar = {"code": "ap_code_" + "0" * 49}

    code: str = field(repr=False)
    expires_at: datetime


SIGN_IN: Final = Endpoint(
    name="console.sign_in",
    method="POST",
    path=EXTENSIONS + "/console/sign-in",
    scope=Scope.NO_KEY,
    request=SignIn,
    responses={201: ConsoleKey},
    summary="Exchange the code of a sign-in link for a console key.",
    description="A code works once, within 10 minutes. An invalid, expired or used one is 401. The key "
    "expires after 12 hours. It can do what an operator key can, except create sign-in codes and create or "
    "revoke operator keys; it can revoke itself.",
)
CREATE_SIGN_IN_CODE: Final = Endpoint(
    name="console.create_sign_in_code",
    method="POST",
    path=EXTENSIONS + "/console/sign-in-code",
    scope=Scope.OPERATOR_KEY,
    responses={201: SignInCode},
    summary="Create a code that signs in to the console once.",
    description="It is valid for 10 minutes. The link to open is `/dashboard#code=` and the code.",
)

SIGN_IN_ENDPOINTS: Final = (SIGN_IN, CREATE_SIGN_IN_CODE)
"""Every operation of signing in to the console."""
