"""One claim for each idempotency key, who asked for what costs fees, and searches by index."""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    """Add what this version needs to a database of the version before."""
    _searches()


def _searches() -> None:
    op.add_column("transfers", sa.Column("memo_key", sa.LargeBinary(), nullable=True))
    op.add_column("entries", sa.Column("operator_id", sa.Text(), server_default="", nullable=False))
    connection = op.get_bind()
    connection.execute(
        sa.text(
            "UPDATE entries SET operator_id = (SELECT operator_id FROM accounts "
            "WHERE accounts.account_id = entries.account_id)"
        )
    )
    after, page = (
        0,
        sa.text(
            "SELECT seq, memo FROM transfers WHERE seq > :after AND memo IS NOT NULL ORDER BY seq LIMIT 1000"
        ),
    )
    write = sa.text("UPDATE transfers SET memo_key = :memo_key WHERE seq = :seq")
    while memos := connection.execute(page, {"after": after}).all():
        connection.execute(write, [{"seq": seq, "memo_key": memo.casefold().encode()} for seq, memo in memos])
        after = memos[-1][0]
    for name, table, columns, where in (
        ("ix_transfers_amount", "transfers", ("operator_id", "amount", "seq"), None),
        ("ix_transfers_payee", "transfers", ("operator_id", "to", "seq"), None),
        ("ix_transfers_memo", "transfers", ("operator_id", "memo_key", "seq"), "memo_key IS NOT NULL"),
        ("ix_transfers_error", "transfers", ("operator_id", "error", "seq"), "error IS NOT NULL"),
        ("ix_audit_time", "audit", ("operator_id", "created_us", "seq"), None),
        ("ix_sessions_time", "sessions", ("operator_id", "created_us", "seq"), None),
        ("ix_sessions_cap", "sessions", ("operator_id", "cap", "seq"), None),
        ("ix_sessions_payee", "sessions", ("operator_id", "to", "seq"), None),
        ("ix_events_type", "events", ("operator_id", "type", "seq"), None),
        ("ix_entries_operator", "entries", ("operator_id", "seq"), None),
        ("ix_entries_operator_status", "entries", ("operator_id", "status", "seq"), None),
        ("ix_entries_time", "entries", ("operator_id", "created_us", "seq"), None),
        ("ix_entries_signature", "entries", ("tx_signature",), "tx_signature IS NOT NULL"),
        ("ix_entries_sender", "entries", ("operator_id", "counterparty", "seq"), "type = 'deposit'"),
        ("ix_entries_amount", "entries", ("operator_id", "amount", "seq"), "type = 'deposit'"),
    ):
        condition = None if where is None else sa.text(where)
        op.create_index(name, table, list(columns), sqlite_where=condition, postgresql_where=condition)
