"""Rows and statements that the tests of PostgreSQL share."""

from sqlalchemy import text

from agentpay_server.database.tables import AccountRecord, KeyClaimRecord
from agentpay_server.ledger import accounts
from agentpay_server.transfers import store as transfers

KILL_OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND datname = current_database() AND usename = current_user"
)

OTHERS_WAITING = """
    SELECT count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def until_waiting(holder, count):
    while await holder.fetchval(OTHERS_WAITING) != count:
        # Within a transaction it sees what it saw before.
        await holder.execute("SELECT pg_stat_clear_snapshot()")


def put_account(connection):
    accounts.ACCOUNTS.insert(
        connection,
        AccountRecord(
            seq=0,
            account_id="acct_1",
            operator_id="op_1",
            name="a",
            handle="@a",
            metadata=None,
            key_index=1,
            chain_address="address",
            usdc_token_account="token",
            policy="{}",
            paused=False,
            paused_with_all=False,
            policy_version=1,
            policy_updated_us=0,
            spent_total=0,
            last_spend_us=0,
            balance=0,
            in_flight=0,
            deposit_cursor=None,
            in_flight_total=0,
            created_us=0,
        ),
    )


def new_transfer(number):
    fields = dict.fromkeys(transfers.TransferRecord.__annotations__)
    fields |= {
        "seq": 0,
        "transfer_id": f"txn_{number}",
        "operator_id": "op_1",
        "account_id": "acct_1",
        "key_id": "key_1",
        "to": "acct_2",
        "amount": 1,
        "idempotency_key": "key",
        "status": "submitted",
        "created_us": 0,
    }
    return transfers.TransferRecord(**fields)


def new_claim(number, *, by_operator=True):
    return KeyClaimRecord(
        operator_id="op_1",
        account_id="acct_1",
        idempotency_key="key",
        kind="transfer",
        subject_id=f"txn_{number}",
        claimed_by_operator=by_operator,
    )
