"""Accounts: provisioned on chain, then stored; read with their live balance (interface A1 to A10).

The chain comes first and the row after, so that no half-made account is ever listed. What a crash between the
two leaves behind is an empty token account that nobody was told of; its place in the custody tree is burned.
"""

from collections.abc import Sequence

from agentpay.contract import codec, identifiers
from agentpay.contract.accounts import Account, AccountStatus, Balance, CreateAccount, ListAccounts
from agentpay.contract.endpoints import CREATE_ACCOUNT
from agentpay.contract.pages import PageBody
from agentpay.contract.policies import Policy
from agentpay.contract.usdc import from_micro
from agentpay_server.chain.base import ChainUnavailableError, SignedTransaction
from agentpay_server.chain.custody import spending_key
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.clock import from_us
from agentpay_server.domain.cursors import List
from agentpay_server.domain.handles import handle_of
from agentpay_server.domain.principals import Principal
from agentpay_server.domain.problems import chain_unavailable
from agentpay_server.faults import Operation, Step, fault_point
from agentpay_server.services import audit
from agentpay_server.services.context import Context
from agentpay_server.services.policies import canonical_policy, own_account, stored_policy
from agentpay_server.services.provisioning import Provisioning
from agentpay_server.services.settlement import Settlement
from agentpay_server.store import accounts as store
from agentpay_server.store import confirmed
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.connection import Connection
from agentpay_server.store.database import run_again_if_late

_CUSTODIAL = "custodial"


class Accounts:
    """Provisions and reads accounts."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._provisioning = Provisioning(context, settlement)

    async def create(self, principal: Principal, request: CreateAccount) -> Account:
        """Provision an account on chain and return it (interface A1, A7 to A10).

        Raises:
            Problem: `chain_unavailable`; nothing is left behind.
        """
        principal.require_operator("POST /v1/accounts")
        fault_point(Operation.ACCOUNT, Step.BEGUN)
        key_index = await run_again_if_late(self._context.database, store.next_key_index)
        try:
            watched = await self._provisioning.provision(key_index)
        except ChainUnavailableError:
            raise chain_unavailable() from None
        record = await self._context.database.run(self._insert, principal, request, key_index, watched)
        fault_point(Operation.ACCOUNT, Step.BOOKED)
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
        paused = None if query.status is None else query.status is AccountStatus.PAUSED
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            store.page, principal.operator_id, before, query.limit + 1, paused=paused
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

    async def _balances(self, records: Sequence[AccountRecord]) -> Sequence[int]:
        """Return what the accounts hold on chain, in micro-USDC."""
        if not records:
            return []
        try:
            found = await self._context.chain.token_accounts([row.usdc_token_account for row in records])
        except ChainUnavailableError:
            raise chain_unavailable() from None
        return [0 if account is None else account.amount_micro for account in found]

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
        store.insert_account(
            connection,
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
            policy_version=1,
            policy_updated_us=now_us,
            spent_total=0,
            last_spend_us=0,
            balance=0,
            in_flight=0,
            in_flight_total=0,
            session_reserved=0,
            created_us=now_us,
        )
        if watched is not None:
            confirmed.watch(connection, watched, account_id)
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


def _account(record: AccountRecord, balance_micro: int) -> Account:
    return Account(
        account_id=record.account_id,
        name=record.name,
        handle=record.handle,
        chain_address=record.chain_address,
        usdc_token_account=record.usdc_token_account,
        balance_usdc=from_micro(balance_micro),
        custody_mode=_CUSTODIAL,
        status="paused" if record.paused else "active",
        policy=stored_policy(record.policy),
        created_at=from_us(record.created_us),
    )
