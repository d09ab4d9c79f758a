"""Accounts: provisioned on chain, then stored; read with their live balance (interface A1 to A10).

The row is stored after the chain has finished, so that no incomplete account is ever listed. A crash between
the two leaves an empty token account that no client knows; its key index is never reused.
"""

import asyncio
import contextlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs

from agentpay.contract import codec, identifiers, json_text
from agentpay.contract.accounts import Account, AccountStatus, Balance, CreateAccount, ListAccounts
from agentpay.contract.endpoints import CREATE_ACCOUNT
from agentpay.contract.errors import FieldError
from agentpay.contract.ext.console import (
    UNBLOCK_ACCOUNT,
    AccountDetails,
    AccountSort,
    ListAccountDetails,
    PolicyRecordView,
    Suspension,
    SuspensionCause,
)
from agentpay.contract.ext.spending import Budget
from agentpay.contract.fields import format_timestamp
from agentpay.contract.pages import PageBody
from agentpay.contract.policies import POLICY_FIELDS, Policy
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.accounts import store as claims
from agentpay_server.accounts.policies import canonical_policy
from agentpay_server.accounts.provisioning import Provisioning
from agentpay_server.accounts.store import sorted_accounts
from agentpay_server.chain.custody import spending_key
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.chain.protocol import ChainUnreachableError, SignedTransaction, TokenAccount
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List, Place, SortedList
from agentpay_server.database.runner import run_again_if_late
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine.authorization import spendable_micro, uncertain_micro
from agentpay_server.engine.funding import Cost, Funds, FundsChangedError, TreasuryFunding
from agentpay_server.engine.movement import watched_transaction
from agentpay_server.engine.policy import stored_policy
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import accounts as store
from agentpay_server.ledger import audit, spending
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.accounts import own_account
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.spending import remaining
from agentpay_server.platform.clock import from_us, from_us_up
from agentpay_server.platform.errors import Problem, chain_unavailable, invalid
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal

_CUSTODIAL = "custodial"
_BALANCE_SECONDS = 2.0
"""How long the console waits for the chain, which may have gone away without a word."""

_CAUSES = {
    audit.LANDED_AFTER_EXPIRY: SuspensionCause.LANDED_LATE,
    audit.UNKNOWN_DEBIT: SuspensionCause.UNKNOWN_DEBIT,
    audit.UNKNOWN_PAYOUT: SuspensionCause.UNKNOWN_PAYOUT,
}

_NAMED_MAX = 100
"""How many accounts a caller may name in one request."""


