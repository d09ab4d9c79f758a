"""SQL statements for accounts, their policies and their counters."""

from typing import Final

from sqlalchemy import BigInteger, bindparam, case, insert, or_, select, update

from agentpay.contract.identifiers import ACCOUNT, is_identifier
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import AccountRecord, accounts, counters
from agentpay_server.platform.errors import not_found
from agentpay_server.platform.principals import Principal

KEY_INDEX: Final = "key_index"

ACCOUNTS: Final = Rows(AccountRecord, "account_id")

_NEXT: Final = (
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)
_INSERT_COUNTER: Final = insert(counters)
_BY_IDS: Final = select(accounts).where(accounts.c.account_id.in_((bindparam("source"), bindparam("target"))))
_PARTIES: Final = select(accounts).where(
    or_(
        accounts.c.account_id.in_((bindparam("source"), bindparam("target"))),
        accounts.c.usdc_token_account == bindparam("target"),
    )
)
PAGES: Final = ACCOUNTS.pages("operator_id", equal=("paused",))
_IS_STOPPED: Final = accounts.c.stopped_us.is_not(None)
_IS_NOT_STOPPED: Final = accounts.c.stopped_us.is_(None)
_BY_TOKEN_ACCOUNT: Final = select(accounts).where(accounts.c.usdc_token_account == bindparam("token_account"))
_AFTER: Final = (
    select(accounts)
    .where(accounts.c.seq > bindparam("after"))
    .order_by(accounts.c.seq)
    .limit(bindparam("count"))
)
_SETTLE_CAP: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(
        session_reserved=accounts.c.session_reserved - bindparam("cap"),
        spent_total=accounts.c.spent_total + bindparam("settled"),
        # Spend times never decrease within an account.
        last_spend_us=case(
            (accounts.c.last_spend_us > bindparam("now_us", type_=BigInteger), accounts.c.last_spend_us),
            else_=bindparam("now_us", type_=BigInteger),
        ),
        balance=accounts.c.balance + bindparam("credited"),
    )
    .returning(accounts.c.spent_total, accounts.c.last_spend_us)
)
_BURN: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(
        burned_total=accounts.c.burned_total + bindparam("lamports"),
        last_burned_us=case(
            (accounts.c.last_burned_us > bindparam("now_us", type_=BigInteger), accounts.c.last_burned_us),
            else_=bindparam("now_us", type_=BigInteger),
        ),
    )
    .returning(accounts.c.burned_total, accounts.c.last_burned_us)
)
_DEBIT: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(
        in_flight=accounts.c.in_flight - bindparam("amount"),
        balance=accounts.c.balance - bindparam("amount"),
    )
    .returning(accounts.c.balance, accounts.c.unjudged_spend)
)
_CREDIT: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(balance=accounts.c.balance + bindparam("amount"))
    .returning(accounts.c.operator_id)
)


def next_key_index(connection: Connection) -> int:
    """Return an unused position in the custody tree; the first is 1."""
    value = connection.execute(_NEXT, {"counter": KEY_INDEX}).scalar_one_or_none()
    if value is None:
        connection.execute(_INSERT_COUNTER, {"name": KEY_INDEX, "value": 1})
        return 1
    return int(value)


def own_account(
    connection: Connection, principal: Principal, account_id: str, *, lock: bool = False
) -> AccountRecord:
    """Return an account of the principal's operator.

    Raises:
        Problem: `not_found`, the same for a missing account as for one of another operator.
    """
    record = None
    if is_identifier(account_id, ACCOUNT):
        record = ACCOUNTS.get(connection, account_id, lock=lock)
    if record is None or record.operator_id != principal.operator_id:
        raise not_found("account", account_id)
    return record


def account_at(connection: Connection, token_account: str) -> AccountRecord | None:
    """Return the account with a given USDC token account."""
    return ACCOUNTS.one(connection, _BY_TOKEN_ACCOUNT, token_account=token_account)


def accounts_after(connection: Connection, seq: int, count: int) -> list[AccountRecord]:
    """Return accounts of all operators above a sequence number, oldest first."""
    return ACCOUNTS.all(connection, _AFTER, after=seq, count=count)


