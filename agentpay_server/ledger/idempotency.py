"""Idempotency keys: the claims on them, and how to treat a request under one (interface I1 to I9).

The claims of all purchases are in one table.

A claim is the newest purchase of an account under a key: a transfer, a payment, the opening of a channel and
then its voucher, or a session. It is in force until the purchase says that the key is released. A request
with an agent-scoped key sees only its own account's claims. A request with an operator key must not use one
key for two accounts. Therefore the operator's claim (`claimed_by_operator`) is that of its purchases under an
idempotency key which lasts longest: the newest, unless an operator key retries an agent's purchase while the
operator's of another account has no known end. An agent's retry of the operator's purchase keeps the claim.
What an agent claims on its own counts in its account only. Two constraints decide every race:

    UNIQUE (account_id, idempotency_key)                              requests for one account, by any key
    UNIQUE (operator_id, idempotency_key) WHERE claimed_by_operator   operator keys, for different accounts

A claim is stored in the unit of work that stores its purchase, after the account's lock. A request that
stores nothing claims nothing.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, cast

import attrs
from attrs import frozen
from sqlalchemy import ColumnElement, FromClause, Select, and_, bindparam, func, or_, select

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.requests import UNSET
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import (
    AccountRecord,
    KeyClaimRecord,
    PurchaseKind,
    accounts,
    key_claims,
    sessions,
    transfers,
)
from agentpay_server.ledger import accounts as account_store
from agentpay_server.platform.clock import DAY_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal

CLAIMS: Final = Rows(KeyClaimRecord, "account_id", "idempotency_key")

_IS_OF: Final = key_claims.c.subject_id == bindparam("held_by")
_IS_OPERATORS: Final = key_claims.c.claimed_by_operator


@frozen(kw_only=True)
class RequestedKey:
    """A request's idempotency key and its scope: an existing source account, and the kind of API key."""

    operator_id: str
    account_id: str
    idempotency_key: str
    by_operator: bool

    @classmethod
    def of(cls, principal: Principal, account_id: str, idempotency_key: str) -> "RequestedKey":
        """Return the key of a request of a principal."""
        return cls(
            operator_id=principal.operator_id,
            account_id=account_id,
            idempotency_key=idempotency_key,
            by_operator=not principal.is_agent,
        )


@frozen(kw_only=True)
class Held:
    """The claims of an idempotency key, as far as the caller may see them, at the time of the search.

    Attributes:
        own: that of the source account.
        elsewhere: the operator's claim, if it is of another account; None for agent-scoped keys.
        is_own_in_force: whether `own` was in force.
        is_elsewhere_in_force: whether `elsewhere` was in force.
        claims: whether a new purchase gets the operator's claim.
    """

    own: KeyClaimRecord | None = None
    elsewhere: KeyClaimRecord | None = None
    is_own_in_force: bool = False
    is_elsewhere_in_force: bool = False
    claims: bool = True

    @property
    def in_force(self) -> KeyClaimRecord | None:
        """The claim that decides about a request: the source account's takes precedence."""
        if self.is_own_in_force:
            return self.own
        return self.elsewhere if self.is_elsewhere_in_force else None

    @property
    def is_held(self) -> bool:
        """Whether there is any claim, in force or not."""
        return self.own is not None or self.elsewhere is not None

    def subject_of(self, kind: PurchaseKind) -> str | None:
        """Return the source account's purchase under the key, if it is in force and of this kind."""
        own = self.own
        return own.subject_id if own is not None and self.is_own_in_force and own.kind is kind else None


def find(connection: Connection, requested: RequestedKey, now_us: int) -> Held:
    """Return the claims of a key."""
    values = {"source": requested.account_id, "idempotency_key": requested.idempotency_key}
    row = connection.execute(_OF_ACCOUNT, values).one_or_none()
    assert row is not None  # noqa: S101 - accounts are never deleted
    return _held(row, requested, now_us)


def find_with_parties(
    connection: Connection, requested: RequestedKey, target: str, now_us: int
) -> tuple[account_store.FoundParties, Held]:
    """Return what `accounts.parties` does for the source and a target, and the claims of a key.

    In one statement, which shows both at one time without a transaction. Both may change before a decision.
    """
    source, records, held = requested.account_id, list[AccountRecord](), Held()
    if not identifiers.is_identifier(source, identifiers.ACCOUNT):
        return (None, None), held
    values = {"source": source, "target": target, "idempotency_key": requested.idempotency_key}
    for row in connection.execute(_OF_PARTIES[target.startswith(identifiers.ACCOUNT)], values):
        records.append(account_store.ACCOUNTS.record(row[: -2 * _COLUMNS]))
        if records[-1].account_id == source:
            held = _held(row[-2 * _COLUMNS :], requested, now_us)
    return account_store.parties_of(records, source, target), held