class Accounts:
    """Provisions and reads accounts."""

    def __init__(self, context: Context, settlement: Settlement, funding: TreasuryFunding) -> None:
        self._context = context
        self._funding = funding
        self._provisioning = Provisioning(context, settlement)

    async def create(self, principal: Principal, request: CreateAccount) -> Account:
        """Provision an account on chain and return it (interface A1, A7 to A10).

        Raises:
            Problem: `chain_unavailable`, `rate_limited`, `service_unavailable` while the clocks differ;
                nothing was stored.
        """
        principal.require_operator("POST /v1/accounts")
        self._context.clock_check.require()
        failpoint(Operation.ACCOUNT, Step.BEGUN)
        key_index = await self._claimed_key_index(principal)
        try:
            watched = await self._provisioning.provision(key_index)
        except ChainUnreachableError:
            raise chain_unavailable() from None
        record = await self._context.database.run(self._insert, principal, request, key_index, watched)
        failpoint(Operation.ACCOUNT, Step.POSTED)
        return _account(record, 0)

    async def get(self, principal: Principal, account_id: str) -> Account:
        """Return an account with its live balance (interface A2).

        Raises:
            Problem: `not_found`, `chain_unavailable`.
        """
        record = await self._context.database.read(own_account, principal, account_id)
        (balance,) = await self._balances([record])
        return _account(record, balance)

    async def list(self, principal: Principal, query: ListAccounts) -> PageBody[Account]:
        """Return a page of the operator's accounts, newest first (interface R14, R15).

        Raises:
            Problem: `invalid_request` for a cursor of another list, `chain_unavailable`.
        """
        principal.require_operator("GET /v1/accounts")
        listing = List("accounts", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            store.PAGES, principal.operator_id, before, query.limit + 1, paused=_is_paused(query.status)
        )
        balances = dict(zip(rows, await self._balances(rows), strict=True))
        return listing.page(
            rows, query.limit, seq=lambda row: row.seq, item=lambda row: _account(row, balances[row])
        )

    async def balance(self, principal: Principal, account_id: str) -> Balance:
        """Return the live balance of an account (interface A5).

        Raises:
            Problem: `not_found`, `chain_unavailable`.
        """
        record = await self._context.database.read(own_account, principal, account_id)
        (balance,) = await self._balances([record])
        return Balance(
            account_id=record.account_id,
            balance_usdc=from_micro(balance),
            last_updated=from_us(self._context.clock.now_us()),
        )

    async def detail(self, principal: Principal, account_id: str) -> AccountDetails:
        """Return an account with metadata, policy record, and its spending.

        Its balance is None while the chain does not respond.

        Raises:
            Problem: `not_found`.
        """
        # One read gives consistent limits: those by which a transfer at that moment would be judged.
        rows = await self._context.database.read(
            self._details, lambda connection: [own_account(connection, principal, account_id)]
        )
        (detailed,) = await self._with_balances(rows)
        return detailed

    async def list_details(self, principal: Principal, query: ListAccountDetails) -> PageBody[AccountDetails]:
        """Return a page of the operator's accounts in full, newest first or sorted.

        Raises:
            Problem: `invalid_request` for a cursor of another list, or filters that exclude each other.
        """
        chosen = [name for name in ("ids", "sort") if getattr(query, name) is not None]
        if chosen:
            others = (*chosen[1:], *(n for n in ("name", "status") if getattr(query, n) is not None))
            if others:
                raise invalid(FieldError(field=others[0], message=f"cannot be combined with {chosen[0]}"))
        if query.sort is not None:
            return await self._sorted_details(principal, query, query.sort)
        listing = List("account-details", principal.operator_id)
        before = listing.before(query.cursor)
        if query.ids is None:
            read = partial(
                store.PAGES,
                owner=principal.operator_id,
                before=before,
                count=query.limit + 1,
                name=query.name,
                paused=_is_paused(query.status),
            )
        else:
            read = partial(_own_accounts, principal=principal, account_ids=query.ids.split(",")[:_NAMED_MAX])
        rows = await self._context.database.read(self._details, read)
        found = list(zip([record.seq for record, _ in rows], await self._with_balances(rows), strict=True))
        limit = query.limit if query.ids is None else len(found)
        return listing.page(found, limit, seq=lambda row: row[0], item=lambda row: row[1])

    async def _sorted_details(
        self, principal: Principal, query: ListAccountDetails, sort: AccountSort
    ) -> PageBody[AccountDetails]:
        listing = SortedList(f"account-details by {sort.value}", principal.operator_id)
        after = listing.after(query.cursor)
        rows = await self._context.database.read(
            self._details_in_order, sort, principal.operator_id, after, query.limit + 1
        )
        detailed = await self._with_balances([(record, more) for record, _, more in rows])
        found = list(zip([place for _, place, _ in rows], detailed, strict=True))
        return listing.page(found, query.limit, place=lambda row: row[0], item=lambda row: row[1])

    async def some_details(
        self, principal: Principal, account_ids: Sequence[str]
    ) -> tuple[AccountDetails, ...]:
        """Return those of some accounts that are the operator's."""
        read = partial(_own_accounts, principal=principal, account_ids=account_ids)
        rows = await self._context.database.read(self._details, read)
        return tuple(await self._with_balances(rows))

    async def budget(self, principal: Principal, account_id: str) -> Budget:
        """Return the budget of an account (interface B1, B2).

        Raises:
            Problem: `not_found`, `chain_unavailable`.
        """
        # As for a transfer, read the reservations before the balance and again after it.
        before = await self._context.database.read(own_account, principal, account_id)
        try:
            (held,) = await self._context.chain.token_accounts([before.usdc_token_account])
        except ChainUnreachableError:
            raise chain_unavailable() from None
        return await self._context.database.read(self._budget, principal, before, held)

    async def unblock(self, principal: Principal, account_id: str) -> AccountDetails:
        """Unblock an account, and return it.

        Raises:
            Problem: `not_found`.
        """
        await self._context.database.run(self._unblock, principal, account_id)
        return await self.detail(principal, account_id)

    async def _balances(self, records: Sequence[AccountRecord]) -> Sequence[int]:
        """Return the accounts' on-chain balances, in micro-USDC."""
        if not records:
            return []
        try:
            found = await self._context.chain.token_accounts([row.usdc_token_account for row in records])
        except ChainUnreachableError:
            raise chain_unavailable() from None
        return [0 if account is None else account.amount_micro for account in found]

    async def _with_balances(
        self, rows: Sequence[tuple[AccountRecord, dict[str, Any]]]
    ) -> Sequence[AccountDetails]:
        """Return accounts in full; without balances if the chain does not respond soon."""
        balances: Sequence[int | None] = [None] * len(rows)
        with contextlib.suppress(Problem, TimeoutError):
            async with asyncio.timeout(_BALANCE_SECONDS):
                balances = await self._balances([record for record, _ in rows])
        return [
            AccountDetails(**{**_fields(record, held), **more})
            for (record, more), held in zip(rows, balances, strict=True)
        ]

    async def _claimed_key_index(self, principal: Principal) -> int:
        """Count an account of an operator, and return the index of its key.

        Raises:
            Problem: `chain_unavailable`, also if the treasury cannot pay; `rate_limited`.
        """
        try:
            cost = await self._provisioning.cost()
            while True:
                funds = await self._funding.read()
                try:
                    return await run_again_if_late(
                        self._context.database, self._claim, principal.operator_id, funds, cost
                    )
                except FundsChangedError:
                    continue
        except ChainUnreachableError:
            raise chain_unavailable() from None

    def _claim(self, connection: Connection, operator_id: str, funds: Funds, cost: Cost) -> int:
        key_index = store.next_key_index(connection)
        # That has locked the counter of key indexes, so accounts are counted one after another.
        claims.claim(self._context, connection, operator_id)
        self._funding.promise(connection, funds, cost)
        return key_index

    def _insert(
        self,
        connection: Connection,
        principal: Principal,
        request: CreateAccount,
        key_index: int,
        watched: SignedTransaction | None,
    ) -> AccountRecord:
        context, now_us = self._context, self._context.clock.now_us()
        account_id = context.identifiers.new(identifiers.ACCOUNT)
        address = context.signer.address(spending_key(key_index))
        metadata = request.metadata
        new = AccountRecord(
            seq=0,
            account_id=account_id,
            operator_id=principal.operator_id,
            name=request.name,
            handle=handle_of(request.name),
            metadata=None if metadata is None else codec.print_json(metadata).decode("ascii"),
            key_index=key_index,
            chain_address=address,
            usdc_token_account=associated_token_address(address, context.chain.usdc_mint),
            policy=canonical_policy(Policy()),
            paused=False,
            paused_with_all=False,
            policy_version=1,
            policy_updated_us=now_us,
            spent_total=0,
            last_spend_us=0,
            balance=0,
            in_flight=0,
            deposit_cursor=None,
            in_flight_total=0,
            created_us=now_us,
        )
        store.ACCOUNTS.insert(connection, new)
        if watched is not None:
            provisioned = watched_transaction(
                watched, kind=Operation.ACCOUNT, account_id=account_id, now_us=now_us
            )
            chain_transactions.insert_transaction(connection, provisioned)
        record = own_account(connection, principal, account_id)
        audit.record(
            connection,
            principal,
            action=CREATE_ACCOUNT.name,
            subject=account_id,
            now_us=now_us,
            after={
                "name": record.name,
                "handle": record.handle,
                "chain_address": record.chain_address,
                "usdc_token_account": record.usdc_token_account,
            },
        )
        return record

    def _unblock(self, connection: Connection, principal: Principal, account_id: str) -> None:
        record = own_account(connection, principal, account_id, lock=True)
        if record.suspended_us is not None and store.unblock(connection, account_id):
            audit.record(
                connection,
                principal,
                action=UNBLOCK_ACCOUNT.name,
                subject=account_id,
                now_us=self._context.clock.now_us(),
                before={"signing_stopped_at": format_timestamp(from_us(record.suspended_us))},
                after={"signing_stopped_at": None},
            )

    def _budget(
        self, connection: Connection, principal: Principal, before: AccountRecord, held: TokenAccount | None
    ) -> Budget:
        record = own_account(connection, principal, before.account_id)
        policy = stored_policy(record.policy)
        uncertain = uncertain_micro(before, record)
        key = spending.key_of(principal)
        left = spending.left_of_key(connection, key)
        return Budget(
            account_id=record.account_id,
            balance_usdc=from_micro(0 if held is None else held.amount_micro),
            available_usdc=from_micro(max(spendable_micro(held) - uncertain, 0)),
            **{name: getattr(policy, name) for name in POLICY_FIELDS if name in attrs.fields_dict(Budget)},
            requires_memo=policy.require_memo,
            expires_at=None if principal.expires_us is None else from_us(principal.expires_us),
            **(self._spending(connection, record, policy, left) | spending.total_fields(connection, key)),
            remaining_total_usdc=None if left is None else from_micro(left),
        )

    def _spending(
        self, connection: Connection, record: AccountRecord, policy: Policy, key_left_micro: int | None = None
    ) -> dict[str, Any]:
        # The window ends where the next transfer's would: never before the time of the last spend.
        now_us = max(self._context.clock.now_us(), record.last_spend_us)
        spent = spending.against_daily_limit(connection, record, now_us)
        release = spending.next_release(connection, record, now_us)
        limit = None if policy.max_daily_spend is None else to_micro(policy.max_daily_spend)
        left = spending.least(remaining(limit_micro=limit, spent_micro=spent), key_left_micro)
        return {
            "spent_usdc": from_micro(spent),
            "reserved_usdc": from_micro(spending.reserved(connection, record)),
            "remaining_usdc": None if left is None else from_micro(left),
            "next_release_at": None if release is None else from_us_up(release.at_us),
            "next_release_usdc": None if release is None else from_micro(release.amount_micro),
        }

    def _details(
        self, connection: Connection, read: Callable[[Connection], Sequence[AccountRecord]]
    ) -> Sequence[tuple[AccountRecord, dict[str, Any]]]:
        return [(record, self._detail_of(connection, record)) for record in read(connection)]

    def _details_in_order(
        self, connection: Connection, sort: AccountSort, operator_id: str, after: Place | None, count: int
    ) -> Sequence[tuple[AccountRecord, Place, dict[str, Any]]]:
        now_us = self._context.clock.now_us()
        rows = sorted_accounts(connection, sort, operator_id, after, count=count, now_us=now_us)
        return [(record, place, self._detail_of(connection, record)) for record, place in rows]

    def _detail_of(self, connection: Connection, record: AccountRecord) -> dict[str, Any]:
        policy = stored_policy(record.policy)
        written = claims.RECORDS.get(connection, record.account_id)
        view = None
        if written is not None:
            view = PolicyRecordView(
                address=written.address, version=written.written_version, tx_signature=written.tx_signature
            )
        return {
            "metadata": None if record.metadata is None else json_text.parse_json(record.metadata.encode()),
            "policy_version": record.policy_version,
            "policy_record": view,
            **self._spending(connection, record, policy),
            "signing_stopped_at": None if record.suspended_us is None else from_us(record.suspended_us),
            "suspension": self._suspension(connection, record),
        }

    def _suspension(self, connection: Connection, record: AccountRecord) -> Suspension | None:
        if record.suspended_us is None:
            return None
        entry = audit.suspension(connection, record.operator_id, record.account_id, record.suspended_us)
        if entry is None:
            return None
        signature = entry.after.get("tx_signature")
        return Suspension(
            cause=_CAUSES[entry.action].value,
            subject=entry.subject,
            tx_signature=signature,
            chain_explorer_url=None if signature is None else self._context.chain.explorer_url(signature),
        )


