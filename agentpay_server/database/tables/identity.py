"""The server's identity, its operators, their keys, and the audit trail."""

from typing import Annotated, Final

from attrs import frozen
from sqlalchemy import Index

from agentpay_server.database.tables.base import KEY, UNIQUE, Seq, row, table_of


@row("server_state")
@frozen
class StateRecord:
    """A value of the server's persistent identity (assembly/identity.py)."""

    name: Annotated[str, KEY]
    value: bytes


server_state: Final = table_of(StateRecord)


@row("operators")
@frozen
class OperatorRecord:
    """An operator."""

    seq: Seq
    operator_id: Annotated[str, UNIQUE]
    name: str
    created_us: int


@row("api_keys", Index("ix_api_keys_operator", "operator_id", "seq"))
@frozen
class KeyRecord:
    """An API key. It is shown once and never stored."""

    seq: Seq
    key_id: Annotated[str, UNIQUE]
    operator_id: str
    # The account of an agent key; NULL for an operator key.
    account_id: str | None
    name: str | None
    # The SHA-256 of the key.
    digest: Annotated[str, UNIQUE]
    created_us: int
    revoked_us: int | None
    # `operator`; `agent`; `lent`: an operator key for one run of a server; `console`: the key of a signed-in
    # browser.
    kind: str
    # NULL for a key that does not expire.
    expires_us: int | None
    # The most micro-USDC that an agent key may spend in its lifetime; NULL without a limit.
    max_total: int | None = None


# Unused codes of sign-in links to the console.
@row("sign_in_codes", Index("ix_sign_in_codes_expires", "expires_us"))
@frozen
class SignInCodeRecord:
    """A code that signs a browser in once."""

    # The SHA-256 of the code, which is shown once and never stored.
    digest: Annotated[str, KEY]
    operator_id: str
    expires_us: int


sign_in_codes: Final = table_of(SignInCodeRecord)


@row("counters")
@frozen
class CounterRecord:
    """A counter of all servers."""

    name: Annotated[str, KEY]
    value: int


counters: Final = table_of(CounterRecord)


@row(
    "audit",
    Index("ix_audit_operator", "operator_id", "seq"),
    Index("ix_audit_time", "operator_id", "created_us", "seq"),
)
@frozen
class AuditRecord:
    """An entry of the audit trail."""

    seq: Seq
    operator_id: str
    # The key that made the change; NULL for automatic changes.
    key_id: str | None
    action: str
    subject: str
    before: str | None
    after: str | None
    request_id: str | None
    created_us: int


operators: Final = table_of(OperatorRecord)
api_keys: Final = table_of(KeyRecord)
audit: Final = table_of(AuditRecord)