def parties(
    connection: Connection, source: str, target: str
) -> tuple[AccountRecord | None, AccountRecord | None]:
    """Return the account `source`, and the account whose identifier or USDC token account is `target`."""
    # Usually both are identifiers, which one index finds.
    statement = _BY_IDS if target.startswith(ACCOUNT) else _PARTIES
    rows = ACCOUNTS.all(connection, statement, source=source, target=target)
    return (
        next((row for row in rows if row.account_id == source), None),
        next((row for row in rows if target in (row.account_id, row.usdc_token_account)), None),
    )


def reserve(connection: Connection, account_id: str, *, spent_total: int, spent_us: int, amount: int) -> None:
    """Count an amount as spent and in flight."""
    ACCOUNTS.changed(
        connection,
        account_id,
        add={"in_flight": amount, "in_flight_total": amount},
        spent_total=spent_total,
        last_spend_us=spent_us,
    )


def reserve_again(connection: Connection, account_id: str, amount: int) -> None:
    """Count an earlier spend as in flight again, because it may be back in the balance."""
    ACCOUNTS.changed(connection, account_id, add={"in_flight": amount, "in_flight_total": amount})


def release(connection: Connection, account_id: str, amount: int) -> None:
    """Count an amount as no longer in flight, because it can no longer leave the balance."""
    ACCOUNTS.changed(connection, account_id, add={"in_flight": -amount})


def reserve_cap(connection: Connection, account_id: str, cap: int) -> None:
    """Count a session's cap as in flight, and as reserved until the session is settled."""
    ACCOUNTS.changed(
        connection, account_id, add={"session_reserved": cap, "in_flight": cap, "in_flight_total": cap}
    )


def release_cap(connection: Connection, account_id: str, cap: int) -> None:
    """Count the cap of a session whose opening failed as neither in flight nor reserved."""
    ACCOUNTS.changed(connection, account_id, add={"session_reserved": -cap, "in_flight": -cap})


def settle_cap(
    connection: Connection, account_id: str, *, cap: int, settled: int, credited: int, now_us: int
) -> tuple[int, int]:
    """Count a session's cap as no longer reserved: the charges as spent, the rest as received.

    Returns:
        The account's running total of spends, this one included, and the time of this one.
    """
    values = {
        "of_account": account_id,
        "cap": cap,
        "settled": settled,
        "credited": credited,
        "now_us": now_us,
    }
    row = connection.execute(_SETTLE_CAP, values).one_or_none()
    assert row is not None  # noqa: S101 - accounts are never deleted
    return int(row[0]), int(row[1])


def burn(connection: Connection, account_id: str, lamports: int, now_us: int) -> tuple[int, int]:
    """Count lamports that brought no payment.

    Returns:
        The account's running total of them, and the time of these, which never decreases.
    """
    values = {"of_account": account_id, "lamports": lamports, "now_us": now_us}
    row = connection.execute(_BURN, values).one_or_none()
    assert row is not None  # noqa: S101 - accounts are never deleted
    return int(row[0]), int(row[1])


def debit(connection: Connection, account_id: str, amount: int) -> tuple[int, int]:
    """Count an amount that was in flight as having left the balance.

    Returns:
        The new balance, and the micro-USDC that had left it before, since `balance.low_threshold` was last
        checked.
    """
    row = connection.execute(_DEBIT, {"of_account": account_id, "amount": amount}).one_or_none()
    assert row is not None  # noqa: S101 - accounts are never deleted
    return int(row[0]), int(row[1])


def credit(connection: Connection, account_id: str, amount: int) -> str:
    """Count an amount as received, and return the account's operator."""
    return str(connection.execute(_CREDIT, {"of_account": account_id, "amount": amount}).scalar_one())


def stop(connection: Connection, account_id: str, now_us: int) -> bool:
    """Block an account: nothing is signed for it until an operator allows it. False if it already was."""
    return ACCOUNTS.change(connection, account_id, _IS_NOT_STOPPED, stopped_us=now_us) is not None


def allow_signing(connection: Connection, account_id: str) -> bool:
    """Allow an account to spend again; False if it already was."""
    return ACCOUNTS.change(connection, account_id, _IS_STOPPED, stopped_us=None) is not None
