"""Recording events: into the outbox, in the commit that changes what they tell of."""

from attrs import frozen

from agentpay.contract import codec, identifiers
from agentpay.contract.events import Event, EventType
from agentpay_server.clock import from_us
from agentpay_server.randomness import Identifiers
from agentpay_server.store import events as store
from agentpay_server.store.connection import Connection


@frozen(kw_only=True)
class Happening:
    """Something that happened to an account: the type of the event and its payload."""

    type: EventType
    data: object


def record(
    connection: Connection,
    ids: Identifiers,
    *,
    operator_id: str,
    account_id: str,
    now_us: int,
    happenings: tuple[Happening, ...],
) -> None:
    """Write events about one account, in order, into the outbox."""
    rows = []
    for happening in happenings:
        event = Event(
            id=ids.new(identifiers.EVENT),
            type=happening.type.value,
            created_at=from_us(now_us),
            data=happening.data,
        )
        rows.append(
            {
                "event_id": event.id,
                "operator_id": operator_id,
                "account_id": account_id,
                "type": event.type,
                "body": codec.print_json(codec.unstructure(event)).decode("ascii"),
                "created_us": now_us,
            }
        )
    store.insert_events(connection, *rows)
