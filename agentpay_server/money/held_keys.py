"""SQL statements for the idempotency keys of transfers and sessions (interface I9).

A row holds its key under its source account. A request with an agent-scoped key sees only its own account's
keys. A request with an operator key sees those of all the operator's accounts, and must not use one key for
two of them. Therefore the newest of the rows that an operator key created under an idempotency key carries
the operator's claim (`claimed_by_operator`). Two constraints decide every race:

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
        holder: the row that holds it under the source account, if any.
        claim_id: identifier of the row with the operator's claim, under any account; None for agent-scoped
            keys.
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
class RequestedKey:
    """A request's idempotency key and its scope: an existing source account, and the kind of API key."""

    account_id: str
    idempotency_key: str
    by_operator: bool


class HeldKeys(Generic[Row]):
    """The idempotency keys that the rows of one table hold.

    `found_by` comes from `statements`; `record` converts a row to a record, whose identifying attribute is
    `identifier`.
    """

    def __init__(
        self, found_by: Mapping[str, Executable], record: Callable[..., Row], identifier: str
    ) -> None:
        self._found_by = found_by
        self._record = record
        self._identifier = identifier

    def find(self, connection: Connection, requested: RequestedKey, now_us: int) -> Held[Row]:
        """Return the rows that hold a key. The row of an expired key still holds it, but not in force."""
        values = {"account_id": requested.account_id, "held_key": requested.idempotency_key}
        if not requested.by_operator:
            found = connection.execute(self._found_by[_OF_ACCOUNT], values).one_or_none()
            return self._held(found)
        found = connection.execute(self._found_by[_OF_OPERATOR], {**values, "now_us": now_us}).one_or_none()
        assert found is not None  # noqa: S101 - accounts are never deleted
        *row, claim_id, is_held_elsewhere = found
        held = self._held(None if row[0] is None else row)
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
        # The new row carries the claim from now on. The old one keeps the key under its own account.
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
    """Return the statements for the idempotency keys of a table; `identifier` is its identifier column."""
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
