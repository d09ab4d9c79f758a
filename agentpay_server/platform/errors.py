"""The exception that services raise for a caller: an error that the interface declares."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Final

from agentpay.contract.errors import ErrorBody, ErrorCode, FieldError, Refusal
from agentpay.contract.ext.console import UNBLOCK_ACCOUNT
from agentpay.contract.requests import UNSET, UnsetType

RETRY_AFTER_SECONDS: Final = 1
"""`Retry-After` of a 503. The service retries chain and database at the same interval."""


_AS_STORED: Final = frozenset({ErrorCode.PAYMENT_EXPIRED, ErrorCode.PAYMENT_FAILED})
"""Refusals that are stored: transfer, history and event repeat their message, which states facts only."""


class Problem(Exception):  # noqa: N818 - the field's term (RFC 9457)
    """A request was refused or failed for a reason that the interface declares.

    `code` determines the HTTP status. `message` states what happened; the response adds what to do about the
    code, unless the message `says_what_to_do` itself or is that of a stored refusal. `session_id` is None for
    a refused session that was never stored. `decided_at` is set if this is a replay for its idempotency key.
    `allow` lists the methods of the path, for a 405.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        details: tuple[FieldError, ...] | None = None,
        transfer_id: str | None = None,
        session_id: str | None | UnsetType = UNSET,
        charge_id: str | None = None,
        status: str | None = None,
        refusal: Refusal | None = None,
        price_usdc: Decimal | None = None,
        max_amount_usdc: Decimal | None = None,
        retry_after_seconds: int | None = None,
        decided_at: datetime | None = None,
        allow: tuple[str, ...] = (),
        says_what_to_do: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.transfer_id = transfer_id
        self.session_id = session_id
        self.charge_id = charge_id
        self.status = status
        self.refusal = refusal
        self.price_usdc = price_usdc
        self.max_amount_usdc = max_amount_usdc
        self.retry_after_seconds = retry_after_seconds
        self.decided_at = decided_at
        self.allow = allow
        self.says_what_to_do = says_what_to_do

    @property
    def http_status(self) -> int:
        return self.code.status

    def body(self, request_id: str) -> ErrorBody:
        """The body of a 402 has four fields, and the rule that refused (interface E2, E3)."""
        is_refused_payment = self.http_status == 402
        is_complete = self.says_what_to_do or is_refused_payment or self.code in _AS_STORED
        return ErrorBody(
            error=self.code,
            message=self.message if is_complete else f"{self.message} {self.code.advice}.",
            request_id=None if is_refused_payment else request_id,
            details=self.details,
            transfer_id=self.transfer_id,
            session_id=self.session_id,
            charge_id=self.charge_id,
            status=self.status,
            refusal=self.refusal,
            price_usdc=self.price_usdc,
            max_amount_usdc=self.max_amount_usdc,
        )


def unauthorized() -> Problem:
    """The same for a missing, malformed, unknown, expired or revoked key (interface E7)."""
    # Not shared: an object would collect the traceback of every raise, with the headers of the refused
    # request.
    return Problem(
        ErrorCode.UNAUTHORIZED,
        "The header Authorization: Bearer has no valid API key.",
        says_what_to_do=True,
    )


def not_found(kind: str, identifier: str) -> Problem:
    """The same for an unknown identifier and another operator's (interface E9)."""
    # A secret in the place of an identifier is not repeated, since error messages are stored.
    name = "with this identifier" if identifier.startswith(("ap_", "whsec_")) else repr(quote(identifier))
    return Problem(ErrorCode.NOT_FOUND, f"No {kind} {name} is visible to this key.")


def invalid(*faults: FieldError) -> Problem:
    """List every fault (interface E1, R9)."""
    message = "The request is invalid; details lists every fault."
    return Problem(ErrorCode.INVALID_REQUEST, message, details=faults)


def chain_unavailable() -> Problem:
    """Nothing is stored and nothing will be sent (interface E4, I5)."""
    return Problem(
        ErrorCode.CHAIN_UNAVAILABLE,
        "The chain did not respond, and nothing was done.",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def signing_suspended(account_id: str) -> Problem:
    """An operator must review the account. Nothing was done."""
    return Problem(
        ErrorCode.CHAIN_UNAVAILABLE,
        f"Signing is suspended for {account_id}, and nothing was done: a transaction landed that the books "
        "did not expect. An operator must compare the account's history with the chain, then call "
        f"POST {UNBLOCK_ACCOUNT.path.format(account_id=account_id)}.",
        says_what_to_do=True,
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def service_unavailable() -> Problem:
    """The outcome is unknown, because the database did not respond."""
    return Problem(
        ErrorCode.SERVICE_UNAVAILABLE,
        "The service's own database did not respond: the request may or may not have been processed.",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")


def named(text: str) -> str:
    """Return a seller's text if it is one word, such as a name: models read it as part of our sentence."""
    return text if _WORD.fullmatch(text) else "not a name"


def quote(text: str) -> str:
    """Make a caller's text printable, and at most 80 characters."""
    printable = "".join(character if character.isprintable() else "�" for character in text[:80])
    return printable + ("…" if len(text) > 80 else "")
