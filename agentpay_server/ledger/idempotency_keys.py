"""SQL statements for the idempotency keys of transfers and sessions (interface I9).

A row holds its key under its source account. A request with an agent-scoped key sees only its own account's
keys. A request with an operator key must not use one key for two accounts. Therefore the newest of the rows
that an operator key created under an idempotency key carries the operator's claim (`claimed_by_operator`); an
agent's row that retries it takes the claim over. What an agent claims on its own counts in its account only.
Two constraints decide every race:

    UNIQUE (account_id, held_key)                              requests for one account, by any key
    UNIQUE (operator_id, held_key) WHERE claimed_by_operator   operator keys, for different accounts
"""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from attrs import evolve, frozen
from sqlalchemy import BindParameter, ColumnElement, FromClause, Select, Table, and_, bindparam, or_, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import accounts


class Claim(Protocol):
    """A row that holds an idempotency key."""

    @property
    def claimed_by_operator(self) -> object: ...

    @property
    def key_expires_us(self) -> int | None: ...


Row = TypeVar("Row", bound=Claim)


@frozen(kw_only=True)
class Held(Generic[Row]):
    """The rows that hold an idempotency key, as far as the caller may see them.

    Attributes:
        holder: the row that holds it under the source account, if any.
        claim_id: identifier of the row with the operator's claim, under any account; None for agent-scoped
            keys.
        is_held_elsewhere: whether the operator's claim is in force under another account; False for
            agent-scoped keys.
        claims: whether a new row carries the operator's claim.
        is_holder_in_force: whether `holder` held the key at the time of the search.
    """

    holder: Row | None
    holder_id: str | None
    claim_id: str | None = None
    is_held_elsewhere: bool = False
    claims: bool = True
    is_holder_in_force: bool = False

    @property
    def in_force(self) -> Row | None:
        """The row that held the key at the time of the search."""
        return self.holder if self.is_holder_in_force else None

    @property
    def existing(self) -> Row:
        """The row that holds it under the source account.

        Raises:
            LookupError: there is none.
        """
        if self.holder is None:
            raise LookupError("nothing holds the idempotency key")
        return self.holder

    @property
    def is_held(self) -> bool:
        """Whether any row prevents another one under this key."""
        return self.holder_id is not None or self.claim_id is not None


@frozen(kw_only=True)
class RequestedKey:
    """A request's idempotency key and its scope: an existing source account, and the kind of API key."""

    account_id: str
    idempotency_key: str
    by_operator: bool


class IdempotencyKeys(Generic[Row]):
    """The idempotency keys that the rows of one table hold; `identifier` is the column of its key."""

    def __init__(self, rows: Rows[Row], identifier: str) -> None:
        self._rows = rows
        self._identifier = identifier
        self._holds = rows.c.held_key.is_not(None)
        self._of_account = select(rows.table).where(
            rows.c.account_id == bindparam("account_id"), rows.c.held_key == bindparam("held_key")
        )
        self._of_operator = _of_operator(rows.table, identifier)

    def statements(self) -> dict[str, Select[Any]]:
        """Return the statements of `find`, for tests of what engines make of them."""
        return {"of_account": self._of_account, "of_operator": self._of_operator}

    def find(self, connection: Connection, requested: RequestedKey, now_us: int) -> Held[Row]:
        """Return the rows that hold a key. The row of an expired key still holds it, but not in force."""
        values = {"account_id": requested.account_id, "held_key": requested.idempotency_key}
        if not requested.by_operator:
            found = connection.execute(self._of_account, values).one_or_none()
            held = self._held(found, now_us)
            return evolve(held, claims=held.holder is not None and _is_claim_in_force(held.holder, now_us))
        found = connection.execute(self._of_operator, {**values, "now_us": now_us}).one_or_none()
        assert found is not None  # noqa: S101 - accounts are never deleted
        *row, claim_id, is_held_elsewhere = found
        held = self._held(None if row[0] is None else row, now_us)
        return evolve(held, claim_id=claim_id, is_held_elsewhere=bool(is_held_elsewhere))

    def take(self, connection: Connection, requested: RequestedKey, seen: Held[Row], now_us: int) -> bool:
        """Free a key for a new row of an account, which must be locked.

        The key is read again, because the constraints do not cover a key in force under another account. For
        an agent-scoped request whose key was free, the account's constraint decides. The insertion may then
        wait for a transaction that settles a row. That transaction has locked its accounts first, so no
        deadlock can occur.

        Returns:
            False if the rows differ from `seen`: the request must be judged again.
        """
        if not requested.by_operator and not seen.is_held:
            return True
        found = self.find(connection, requested, now_us)
        if (found.holder_id, found.claim_id) != (seen.holder_id, seen.claim_id):
            return False
        if found.is_held_elsewhere != seen.is_held_elsewhere:
            return False
        if found.is_holder_in_force != seen.is_holder_in_force:
            # It expired since, or a wrong clock made it look expired.
            return False
        # The new row carries the claim from now on. The old one keeps the key under its own account.
        claim_id = None if found.claim_id == found.holder_id else found.claim_id
        change, holds, claims = self._rows.change, self._holds, self._rows.c.claimed_by_operator
        if (
            claim_id is not None
            and change(connection, claim_id, holds, claims, claimed_by_operator=False) is None
        ):
            return False
        holder_id = found.holder_id
        return holder_id is None or change(connection, holder_id, holds, held_key=None) is not None

    def _held(self, row: Sequence[Any] | None, now_us: int) -> Held[Row]:
        if row is None:
            return Held(holder=None, holder_id=None)
        holder = self._rows.record(row)
        return Held(
            holder=holder,
            holder_id=getattr(holder, self._identifier),
            is_holder_in_force=_is_in_force(holder, now_us),
        )


def _of_operator(table: Table, identifier: str) -> Select[Any]:
    claim = table.alias("claim")
    key: BindParameter[str] = bindparam("held_key")
    is_held_elsewhere = and_(
        claim.c.account_id.is_not(None), claim.c.account_id != accounts.c.account_id, _in_force(claim)
    )
    return (
        select(table, claim.c[identifier], is_held_elsewhere)
        .select_from(accounts)
        .outerjoin(table, and_(table.c.account_id == accounts.c.account_id, table.c.held_key == key))
        .outerjoin(
            claim,
            and_(
                claim.c.operator_id == accounts.c.operator_id,
                claim.c.held_key == key,
                claim.c.claimed_by_operator,
            ),
        )
        .where(accounts.c.account_id == bindparam("account_id"))
    )


def _is_in_force(row: Claim, now_us: int) -> bool:
    return row.key_expires_us is None or now_us < row.key_expires_us


def _is_claim_in_force(row: Claim, now_us: int) -> bool:
    return bool(row.claimed_by_operator) and _is_in_force(row, now_us)


def _in_force(claim: FromClause) -> ColumnElement[bool]:
    return or_(claim.c.key_expires_us.is_(None), claim.c.key_expires_us > bindparam("now_us"))
