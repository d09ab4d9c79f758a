"""SQL statements for accounts, their policies and their counters."""

from typing import Final

from attrs import frozen
from sqlalchemy import BigInteger, bindparam, case, insert, null, or_, select, update

from agentpay.contract.identifiers import ACCOUNT, is_identifier
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import accounts, counters
from agentpay_server.errors import not_found
from agentpay_server.principals import Principal


@frozen
class AccountRecord:
    """A row of `accounts`."""

    seq: int
    account_id: str
    operator_id: str
    name: str
    handle: str
    metadata: str | None
    key_index: int
    chain_address: str
    usdc_token_account: str
    policy: str
    paused: bool
    policy_version: int
    policy_updated_us: int
    spent_total: int
    last_spend_us: int
    balance: int
    in_flight: int
    deposit_cursor: str | None
    in_flight_total: int
    session_reserved: int
    created_us: int
    unjudged_spend: int
    stopped_us: int | None


KEY_INDEX: Final = "key_index"

_NEXT: Final = (
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)
_INSERT_COUNTER: Final = insert(counters)
_INSERT: Final = insert(accounts)
_BY_ID: Final = select(accounts).where(accounts.c.account_id == bindparam("account_id"))
_BY_ID_LOCKED: Final = _BY_ID.with_for_update()
_BY_IDS: Final = select(accounts).where(accounts.c.account_id.in_((bindparam("source"), bindparam("target"))))
_PARTIES: Final = select(accounts).where(
    or_(
        accounts.c.account_id.in_((bindparam("source"), bindparam("target"))),
        accounts.c.usdc_token_account == bindparam("target"),
    )
)
_PAGE: Final = (
    select(accounts)
    .where(accounts.c.operator_id == bindparam("operator_id"), accounts.c.seq < bindparam("before"))
    .order_by(accounts.c.seq.desc())
    .limit(bindparam("count"))
)
_PAGE_BY_PAUSED: Final = _PAGE.where(accounts.c.paused == bindparam("paused"))
_BY_TOKEN_ACCOUNT: Final = select(accounts).where(accounts.c.usdc_token_account == bindparam("token_account"))
_AFTER: Final = (
    select(accounts)
    .where(accounts.c.seq > bindparam("after"))
    .order_by(accounts.c.seq)
    .limit(bindparam("count"))
)
_SET_POLICY: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(
        policy=bindparam("policy"),
        paused=bindparam("paused"),
        policy_version=bindparam("policy_version"),
        policy_updated_us=bindparam("policy_updated_us"),
    )
)
_RESERVE: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(
        spent_total=bindparam("spent_total"),
        last_spend_us=bindparam("last_spend_us"),
        in_flight=accounts.c.in_flight + bindparam("amount"),
        in_flight_total=accounts.c.in_flight_total + bindparam("amount"),
    )
)
_RESERVE_CAP: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(
        session_reserved=accounts.c.session_reserved + bindparam("cap"),
        in_flight=accounts.c.in_flight + bindparam("cap"),
        in_flight_total=accounts.c.in_flight_total + bindparam("cap"),
    )
)
_RELEASE_CAP: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(
        session_reserved=accounts.c.session_reserved - bindparam("cap"),
        in_flight=accounts.c.in_flight - bindparam("cap"),
    )
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
_RESERVE_AGAIN: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(
        in_flight=accounts.c.in_flight + bindparam("amount"),
        in_flight_total=accounts.c.in_flight_total + bindparam("amount"),
    )
)
_RELEASE: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(in_flight=accounts.c.in_flight - bindparam("amount"))
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
_SET_UNJUDGED: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(unjudged_spend=bindparam("amount"))
)
_STOP: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"), accounts.c.stopped_us.is_(None))
    .values(stopped_us=bindparam("now_us"))
)
_ALLOW_SIGNING: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"), accounts.c.stopped_us.is_not(None))
    .values(stopped_us=null())
)
_SET_DEPOSIT_CURSOR: Final = (
    update(accounts)
    .where(accounts.c.account_id == bindparam("of_account"))
    .values(deposit_cursor=bindparam("cursor"))
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


def insert_account(connection: Connection, **values: object) -> None:
    """Store an account; `values` are the columns but `seq`."""
    connection.execute(_INSERT, values)


def account(connection: Connection, account_id: str, *, lock: bool = False) -> AccountRecord | None:
    """Return an account; with `lock`, locked until the unit of work ends."""
    row = connection.execute(_BY_ID_LOCKED if lock else _BY_ID, {"account_id": account_id}).one_or_none()
    return None if row is None else AccountRecord(*row)


def own_account(
    connection: Connection, principal: Principal, account_id: str, *, lock: bool = False
) -> AccountRecord:
    """Return an account of the principal's operator.

    Raises:
        Problem: `not_found`, the same for a missing account as for one of another operator.
    """
    record = None
    if is_identifier(account_id, ACCOUNT):
        record = account(connection, account_id, lock=lock)
    if record is None or record.operator_id != principal.operator_id:
        raise not_found("account")
    return record


def existing_account(connection: Connection, account_id: str, *, lock: bool = False) -> AccountRecord:
    """Return an account that must exist: accounts are never deleted."""
    found = account(connection, account_id, lock=lock)
    if found is None:
        raise LookupError(f"{account_id} is gone")
    return found


def account_at(connection: Connection, token_account: str) -> AccountRecord | None:
    """Return the account with a given USDC token account."""
    row = connection.execute(_BY_TOKEN_ACCOUNT, {"token_account": token_account}).one_or_none()
    return None if row is None else AccountRecord(*row)


def accounts_after(connection: Connection, seq: int, count: int) -> list[AccountRecord]:
    """Return accounts of all operators above a sequence number, oldest first."""
    return [AccountRecord(*row) for row in connection.execute(_AFTER, {"after": seq, "count": count})]


def parties(
    connection: Connection, source: str, target: str
) -> tuple[AccountRecord | None, AccountRecord | None]:
    """Return the account `source`, and the account whose identifier or USDC token account is `target`."""
    # Usually both are identifiers, which one index finds.
    statement = _BY_IDS if target.startswith(ACCOUNT) else _PARTIES
    rows = [
        AccountRecord(*row) for row in connection.execute(statement, {"source": source, "target": target})
    ]
    return (
        next((row for row in rows if row.account_id == source), None),
        next((row for row in rows if target in (row.account_id, row.usdc_token_account)), None),
    )


def page(
    connection: Connection, operator_id: str, before: int, count: int, *, paused: bool | None
) -> list[AccountRecord]:
    """Return an operator's accounts below a sequence number, newest first."""
    values: dict[str, object] = {"operator_id": operator_id, "before": before, "count": count}
    if paused is None:
        return [AccountRecord(*row) for row in connection.execute(_PAGE, values)]
    return [AccountRecord(*row) for row in connection.execute(_PAGE_BY_PAUSED, {**values, "paused": paused})]


def set_policy(
    connection: Connection, account_id: str, *, policy: str, paused: bool, version: int, now_us: int
) -> None:
    """Set the policy in force, as canonical JSON."""
    connection.execute(
        _SET_POLICY,
        {
            "of_account": account_id,
            "policy": policy,
            "paused": paused,
            "policy_version": version,
            "policy_updated_us": now_us,
        },
    )


def reserve(connection: Connection, account_id: str, *, spent_total: int, spent_us: int, amount: int) -> None:
    """Count an amount as spent and in flight."""
    connection.execute(
        _RESERVE,
        {"of_account": account_id, "spent_total": spent_total, "last_spend_us": spent_us, "amount": amount},
    )


def reserve_again(connection: Connection, account_id: str, amount: int) -> None:
    """Count an earlier spend as in flight again, because it may be back in the balance."""
    connection.execute(_RESERVE_AGAIN, {"of_account": account_id, "amount": amount})


def release(connection: Connection, account_id: str, amount: int) -> None:
    """Count an amount as no longer in flight, because it can no longer leave the balance."""
    connection.execute(_RELEASE, {"of_account": account_id, "amount": amount})


def reserve_cap(connection: Connection, account_id: str, cap: int) -> None:
    """Count a session's cap as in flight, and as reserved until the session is settled."""
    connection.execute(_RESERVE_CAP, {"of_account": account_id, "cap": cap})


def release_cap(connection: Connection, account_id: str, cap: int) -> None:
    """Count the cap of a session whose opening failed as neither in flight nor reserved."""
    connection.execute(_RELEASE_CAP, {"of_account": account_id, "cap": cap})


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


def debit(connection: Connection, account_id: str, amount: int) -> tuple[int, int]:
    """Count an amount that was in flight as having left the balance.

    Returns:
        The new balance, and the micro-USDC that had left it before, since `balance.low_threshold` was last
        checked.
    """
    row = connection.execute(_DEBIT, {"of_account": account_id, "amount": amount}).one_or_none()
    assert row is not None  # noqa: S101 - accounts are never deleted
    return int(row[0]), int(row[1])


def set_unjudged(connection: Connection, account_id: str, amount: int) -> None:
    """Store how much has left the balance since `balance.low_threshold` was last checked."""
    connection.execute(_SET_UNJUDGED, {"of_account": account_id, "amount": amount})


def credit(connection: Connection, account_id: str, amount: int) -> str:
    """Count an amount as received, and return the account's operator."""
    return str(connection.execute(_CREDIT, {"of_account": account_id, "amount": amount}).scalar_one())


def stop(connection: Connection, account_id: str, now_us: int) -> bool:
    """Block an account: nothing is signed for it until an operator allows it. False if it already was."""
    return connection.execute(_STOP, {"of_account": account_id, "now_us": now_us}).rowcount == 1


def allow_signing(connection: Connection, account_id: str) -> bool:
    """Allow an account to spend again; False if it already was."""
    return connection.execute(_ALLOW_SIGNING, {"of_account": account_id}).rowcount == 1


def set_deposit_cursor(connection: Connection, account_id: str, cursor: str) -> None:
    """Store how far the account's on-chain history has been scanned for deposits."""
    connection.execute(_SET_DEPOSIT_CURSOR, {"of_account": account_id, "cursor": cursor})
