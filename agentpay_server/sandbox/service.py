"""The sandbox: an extension with test features that need a test chain (interface SB1 to SB13)."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from agentpay.contract import identifiers
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.fields import format_timestamp
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.accounts import feature as accounts
from agentpay_server.accounts.deposits import arrived, received_by
from agentpay_server.chain import transactions
from agentpay_server.chain.custody import outside_address
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.chain.protocol import ChainUnreachableError, SignedTransaction
from agentpay_server.contract.sandbox import (
    ADVANCE_CLOCK,
    CLEAR_FAULTS,
    CREATE_OPERATOR,
    CREATE_TOKEN_ACCOUNT,
    DELETE_FAULT,
    FUND,
    SET_FAULT,
    AdvanceClock,
    ClockReading,
    CreateOperator,
    CreateTokenAccount,
    Fault,
    Fund,
    Funding,
    Operator,
    OutsideTokenAccount,
    SetFault,
    Snapshot,
)
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine.broadcast import Landed
from agentpay_server.engine.movement import watched_transaction
from agentpay_server.feature import Core, Feature, Route
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.accounts import own_account
from agentpay_server.ledger.apply import Unit, apply
from agentpay_server.operators import feature as operators
from agentpay_server.platform.clock import LATEST_US, SECOND_US, from_us
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem, chain_unavailable, invalid
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.sandbox import snapshots
from agentpay_server.sandbox.faults import Faults
from agentpay_server.sandbox.snapshots import Snapshots


class Sandbox:
    """The operations of the sandbox, for any operator.

    `faults` is None on a public cluster, where every operation is forbidden.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._context = core.context
        self._faults: Faults | None = core.lasting.get(Faults)
        self._snapshots: Snapshots = core.lasting[Snapshots]

    async def fund(self, principal: Principal, account_id: str, request: Fund) -> Funding:
        """Mint test USDC to an account of the operator; it appears in the history as a deposit.

        Raises:
            Problem: `not_found`; `chain_unavailable`: nothing was minted; `service_unavailable`: the outcome
                is unknown; `forbidden` on a chain where money is real.
        """
        self._require_test_chain()
        context = self._context
        account = await context.database.read(own_account, principal, account_id)
        chain, amount_micro = context.chain, to_micro(request.amount)
        failpoint(Operation.FUND, Step.BEGUN)
        try:
            signed = transactions.mint(
                context.signer,
                await chain.latest_blockhash(),
                usdc_mint=chain.usdc_mint,
                token_account=account.usdc_token_account,
                amount_micro=amount_micro,
                memo=context.identifiers.new(identifiers.ENTRY),
            )
        except ChainUnreachableError:
            raise chain_unavailable() from None
        funding = context.tasks.start(self._funded(principal, account, amount_micro, signed))
        done, _ = await asyncio.wait({funding}, timeout=context.settings.settlement_wait_seconds)
        if done:
            return funding.result()
        raise _maybe_minted("Funding is still pending")

    async def _funded(
        self, principal: Principal, account: AccountRecord, amount_micro: int, signed: SignedTransaction
    ) -> Funding:
        """Drive a minting to its outcome, however long that takes, and post it as a deposit."""
        context, deposits = self._context, self._core.of(accounts.FEATURE).deposits

        def posted(connection: Connection) -> None:
            # Post it here: a cluster lists it as a deposit only some time after it has landed.
            account_store.ACCOUNTS.existing(connection, account.account_id, lock=True)
            unit = Unit(connection, context, context.clock.now_us())
            minted = arrived(
                account.account_id,
                signature=signed.signature,
                amount_micro=amount_micro,
                counterparty=None,
            )
            is_known = account_store.is_deposit_posted(connection, account.account_id, signed.signature)
            record = audit.Record(
                actor=principal,
                action=FUND.name,
                subject=account.account_id,
                after={"amount_usdc": audit.usdc(amount_micro), "tx_signature": signed.signature},
                has_happened=True,
            )
            received = received_by(account, *(() if is_known else (minted,)))
            apply(unit, received.also(audit=(record,)))
            if not outcome.is_irreversible:
                watched = watched_transaction(
                    signed, kind=Operation.FUND, account_id=account.account_id, now_us=unit.now_us
                )
                chain_transactions.insert_transaction(connection, watched)

        with deposits.expecting(signed.signature):
            end = await self._core.settlement.broadcaster.outcome(
                signed, operation=Operation.FUND, is_new=True
            )
            if not isinstance(end, Landed):
                raise chain_unavailable()
            outcome = end
            try:
                await deposits.poll(account.usdc_token_account, also=posted)
                failpoint(Operation.FUND, Step.POSTED)
                (held,) = await context.chain.token_accounts([account.usdc_token_account])
            except ChainUnreachableError:
                raise _maybe_minted("The money was minted, and then the chain did not respond") from None
        balance_micro = 0 if held is None else held.amount_micro
        return Funding(tx_signature=signed.signature, balance_usdc=from_micro(balance_micro))

    async def create_operator(self, principal: Principal, request: CreateOperator) -> Operator:
        """Create another operator; only this response shows its key."""
        self._require_test_chain()
        principal.require_operator(CREATE_OPERATOR.operation)
        keys = self._core.of(operators.FEATURE).keys
        return await keys.create_operator(request.name, requested_by=principal)

    async def create_token_account(
        self, principal: Principal, request: CreateTokenAccount
    ) -> OutsideTokenAccount:
        """Create an outside recipient: a USDC token account of the owner, by default one without a key.

        Raises:
            Problem: `chain_unavailable`, `forbidden` on a chain where money is real.
        """
        self._require_test_chain()
        context = self._context
        owner = request.owner or outside_address(context.randomness.randbytes(32))
        failpoint(Operation.TOKEN_ACCOUNT, Step.BEGUN)
        try:
            signed = transactions.create_token_account(
                context.signer,
                await context.chain.latest_blockhash(),
                usdc_mint=context.chain.usdc_mint,
                owner=owner,
            )
            await self._land(signed, Operation.TOKEN_ACCOUNT)
        except ChainUnreachableError:
            raise chain_unavailable() from None
        address = associated_token_address(owner, context.chain.usdc_mint)
        await self._record(
            principal, CREATE_TOKEN_ACCOUNT, address, after={"owner": owner}, has_happened=True
        )
        failpoint(Operation.TOKEN_ACCOUNT, Step.POSTED)
        return OutsideTokenAccount(owner=owner, usdc_token_account=address)

    async def clock(self, _: Principal) -> ClockReading:
        """Return the server's time."""
        self._require_test_chain()
        return ClockReading(now=from_us(self._context.clock.now_us()))

    async def advance_clock(self, principal: Principal, request: AdvanceClock) -> ClockReading:
        """Advance a manual clock, and return when all work that fell due has run.

        Raises:
            Problem: `clock_not_manual`, `clock_moving`, or `invalid_request` beyond the last valid time.
        """
        self._require_test_chain()
        duration_us, before_us = int(request.seconds * SECOND_US), self._context.clock.now_us()
        if before_us + duration_us > LATEST_US:
            raise invalid(FieldError(field="seconds", message="must not lead beyond the year 9999"))
        if self._context.clock.is_manual:
            await self._core.of(operators.FEATURE).sign_ins.postpone(principal, duration_us)
        await self._core.schedule.advance(duration_us)
        if duration_us:
            now = format_timestamp(from_us(self._context.clock.now_us()))
            await self._record(
                principal,
                ADVANCE_CLOCK,
                "clock",
                {"now": format_timestamp(from_us(before_us))},
                {"now": now, "seconds": request.seconds},
                has_happened=True,
            )
        return await self.clock(principal)

    async def set_fault(self, principal: Principal, name: str, request: SetFault) -> Fault:
        """Arm a fault, for every tenant of the server.

        Raises:
            Problem: `invalid_request` if the fault does not exist; `forbidden` on a chain where money is
                real.
        """
        faults = self._require_test_chain()
        faults.check(name, request)
        await self._record(principal, SET_FAULT, name, _armed(faults, name), _audited(request))
        return faults.set(name, request)

    async def delete_fault(self, principal: Principal, name: str) -> None:
        """Disarm a fault, if it is armed.

        Raises:
            Problem: `invalid_request` if the fault does not exist.
        """
        faults = self._require_test_chain()
        faults.check_name(name)
        before = _armed(faults, name)
        if before is not None:
            await self._record(principal, DELETE_FAULT, name, before)
            faults.delete(name)

    async def clear_faults(self, principal: Principal) -> None:
        """Disarm all faults."""
        faults = self._require_test_chain()
        armed = faults.armed()
        if armed:
            names = sorted(fault.name for _, fault in armed)
            before = {name: _armed(faults, name) for name in names}
            await self._record(principal, CLEAR_FAULTS, ", ".join(names), before)
            faults.clear()

    async def list_faults(self, principal: Principal, query: PageQuery) -> PageBody[Fault]:
        """Return a page of the armed faults, the last armed first."""
        faults = self._require_test_chain()
        listing = List("faults", principal.operator_id)
        before = listing.before(query.cursor)
        rows = [row for row in faults.armed() if row[0] < before]
        return listing.page(
            rows[: query.limit + 1], query.limit, seq=lambda row: row[0], item=lambda row: row[1]
        )

    async def snapshot(self, principal: Principal) -> Snapshot:
        """Take a snapshot of the server's state, of all tenants.

        Raises:
            Problem: `not_in_memory`; `not_at_rest` if money stays in flight; `forbidden` on a chain where
                money is real.
        """
        self._require_test_chain()
        return _snapshot(await self._snapshots.take(principal))

    async def list_snapshots(self, principal: Principal, query: PageQuery) -> PageBody[Snapshot]:
        """Return a page of the operator's snapshots, newest first; empty if the server cannot take any.

        Raises:
            Problem: `invalid_request` for a cursor of another list; `forbidden` on a chain where money is
                real.
        """
        self._require_test_chain()
        listing = List("snapshots", principal.operator_id)
        before = listing.before(query.cursor)
        rows = [row for row in self._snapshots.of_operator(principal.operator_id) if row.seq < before]
        return listing.page(rows[: query.limit + 1], query.limit, seq=lambda row: row.seq, item=_snapshot)

    async def restore(self, principal: Principal, snapshot_id: str) -> Snapshot:
        """Restore a snapshot of the operator, for all tenants; work in progress is cancelled.

        Raises:
            Problem: `not_found`, `not_in_memory`, `not_at_rest`; `forbidden` on a chain where money is real.
        """
        self._require_test_chain()
        return _snapshot(await self._snapshots.restore(principal, snapshot_id))

    async def reset(self, principal: Principal) -> None:
        """Restore the server's state at its start, for all tenants.

        Raises:
            Problem: `not_in_memory`, `not_at_rest`; `forbidden` on a chain where money is real.
        """
        self._require_test_chain()
        await self._snapshots.reset(principal)

    async def _record(
        self,
        principal: Principal,
        endpoint: Endpoint[Any],
        subject: str,
        before: Mapping[str, object] | None = None,
        after: Mapping[str, object] | None = None,
        *,
        has_happened: bool = False,
    ) -> None:
        await self._context.database.run(
            audit.record,
            principal,
            action=endpoint.name,
            subject=subject,
            now_us=self._context.clock.now_us(),
            before=before,
            after=after,
            has_happened=has_happened,
        )

    async def _land(self, signed: SignedTransaction, operation: Operation) -> None:
        patience_seconds = self._context.settings.settlement_wait_seconds
        outcome = await self._core.settlement.broadcaster.outcome(
            signed, operation=operation, is_new=True, patience_seconds=patience_seconds
        )
        if not isinstance(outcome, Landed):
            raise ChainUnreachableError(f"a sandbox transaction did not land: {outcome}")

    def _require_test_chain(self) -> Faults:
        if self._faults is None:
            raise Problem(
                ErrorCode.FORBIDDEN,
                "The sandbox is not available on a public cluster. Start a server without "
                "--rpc-url, or on your own validator.",
                says_what_to_do=True,
            )
        return self._faults


