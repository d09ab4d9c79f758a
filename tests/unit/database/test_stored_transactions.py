"""One row for each signed transaction: a subject has one in flight, and it comes to one end."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from solders.keypair import Keypair
from solders.message import Message
from solders.transaction import VersionedTransaction

from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.ledger import transactions as store
from agentpay_server.ledger.transactions import State, StoredTransaction

_SIGNER = Keypair()
RAW = bytes(VersionedTransaction(Message([], _SIGNER.pubkey()), [_SIGNER]))

ENDS: dict[str, Any] = {
    "finalized": lambda connection, tx: store.land(connection, tx, 5, is_irreversible=True),
    "confirmed": lambda connection, tx: store.land(connection, tx, 5, is_irreversible=False),
    "failed": lambda connection, tx: store.fail(connection, tx, 5, is_watched=False),
    "rejected": lambda connection, tx: store.fail(connection, tx, 5, is_watched=True),
    "expired": lambda connection, tx: store.expire(connection, tx, 5),
}


def transaction(signature: str = "first", **more: Any) -> StoredTransaction:
    known: dict[str, Any] = {
        "signature": signature,
        "kind": "transfer",
        "subject_id": "txn_1",
        "account_id": "acct_1",
        "hold": 7,
        "spent_us": 1,
        "spent_total": 7,
        "raw": RAW,
        "last_valid_block_height": 150,
        "created_us": 1,
    }
    return StoredTransaction(**{**known, **more})


databases: list[MemoryDatabase] = []


@pytest.fixture(autouse=True)
def close_databases() -> Iterator[None]:
    yield
    while databases:
        asyncio.run(databases.pop().close())


def stored(*transactions: StoredTransaction) -> MemoryDatabase:
    database = MemoryDatabase()
    databases.append(database)
    for tx in transactions:
        asyncio.run(database.run(store.insert_transaction, tx))
    return database


def run(database: MemoryDatabase, unit: Any, *args: Any, **options: Any) -> Any:
    return asyncio.run(database.run(unit, *args, **options))


def test_a_second_transaction_in_flight_for_a_subject_is_refused() -> None:
    database = stored(transaction())
    with pytest.raises(ConstraintError):
        run(database, store.insert_transaction, transaction("second"))
    # Of another kind, or for another subject, it is another matter.
    run(database, store.insert_transaction, transaction("third", kind="session_close"))
    run(database, store.insert_transaction, transaction("fourth", subject_id="txn_2"))


@given(tried=st.lists(st.sampled_from(sorted(ENDS)), min_size=1, max_size=6))
def test_only_the_first_end_of_a_transaction_takes_effect(tried: list[str]) -> None:
    database = stored(transaction())
    ended = [run(database, ENDS[name], transaction()) for name in tried]
    assert [tx is None for tx in ended] == [False] + [True] * (len(tried) - 1)
    assert ended[0].state == tried[0]
    assert run(database, store.pending, "transfer", "txn_1") is None
    # Only transactions that can be resent keep their bytes.
    assert (ended[0].raw is not None) == (tried[0] == "confirmed")
    assert (ended[0].released_us is not None) == (tried[0] in ("failed", "rejected"))


def test_a_replacement_keeps_the_spend_and_the_announcement() -> None:
    database = stored(transaction())
    assert run(database, store.announce, transaction(), 3)
    assert not run(database, store.announce, transaction(), 4)
    expired = run(database, store.expire, transaction(), 5)
    following = transaction("second", spent_us=None, spent_total=None)
    second = run(database, store.replace, expired, following)
    assert (second.spent_us, second.spent_total, second.announced_us) == (1, 7, 3)
    assert evolve(run(database, store.pending, "transfer", "txn_1"), seq=0) == second
    (watched,) = run(database, store.watched_of, "txn_1")
    assert (watched.signature, watched.spent_us, watched.raw) == ("first", None, None)


def test_a_watched_expired_transaction_ends_once() -> None:
    database = stored(transaction())
    expired = run(database, store.expire, transaction(), 5)
    assert run(database, store.end_watched, expired, State.LANDED_LATE, 6)
    assert not run(database, store.end_watched, expired, State.RULED_OUT, 7)
    assert run(database, store.watched_of, "txn_1") == []


def test_a_rejected_transaction_is_watched_until_it_is_known_to_have_failed() -> None:
    database = stored(transaction())
    rejected = run(database, store.fail, transaction(), 5, is_watched=True)
    assert [tx.state for tx in run(database, store.watched_after, "", 10)] == [State.REJECTED]
    assert run(database, store.end_watched, rejected, State.FAILED, 6)
    assert run(database, store.watched_after, "", 10) == []


def test_a_vanished_transaction_is_reserved_once_and_kept_until_released() -> None:
    database = stored(transaction())
    confirmed = run(database, store.land, transaction(), 5, is_irreversible=False)
    assert run(database, store.set_vanished_hold, confirmed, 7)
    assert not run(database, store.set_vanished_hold, confirmed, 7)
    over = evolve(confirmed, state=State.FINALIZED)
    run(database, store.end_confirmed, [over])
    (watched,) = run(database, store.confirmed_after, "", 10)
    assert watched.vanished_hold == 7
    assert run(database, store.set_vanished_hold, watched, 0)
    run(database, store.end_confirmed, [over])
    assert run(database, store.confirmed_after, "", 10) == []


def test_the_bytes_of_a_failed_transaction_cannot_be_read() -> None:
    failed = run(stored(transaction()), store.fail, transaction(), 5, is_watched=True)
    with pytest.raises(ValueError, match="must not be sent"):
        _ = failed.signed