def is_as_seen(connection: Connection, requested: RequestedKey, seen: Held, now_us: int) -> bool:
    """Return whether the claims of a key are unchanged, before a new one; its account must be locked.

    A key without any claim is not read again: `put` then inserts one, and a claim that another request has
    stored since violates a constraint, the account's or, for operator keys, the operator's. The insertion may
    wait for a transaction that settles a purchase. That transaction has locked its accounts first, so no
    deadlock can occur. A request that is refused before it claims the key violates no constraint: its refusal
    counts only if `find` still finds what was seen.
    """
    if not seen.is_held:
        return True
    # One may have expired since, or a wrong clock made it look expired.
    return find(connection, requested, now_us) == seen


def put(
    connection: Connection, requested: RequestedKey, seen: Held, kind: PurchaseKind, subject_id: str
) -> None:
    """Claim a key for a new purchase; requires `is_as_seen`.

    Raises:
        ConstraintError: another request has claimed it. It may be raised as late as by the end of the unit of
            work.
    """
    other, own = seen.elsewhere, seen.own
    if other is not None and seen.claims:
        # The other remains that of its own account. If another request was faster, nothing changes here, and
        # the constraint decides below.
        CLAIMS.change(
            connection,
            other,
            _IS_OF,
            _IS_OPERATORS,
            given={"held_by": other.subject_id},
            claimed_by_operator=False,
        )
    claim: dict[str, Any] = {"kind": kind, "subject_id": subject_id, "claimed_by_operator": seen.claims}
    if own is not None:
        CLAIMS.changed(connection, own, _IS_OF, given={"held_by": own.subject_id}, **claim)
        return
    new = KeyClaimRecord(
        operator_id=requested.operator_id,
        account_id=requested.account_id,
        idempotency_key=requested.idempotency_key,
        **claim,
    )
    CLAIMS.insert(connection, new)


_COLUMNS: Final = len(key_claims.columns) + 1


def _held(row: Sequence[Any], requested: RequestedKey, now_us: int) -> Held:
    """Return the claims of a row: the account's, and for operator keys that of another account."""
    own, own_expires_us = _claim(row[:_COLUMNS])
    is_own_in_force = own is not None and (own_expires_us is None or own_expires_us > now_us)
    if not requested.by_operator:
        claims = own is not None and is_own_in_force and own.claimed_by_operator
        return Held(own=own, is_own_in_force=is_own_in_force, claims=claims)
    elsewhere, expires_us = _claim(row[_COLUMNS:])
    return Held(
        own=own,
        elsewhere=elsewhere,
        is_own_in_force=is_own_in_force,
        is_elsewhere_in_force=elsewhere is not None and (expires_us is None or expires_us > now_us),
        # A new purchase cannot release its key before that time.
        claims=elsewhere is None or expires_us is not None,
    )


def _claim(row: Sequence[Any]) -> tuple[KeyClaimRecord | None, int | None]:
    if row[0] is None:
        return None, None
    *columns, expires_us = row
    return CLAIMS.record(columns), expires_us


def _with_purchases(joined: FromClause, claim: FromClause) -> tuple[FromClause, list[ColumnElement[Any]]]:
    """Join the purchases of claims; return that, and the columns: of the claim, and when it ends if known."""
    # A voucher is in neither table: it never releases its key.
    paid, opened = transfers.alias(), sessions.alias()
    joined = joined.outerjoin(paid, paid.c.transfer_id == claim.c.subject_id)
    joined = joined.outerjoin(opened, opened.c.session_id == claim.c.subject_id)
    return joined, [*claim.c, func.coalesce(paid.c.key_expires_us, opened.c.key_expires_us)]


def _of_source(which: ColumnElement[bool], *columns_before: ColumnElement[Any]) -> Select[Any]:
    """Return a statement that finds accounts; with `source`, its claims and the operator's elsewhere."""
    source: ColumnElement[str] = bindparam("source")
    own, claim = key_claims.alias("own"), key_claims.alias("claim")
    key: ColumnElement[str] = bindparam("idempotency_key")
    # Each condition names the source, so that an index finds its claims even while the tables are new.
    is_source = accounts.c.account_id == source
    is_own = and_(is_source, own.c.account_id == source, own.c.idempotency_key == key)
    joined, columns = _with_purchases(accounts.outerjoin(own, is_own), own)
    is_elsewhere = and_(
        is_source,
        claim.c.operator_id == accounts.c.operator_id,
        claim.c.idempotency_key == key,
        claim.c.claimed_by_operator,
        claim.c.account_id != source,
    )
    joined, others = _with_purchases(joined.outerjoin(claim, is_elsewhere), claim)
    return select(*columns_before, *columns, *others).select_from(joined).where(which)


def _of_name() -> Select[Any]:
    named = key_claims.join(accounts, accounts.c.account_id == key_claims.c.account_id)
    joined, columns = _with_purchases(named, key_claims)
    return (
        select(*columns)
        .select_from(joined)
        .where(
            _IS_OPERATORS,
            key_claims.c.operator_id == bindparam("operator_id"),
            key_claims.c.idempotency_key == bindparam("idempotency_key"),
            or_(accounts.c.name == bindparam("name"), accounts.c.handle == bindparam("name")),
        )
    )