def _maybe_minted(what: str) -> Problem:
    # Not `chain_unavailable`: without a transfer it means that nothing was done, and clients retry.
    return Problem(
        ErrorCode.SERVICE_UNAVAILABLE,
        f"{what}. The money may still be posted: read the balance before you fund again.",
        says_what_to_do=True,
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def _armed(faults: Faults, name: str) -> dict[str, object] | None:
    armed = next((fault for _, fault in faults.armed() if fault.name == name), None)
    return None if armed is None else _audited(armed)


def _audited(fault: Fault | SetFault) -> dict[str, object]:
    return {"times": fault.times, **audit.given(effect=fault.effect, delay_ms=fault.delay_ms)}


def _snapshot(taken: snapshots.StoredSnapshot) -> Snapshot:
    return Snapshot(snapshot_id=taken.snapshot_id, created_at=from_us(taken.taken_us))


FEATURE: Final[Feature[Sandbox]] = Feature(
    name="sandbox",
    build=Sandbox,
    routes={
        "sandbox.accounts.fund": Route(200, lambda s: s.fund, is_owned=True),
        "sandbox.operators.create": Route(201, lambda s: s.create_operator),
        "sandbox.token_accounts.create": Route(201, lambda s: s.create_token_account, is_owned=True),
        "sandbox.clock.get": Route(200, lambda s: s.clock),
        "sandbox.clock.advance": Route(200, lambda s: s.advance_clock, is_owned=True),
        "sandbox.faults.set": Route(200, lambda s: s.set_fault, is_owned=True),
        "sandbox.faults.delete": Route(204, lambda s: s.delete_fault, is_owned=True),
        "sandbox.faults.list": Route(200, lambda s: s.list_faults),
        "sandbox.faults.clear": Route(204, lambda s: s.clear_faults, is_owned=True),
        "sandbox.snapshots.create": Route(201, lambda s: s.snapshot),
        "sandbox.snapshots.list": Route(200, lambda s: s.list_snapshots),
        "sandbox.snapshots.restore": Route(200, lambda s: s.restore),
        "sandbox.reset": Route(204, lambda s: s.reset),
    },
)
