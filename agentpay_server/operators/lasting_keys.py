"""Keys across a restore: it revives none, and keys newer than the snapshot continue to work."""

from collections.abc import Sequence

from attrs import evolve, frozen

from agentpay.contract.operator_keys import OperatorKeyKind
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import KeyRecord, SignInCodeRecord
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.operators import store


@frozen(kw_only=True)
class Issued:
    """All keys of all operators, revoked ones too, and the unused sign-in codes."""

    keys: Sequence[KeyRecord]
    codes: Sequence[SignInCodeRecord]


def issued(connection: Connection) -> Issued:
    """Return what was issued, before a restore."""
    return Issued(keys=store.every_key(connection), codes=store.every_code(connection))


def keep(connection: Connection, before: Issued, *, at_us: int, now_us: int) -> None:
    """Store in a restored database what became of keys and codes since.

    Keys that are missing in it are added, with the time that they had left: revoked if their account or their
    operator is missing too. Console keys that are in it keep the time that they had left. What had expired
    remains expired.

    Args:
        connection: the unit of work.
        before: what was issued before the restore.
        at_us: the time before the restore.
        now_us: the restored time.
    """
    for key in before.keys:
        expires_us = None if key.expires_us is None else key.expires_us - at_us + now_us
        restored = store.KEYS.get(connection, key.key_id)
        if restored is None:
            revoked_us = key.revoked_us
            if revoked_us is None and not _has_owner(connection, key):
                revoked_us = now_us
            store.KEYS.insert(connection, evolve(key, seq=0, revoked_us=revoked_us, expires_us=expires_us))
        elif key.revoked_us is not None:
            store.KEYS.changed(connection, restored, revoked_us=key.revoked_us)
        elif expires_us is not None and (key.kind == OperatorKeyKind.CONSOLE or expires_us <= now_us):
            store.KEYS.changed(connection, restored, expires_us=expires_us)
    unused = {code.digest for code in before.codes if code.expires_us > at_us}
    for code in store.every_code(connection):
        if code.digest not in unused:
            store.CODES.remove(connection, code.digest)


def _has_owner(connection: Connection, key: KeyRecord) -> bool:
    if store.OPERATORS.get(connection, key.operator_id) is None:
        return False
    return key.account_id is None or ACCOUNTS.get(connection, key.account_id) is not None
