"""API keys: whether one is alive, neither revoked nor expired, its name, and what it may spend in total."""

from typing import Any, Final

from attrs import evolve, frozen
from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, or_, select

from agentpay.contract.usdc import from_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import TransferRecord, api_keys
from agentpay_server.ledger import holds
from agentpay_server.platform.principals import Principal


def is_alive(now_us: BindParameter[int]) -> ColumnElement[bool]:
    """Return the condition that a row of `api_keys` is alive."""
    return and_(
        api_keys.c.revoked_us.is_(None),
        or_(api_keys.c.expires_us.is_(None), api_keys.c.expires_us > now_us),
    )


_LIVE: Final = select(api_keys.c.key_id).where(
    api_keys.c.key_id == bindparam("key_id"), is_alive(bindparam("now_us"))
)


def live_keys(connection: Connection, key_ids: set[str], now_us: int) -> set[str]:
    """Return those of some keys that are alive."""
    return {
        key_id
        for key_id in key_ids
        if connection.execute(_LIVE, {"key_id": key_id, "now_us": now_us}).one_or_none() is not None
    }


@frozen
class KeyName:
    """The label of a key, and the account of an agent-scoped one."""

    name: str | None
    account_id: str | None


_NAME: Final = select(api_keys.c.name, api_keys.c.account_id).where(api_keys.c.key_id == bindparam("key_id"))


def names(connection: Connection, key_ids: set[str]) -> dict[str, KeyName]:
    """Return the names of keys, revoked ones included."""
    found = {key_id: connection.execute(_NAME, {"key_id": key_id}).one_or_none() for key_id in key_ids}
    return {key_id: KeyName(*row) for key_id, row in found.items() if row is not None}


# The total that an agent key may spend in its lifetime, `max_total_usdc` (interface K11).
#
# The total is not a counter: it is the sum of the key's holds, read while its account is locked. An agent key
# spends from one account only, so of two requests at once the second counts the first. A transfer holds its
# amount from its request, while it waits for approval too, until it is refused or it is proved that it never
# happened; a session holds its whole cap until it is settled. What an operator approves counts toward the key
# that requested it.

_LIMIT: Final = select(api_keys.c.max_total).where(api_keys.c.key_id == bindparam("key_id"))


@frozen(kw_only=True)
class LimitedKey:
    """A key whose total is limited.

    Attributes:
        key_id: the key.
        max_total_micro: the most that it may spend, in micro-USDC. It never changes.
        judged_micro: micro-USDC of a waiting transfer that is judged again: it does not count against itself.
    """

    key_id: str
    max_total_micro: int
    judged_micro: int = 0

    def spent_micro(self, connection: Connection) -> int:
        """Return the micro-USDC that count toward the limit. For a decision, the account must be locked."""
        return holds.spent_by_key(connection, self.key_id) - self.judged_micro


def remaining_micro(connection: Connection, key: LimitedKey | None) -> int | None:
    """Return how many micro-USDC a key may still spend; None without a limit."""
    return None if key is None else max(key.max_total_micro - key.spent_micro(connection), 0)


def least(*limits_micro: int | None) -> int | None:
    """Return the smallest of some limits; None stands for no limit."""
    return min((limit for limit in limits_micro if limit is not None), default=None)


def total_fields(connection: Connection, key: LimitedKey | None) -> dict[str, Any]:
    """Return the fields of a response that say what a key may spend in total, and what it has spent."""
    return {
        "max_total_usdc": None if key is None else from_micro(key.max_total_micro),
        "spent_total_usdc": None if key is None else from_micro(key.spent_micro(connection)),
    }


def limited(key_id: str, max_total_micro: int | None) -> LimitedKey | None:
    """Return a key with its limit; None if its total is not limited."""
    return None if max_total_micro is None else LimitedKey(key_id=key_id, max_total_micro=max_total_micro)


def of_principal(principal: Principal) -> LimitedKey | None:
    """Return the key of a request; None if its total is not limited."""
    return limited(principal.key_id, principal.max_total_micro)


def limited_key_id(principal: Principal) -> str | None:
    """Return the identifier of the key of a request; None if its total is not limited."""
    return None if principal.max_total_micro is None else principal.key_id


def of_waiting(connection: Connection, transfer: TransferRecord) -> LimitedKey | None:
    """Return the key that requested a waiting transfer, to judge that again; None without a limit."""
    found = connection.execute(_LIMIT, {"key_id": transfer.key_id}).scalar_one_or_none()
    key = limited(transfer.key_id, found)
    return None if key is None else evolve(key, judged_micro=transfer.amount)
