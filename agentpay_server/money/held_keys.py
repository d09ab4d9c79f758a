"""Statements about idempotency keys, for transfers and sessions alike (interface I9).

A row holds its key under its source account. A request with an agent-scoped key sees the keys that its own
account holds. A request with an operator key sees those of all the operator's accounts, and must not use a
key for two of them. Therefore, of the rows that an operator key has created under an idempotency key, the
newest carries the operator's claim (`claimed_by_operator`). Two constraints decide every race:

    UNIQUE (account_id, held_key)                              requests for one account, by any key
    UNIQUE (operator_id, held_key) WHERE claimed_by_operator   operator keys, for different accounts
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, frozen
from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Executable,
    FromClause,
    Select,
    Table,
    and_,
    bindparam,
    exists,
    false,
    not_,
    null,
    or_,
    select,
    update,
)

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import accounts

Row = TypeVar("Row")

_OF_ACCOUNT: Final = "of_account"
_OF_OPERATOR: Final = "of_operator"
_FREE: Final = "free"
_YIELD_CLAIM: Final = "yield_claim"


@frozen(kw_only=True)
class Held(Generic[Row]):
    """The rows that hold an idempotency key, as far as the caller may see them.

    Attributes:
        holder: the row that holds it under the source account; None without one.
        holder_id: identifier of that row.
        claim_id: identifier of the row that carries the operator's claim, under any account; None without
            one, and for agent-scoped keys.
        is_held_elsewhere: whether the key is in force under another account of the operator; False for
            agent-scoped keys.
    """

    holder: Row | None
    holder_id: str | None
    claim_id: str | None = None
    is_held_elsewhere: bool = False

    @property
    def is_held(self) -> bool:
        """Whether any row prevents another one under this key."""
        return self.holder_id is not None or self.claim_id is not None


@frozen(kw_only=True)
class Asked:
    """A request's idempotency key and its scope.

    Attributes:
        account_id: the source account, which exists.
        idempotency_key: the key.
        by_operator: whether the request uses an operator key rather than an agent-scoped one.
    """

    account_id: str
    idempotency_key: str
    by_operator: bool


class HeldKeys(Generic[Row]):
    """The idempotency keys that the rows of one table hold.

    Args:
        found_by: the table's statements, from `statements`.
        record: converts a row of the table to a record.
        identifier: the attribute of a record that identifies it.
    """

    def __init__(
        self, found_by: Mapping[str, Executable], record: Callable[..., Row], identifier: str
    ) -> None:
        self._found_by = found_by
        self._record = record
        self._identifier = identifier

    def find(self, connection: Connection, asked: Asked, now_us: int) -> Held[Row]:
        """Return the rows that hold a key.

        Args:
            connection: the connection.
            asked: the key and its scope.
            now_us: the current time. A key that has expired is not in force, but its row still holds it.
        """
        values = {"account_id": asked.account_id, "held_key": asked.idempotency_key}
        if not asked.by_operator:
            found = connection.execute(self._found_by[_OF_ACCOUNT], values).one_or_none()
            return self._held(found)
        found = connection.execute(self._found_by[_OF_OPERATOR], {**values, "now_us": now_us}).one_or_none()
        assert found is not None  # noqa: S101 - accounts are never deleted
        *row, claim_id, is_held_elsewhere = found
        held = self._held(None if row[0] is None else row)
        return evolve(held, claim_id=claim_id, is_held_elsewhere=bool(is_held_elsewhere))

    def take(self, connection: Connection, asked: Asked, seen: Held[Row], now_us: int) -> bool:
        """Free a key for a new row of an account, which must be locked.

        The key is read again because the constraints are not enough: a key in force under another account
        violates none. If the key was free for an agent-scoped request, the constraint of its account decides.
        The insertion may then wait for a transaction that is settling a row, but not the other way round:
        that transaction locked its accounts before it changed the row, so there is no deadlock.

        Args:
            connection: the connection.
            asked: the key and its scope.
            seen: the rows that held the key when the request was judged.
            now_us: the current time.

        Returns:
            False if the rows have changed since; the request must be judged again.
        """
        if not asked.by_operator and not seen.is_held:
            return True
        found = self.find(connection, asked, now_us)
        if (found.holder_id, found.claim_id) != (seen.holder_id, seen.claim_id):
            return False
        if found.is_held_elsewhere != seen.is_held_elsewhere:
            return False
        # The new row will carry the claim. The old one still holds the key under its own account.
        claim_id = None if found.claim_id == found.holder_id else found.claim_id
        if claim_id is not None and not self._change(connection, _YIELD_CLAIM, claim_id):
            return False
        return found.holder_id is None or self._change(connection, _FREE, found.holder_id)

    def _change(self, connection: Connection, name: str, identifier: str) -> bool:
        return connection.execute(self._found_by[name], {"of_row": identifier}).rowcount == 1

    def _held(self, row: Sequence[Any] | None) -> Held[Row]:
        if row is None:
            return Held(holder=None, holder_id=None)
        holder = self._record(*row)
        return Held(holder=holder, holder_id=getattr(holder, self._identifier))


def statements(table: Table, identifier: Column[Any]) -> Mapping[str, Executable]:
    """Return the statements about the idempotency keys of a table.

    Args:
        table: has `account_id`, `operator_id`, `held_key`, `key_expires_us` and `claimed_by_operator`.
        identifier: its column of identifiers.
    """
    of_row = identifier == bindparam("of_row")
    return {
        _OF_ACCOUNT: select(table).where(
            table.c.account_id == bindparam("account_id"), table.c.held_key == bindparam("held_key")
        ),
        _OF_OPERATOR: _of_operator(table, identifier.name),
        _FREE: update(table).where(of_row, table.c.held_key.is_not(None)).values(held_key=null()),
        _YIELD_CLAIM: update(table)
        .where(of_row, table.c.held_key.is_not(None), table.c.claimed_by_operator)
        .values(claimed_by_operator=false()),
    }


def _of_operator(table: Table, identifier: str) -> Select[Any]:
    claim, other = table.alias("claim"), table.alias("other")
    key: BindParameter[str] = bindparam("held_key")
    of_agents = and_(
        other.c.operator_id == accounts.c.operator_id,
        other.c.held_key == key,
        # The same condition as in the partial index.
        not_(other.c.claimed_by_operator),
        other.c.account_id != accounts.c.account_id,
    )
    # Each `exists` reads at most two index entries, however many accounts have used the key.
    is_held_elsewhere = or_(
        and_(claim.c.account_id.is_not(None), claim.c.account_id != accounts.c.account_id, _in_force(claim)),
        exists().where(of_agents, other.c.key_expires_us.is_(None)),
        exists().where(of_agents, other.c.key_expires_us > bindparam("now_us")),
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


def _in_force(claim: FromClause) -> ColumnElement[bool]:
    return or_(claim.c.key_expires_us.is_(None), claim.c.key_expires_us > bindparam("now_us"))