def _own_accounts(
    connection: Connection, principal: Principal, account_ids: Sequence[str]
) -> list[AccountRecord]:
    """Return those of some accounts that are the operator's, each once."""
    known = dict.fromkeys(
        each for each in account_ids if identifiers.is_identifier(each, identifiers.ACCOUNT)
    )
    found = (store.ACCOUNTS.get(connection, each) for each in known)
    return [row for row in found if row is not None and row.operator_id == principal.operator_id]


def _account(record: AccountRecord, balance_micro: int) -> Account:
    return Account(**_fields(record, balance_micro))


def _fields(record: AccountRecord, balance_micro: int | None) -> dict[str, Any]:
    return {
        "account_id": record.account_id,
        "name": record.name,
        "handle": record.handle,
        "chain_address": record.chain_address,
        "usdc_token_account": record.usdc_token_account,
        "balance_usdc": None if balance_micro is None else from_micro(balance_micro),
        "custody_mode": _CUSTODIAL,
        "status": "paused" if record.paused else "active",
        "policy": stored_policy(record.policy),
        "created_at": from_us(record.created_us),
    }


def _is_paused(status: AccountStatus | None) -> bool | None:
    return None if status is None else status is AccountStatus.PAUSED


_HANDLE_CHARACTERS: Final = 32
_NOT_IN_HANDLES: Final = re.compile(r"[^a-z0-9]+", re.ASCII)


def handle_of(name: str) -> str:
    """Return the handle for a name: `@` and at most 32 of `a-z`, `0-9` and single `-`."""
    decomposed = unicodedata.normalize("NFKD", name)
    letters = "".join(
        character for character in decomposed if not unicodedata.category(character).startswith("M")
    )
    words = _NOT_IN_HANDLES.sub("-", letters.lower()).strip("-")[:_HANDLE_CHARACTERS].strip("-")
    return "@" + (words or "account")
