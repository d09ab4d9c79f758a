"""The server's identity, its operators, their keys, accounts and policy records, and the audit trail."""

from typing import Annotated, Final

from attrs import frozen
from sqlalchemy import Index

from agentpay_server.database.tables.base import (
    KEY,
    SMALL,
    UNIQUE,
    ZERO,
    Seq,
    index_where,
    row,
    table_of,
)


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
    # How often all accounts were paused: an older request to resume them must not go on.
    pauses: Annotated[int, ZERO] = 0


@row(
    "api_keys",
    Index("ix_api_keys_operator", "operator_id", "seq"),
    index_where("account_id IS NOT NULL", "ix_api_keys_account", "operator_id", "account_id", "seq"),
)
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


@row(
    "accounts",
    Index("ix_accounts_operator", "operator_id", "seq"),
    Index("ix_accounts_operator_paused", "operator_id", "paused", "seq"),
    Index("ix_accounts_name", "operator_id", "name"),
    Index("ix_accounts_handle", "operator_id", "handle"),
    index_where("suspended_us IS NOT NULL", "ix_accounts_suspended", "suspended_us"),
    index_where("paused_with_all", "ix_accounts_paused_with_all", "operator_id", "seq"),
)
@frozen
class AccountRecord:
    """An account."""

    seq: Seq
    account_id: Annotated[str, UNIQUE]
    operator_id: str
    name: str
    handle: str
    metadata: str | None
    # Position of the account's keys in the custody tree; never reused.
    key_index: Annotated[int, UNIQUE]
    chain_address: str
    usdc_token_account: Annotated[str, UNIQUE]
    # The policy as canonical JSON. `paused` copies one of its fields, for filters.
    policy: str
    paused: bool
    # Whether a pause of all accounts has paused it, and its policy was not written since: then resuming all
    # resumes it.
    paused_with_all: bool
    policy_version: int
    policy_updated_us: int
    # Running total of the account's spends, and the time of the newest (ledger/spending.py).
    spent_total: int
    last_spend_us: int
    # The posted balance. Every settled movement changes it in its own commit.
    balance: int
    # The amount that signed transfers and session openings that are not final may still debit.
    in_flight: int
    # How far the token account's on-chain history was scanned for deposits; NULL if never.
    deposit_cursor: str | None
    # Running total of every amount that went in flight: the difference of two values is what was added.
    in_flight_total: int
    created_us: int
    # The amount debited since `balance.low_threshold` was last checked.
    unjudged_spend: Annotated[int, ZERO] = 0
    # Since when signing is suspended, because a transaction landed that had been considered expired.
    suspended_us: int | None = None
    # Running totals of the lamports that brought no payment, of agents and of operators, and the newest time
    # of any (engine/funding.py).
    burned_total: Annotated[int, ZERO] = 0
    last_burned_us: Annotated[int, ZERO] = 0
    operator_burned_total: Annotated[int, ZERO] = 0


@row("policy_records", Index("ix_policy_records_due", "due_us"))
@frozen
class PolicyRecordRow:
    """The on-chain record of an account's policy."""

    account_id: Annotated[str, KEY]
    address: str
    # The version on chain, 0 before the first write has landed.
    written_version: int
    tx_signature: str | None
    # When the record must be written; NULL if the chain has the newest version.
    due_us: int | None
    failures: Annotated[int, SMALL]


@row("account_claims", sqlite_with_rowid=False)
@frozen
class ClaimRecord:
    """An account of an operator, counted before it is provisioned (accounts/store.py)."""

    operator_id: Annotated[str, KEY]
    number: Annotated[int, KEY]
    created_us: int


account_claims: Final = table_of(ClaimRecord)

accounts: Final = table_of(AccountRecord)
policy_records: Final = table_of(PolicyRecordRow)