_OF_NAME: Final = _of_name()


def account_with_key(
    connection: Connection, operator_id: str, name: str, idempotency_key: str, now_us: int
) -> str | None:
    """Return the account of this name or handle that a purchase of the operator's key was made from.

    There is at most one. A request that is repeated under its key means the account that it meant before,
    also if others have the name now.
    """
    values = {"operator_id": operator_id, "name": name, "idempotency_key": idempotency_key}
    for row in connection.execute(_OF_NAME, values):
        claim, expires_us = _claim(row)
        if claim is not None and (expires_us is None or expires_us > now_us):
            return claim.account_id
    return None


_OF_ACCOUNT: Final = _of_source(accounts.c.account_id == bindparam("source"))
_OF_PARTIES: Final = {
    by_ids: _of_source(found, *accounts.c) for by_ids, found in account_store.ARE_PARTIES.items()
}


KEY_LIFETIME_US: Final = DAY_US
"""How long a key is held after the end of a transfer, or of another purchase that paid nothing."""


class Verdict(Enum):
    """How to treat a request, given the row that holds its idempotency key."""

    NEW = "new"
    """The key is free: process the request."""

    CONFLICT = "conflict"
    """The key is held by a request with other parameters."""

    REPLAY = "replay"
    """Return the stored result; move nothing."""

    RESUME = "resume"
    """The stored request is still in progress: finish it, do not start another."""

    RETRY = "retry"
    """The stored request failed for a reason other than policy: start a new one."""


@frozen(kw_only=True)
class KeyHolder:
    """The purchase that holds an idempotency key.

    Attributes:
        if_equal: how to treat a request with equal parameters.
    """

    terms: object
    if_equal: Verdict


def verdict(holder: KeyHolder | None, terms: object) -> Verdict:
    """Compare a request with the purchase that holds its key, if any (interface I1 to I9)."""
    if holder is None:
        return Verdict.NEW
    return holder.if_equal if holder.terms == terms else Verdict.CONFLICT


def judge(held: Held, kind: PurchaseKind, holder: KeyHolder | None, terms: object) -> Verdict:
    """Return how to treat a request.

    Args:
        held: the claims of its key.
        kind: what it asks for.
        holder: the purchase `held.subject_of(kind)`, if there is one.
        terms: the requested parameters.

    Raises:
        Problem: `idempotency_conflict`.
    """
    claim = held.in_force
    if claim is not None and claim.kind is not kind:
        raise other_kind(claim)
    judged = verdict(holder, terms)
    if judged is Verdict.CONFLICT or (holder is None and claim is not None):
        raise conflict(None if holder is None else holder.terms, terms)
    return judged


def other_kind(claim: KeyClaimRecord) -> Problem:
    """Return the error for a key that was used for another kind of purchase, which it names."""
    name = claim.subject_id
    return Problem(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        f"This idempotency_key was used for {_BOUGHT[claim.kind]}, {name}.",
        transfer_id=name if name.startswith(identifiers.TRANSFER) else None,
        session_id=name if name.startswith(identifiers.SESSION) else UNSET,
        charge_id=name if name.startswith(identifiers.CHARGE) else None,
    )


_BOUGHT: Final = {
    PurchaseKind.TRANSFER: "a transfer",
    PurchaseKind.PAYMENT: "a payment behind HTTP 402",
    PurchaseKind.CHANNEL: "a payment within a session over HTTP 402",
    PurchaseKind.SESSION: "a session",
}


_PARAMETERS: Final = {
    "account_id": "from",
    "to": "to",
    "amount_micro": "amount",
    "cap_micro": "cap_usdc",
    "memo": "memo",
    "category": "category",
}
"""The parameters of requests, by their names in the terms."""


def conflict(first: object, now: object) -> Problem:
    """Return the error for a key that was used with other parameters, which it names.

    Args:
        first: the terms of the request that holds the key; None if they belong to another account.
        now: those of this request.
    """
    differing = ["from"] if first is None else differences(first, now)
    what = f"another {' and another '.join(differing)}" if differing else "other parameters"
    return Problem(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        f"This idempotency_key was used with {what}.",
    )


def differences(first: object, now: object) -> list[str]:
    """Return the parameters in which the terms of two requests differ; empty if they are of two kinds."""
    if type(first) is not type(now):
        return []
    names = [field.name for field in attrs.fields(cast("Any", type(now)))]
    differing = [name for name in names if getattr(first, name) != getattr(now, name)]
    # A parameter that callers cannot name, such as the digest of a challenge, makes it another request.
    return [_PARAMETERS[name] for name in differing] if set(differing) <= set(_PARAMETERS) else []
