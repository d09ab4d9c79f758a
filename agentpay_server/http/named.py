"""Accounts by name: an operator's key may send a name or handle where an account_id belongs (interface A11).

Handlers see identifiers only, so that the name and the identifier of an account are one parameter of an
idempotency key. Accounts are neither renamed nor deleted: a name that means one account means the same one
later, or several, and is refused then, except under a key that one of them has paid with. So no retry pays
from another account, or is refused after the payment. An identifier is never looked up as a name, and
recipients are never named: they may be addresses.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeGuard
from urllib.parse import quote

import attrs

from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.identifiers import ACCOUNT
from agentpay_server.ledger.accounts import named_accounts
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import account_with_key
from agentpay_server.platform.errors import Problem, invalid
from agentpay_server.platform.principals import Principal

_FIELDS: Final = ("account_id", "account_ids", "from_")


async def identified(
    context: Context,
    endpoint: Endpoint[Any],
    principal: Principal,
    given: Any,  # noqa: ANN401 - the parameters of a path, a body or a query
) -> Any:  # noqa: ANN401 - the same
    """Return what a request gave, with identifiers in place of names.

    Raises:
        Problem: several accounts have a name; `not_found`, or `invalid_request` where that is not declared.
    """
    if principal.is_agent or not principal.is_known:
        return given
    is_path = isinstance(given, Mapping)
    key: str | None = None if is_path else getattr(given, "idempotency_key", None)
    changes: dict[str, object] = {}
    for field in _FIELDS if is_path else _fields(type(given)):  # type: ignore[arg-type]  # mypy/issues/11470
        value = given.get(field) if is_path else getattr(given, field)
        named = [text for text in (value if isinstance(value, tuple) else (value,)) if _is_name(text)]
        found: dict[object, str] = {}
        for name in named:
            accounts = await _accounts(context, principal.operator_id, name, key)
            if len(accounts) > 1:
                raise _ambiguous(endpoint, field, name, accounts)
            # A name that no account has stays: it is refused like an identifier that no account has.
            found[name] = accounts[0] if accounts else name
        if named:
            is_tuple = isinstance(value, tuple)
            changes[field] = tuple(found.get(text, text) for text in value) if is_tuple else found[value]
    if not changes:
        return given
    return {**given, **changes} if is_path else attrs.evolve(given, **changes)


@cache
def _fields(model: type) -> tuple[str, ...]:
    return tuple(name for name in _FIELDS if name in attrs.fields_dict(model))


def _is_name(given: object) -> TypeGuard[str]:
    return isinstance(given, str) and not given.startswith(ACCOUNT)


async def _accounts(context: Context, operator_id: str, name: str, key: str | None) -> list[str]:
    """Return the accounts that a name may mean, two at most."""
    name = name.strip()  # as at its creation
    found = await context.database.read(named_accounts, operator_id, name)
    if len(found) > 1 and key is not None:
        now_us = context.clock.now_us()
        payer = await context.database.read(account_with_key, operator_id, name, key, now_us)
        return found if payer is None else [payer]
    return found


def _ambiguous(endpoint: Endpoint[Any], field: str, name: str, accounts: list[str]) -> Problem:
    message = (
        f"Several accounts have the name or handle {quote(name)!r}, such as {' and '.join(accounts)}. "
        "Pass the account_id of one."
    )
    if ErrorCode.NOT_FOUND in endpoint.every_error:
        return Problem(ErrorCode.NOT_FOUND, message, says_what_to_do=True)
    return invalid(FieldError(field=field.removesuffix("_"), message=message))
