"""The 24-hour spend check with 100,000 earlier spends within the window, against 10 of them."""

import asyncio

from harness import Result, compare
from sqlalchemy import insert

from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.database.tables import AccountRecord, chain_transactions
from agentpay_server.ledger import accounts, spending
from agentpay_server.platform.clock import SECOND_US

NOW_US = 1_767_225_600 * SECOND_US
INTERVAL_US = 500_000  # 100,000 of them take less than 14 hours


def _filled(count: int) -> tuple[MemoryDatabase, AccountRecord]:
    database = MemoryDatabase()
    account_id = "acct_01h455vb4pex5vsknk084sn02q"

    def fill(connection) -> AccountRecord:
        accounts.ACCOUNTS.insert(
            connection,
            AccountRecord(
                seq=0,
                account_id=account_id,
                operator_id="op_1",
                name="a",
                handle="@a",
                metadata=None,
                key_index=1,
                chain_address="a",
                usdc_token_account="t",
                policy="{}",
                paused=False,
                paused_with_all=False,
                policy_version=1,
                policy_updated_us=0,
                spent_total=count,
                last_spend_us=NOW_US,
                balance=0,
                in_flight=0,
                deposit_cursor=None,
                in_flight_total=0,
                created_us=0,
            ),
        )
        rows = [
            {
                "signature": f"{n}",
                "kind": "transfer",
                "subject_id": f"txn_{n}",
                "account_id": account_id,
                "hold": 1,
                "spent_us": NOW_US - (count - n) * INTERVAL_US,
                "spent_total": n + 1,
                "state": "finalized",
                "last_valid_block_height": 0,
                "vanished_hold": 0,
                "created_us": 0,
                "ended_us": 1,
                "leased_until_us": 0,
            }
            for n in range(count)
        ]
        connection.execute(insert(chain_transactions), rows)
        account = accounts.ACCOUNTS.get(connection, account_id)
        assert account is not None
        return account

    return database, asyncio.run(database.run(fill))


def run() -> list[Result]:
    """Return the ratio of the check in a full window to that in a nearly empty one."""
    full_database, full = _filled(100_000)
    few_database, few = _filled(10)
    assert asyncio.run(full_database.read(spending.against_daily_limit, full, NOW_US)) == 100_000
    assert asyncio.run(few_database.read(spending.against_daily_limit, few, NOW_US)) == 10

    return [
        compare(
            "24 h spend check, 100,000 spends against 10",
            subject=lambda: _drive(full_database, full),
            floor=lambda: _drive(few_database, few),
            bound=1.2,
            calls=2000,
        )
    ]


def _drive(database: MemoryDatabase, account: AccountRecord) -> int:
    """Run the check to its end; in memory it never suspends."""
    work = database.read(spending.against_daily_limit, account, NOW_US)
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the check has suspended")
