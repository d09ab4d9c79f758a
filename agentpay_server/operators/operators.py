"""Creates operators with their first key, through a server or directly in its database."""

from attrs import field, frozen

from agentpay.contract import identifiers
from agentpay.contract.identity import KeyKind
from agentpay_server.contract.sandbox import CREATE_OPERATOR
from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import Database
from agentpay_server.database.tables import KeyRecord, OperatorRecord
from agentpay_server.ledger import audit
from agentpay_server.operators import store
from agentpay_server.platform.clock import SystemClock
from agentpay_server.platform.credentials import digest_of, new_key
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.randomness import Identifiers, Randomness, SystemRandomness


@frozen(kw_only=True)
class NewOperator:
    """The key is shown only here."""

    operator_id: str
    key_id: str
    key: str = field(repr=False)

    @classmethod
    def of(cls, ids: Identifiers, randomness: Randomness, *, key: str | None = None) -> "NewOperator":
        """Generate an operator that is not stored yet; `key` is used instead of a new key."""
        key = new_key(KeyKind.OPERATOR, randomness.randbytes(32)) if key is None else key
        return cls(operator_id=ids.new(identifiers.OPERATOR), key_id=ids.new(identifiers.KEY), key=key)


async def create_operator(database: Database, name: str) -> NewOperator:
    """Create an operator in a migrated database, which a running server may use."""
    clock, randomness = SystemClock(), SystemRandomness()
    new = NewOperator.of(Identifiers(clock, randomness), randomness)
    return await database.run(insert_operator, new, name, clock.now_us())


def insert_operator(
    connection: Connection,
    new: NewOperator,
    name: str,
    now_us: int,
    *,
    requested_by: Principal | None = None,
) -> NewOperator:
    """`name` labels operator and key. None as `requested_by` audits the new operator as its creator."""
    store.OPERATORS.insert(
        connection, OperatorRecord(seq=0, operator_id=new.operator_id, name=name, created_us=now_us)
    )
    insert_key(
        connection,
        new.key,
        key_id=new.key_id,
        operator_id=new.operator_id,
        name=name,
        kind=KeyKind.OPERATOR,
        now_us=now_us,
    )
    audit.record(
        connection,
        requested_by or Principal(operator_id=new.operator_id, key_id=new.key_id),
        action=audit.OPERATOR_CREATED if requested_by is None else CREATE_OPERATOR.name,
        subject=new.operator_id,
        now_us=now_us,
        after={"name": name},
    )
    return new


def insert_key(
    connection: Connection,
    key: str,
    *,
    key_id: str,
    operator_id: str,
    name: str | None,
    kind: str,
    account_id: str | None = None,
    now_us: int,
    expires_us: int | None = None,
    max_total: int | None = None,
) -> None:
    """`account_id` is None for an operator key."""
    digest = digest_of(key)
    assert digest is not None  # noqa: S101 - callers pass a valid key
    record = KeyRecord(
        seq=0,
        key_id=key_id,
        operator_id=operator_id,
        account_id=account_id,
        name=name,
        digest=digest,
        kind=kind,
        created_us=now_us,
        revoked_us=None,
        expires_us=expires_us,
        max_total=max_total,
    )
    store.KEYS.insert(connection, record)
