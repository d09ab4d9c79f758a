"""Faults of our own making: what the simulator must find, each by a patch of running code.

Each is a bug that a developer could write. Where a second guard would mask one, both are removed. They patch
the engine (`Settlement`), the chain over RPC, statements and rules by names that are meant to stay.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import ANY

import attrs
from sqlalchemy import bindparam

from agentpay.contract.errors import ErrorCode
from agentpay_server import features
from agentpay_server.accounts import deposits as deposit_service
from agentpay_server.accounts.policies import canonical_policy
from agentpay_server.chain.protocol import (
    ChainFailure,
    ChainUnreachableError,
    FailureReason,
    reported_landing_heights,
)
from agentpay_server.database.runner import NewerSchemaError
from agentpay_server.database.tables import PurchaseKind, sessions
from agentpay_server.engine import movement
from agentpay_server.engine import policy as rules
from agentpay_server.engine.authorization import Gate
from agentpay_server.engine.broadcast import Broadcaster, Expired, Landed, by_signature
from agentpay_server.engine.policy import stored_policy
from agentpay_server.engine.settlement import RecoverySchedule, Settlement
from agentpay_server.http import app as http_app
from agentpay_server.ledger import accounts, deliveries, idempotency, spending
from agentpay_server.ledger import apply as ledger
from agentpay_server.ledger import audit as audit_service
from agentpay_server.ledger import outbox as outbox_service
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.apply import Posting
from agentpay_server.ledger.deliveries import DeliveryStatus, NextStep
from agentpay_server.ledger.idempotency import Verdict
from agentpay_server.ledger.spending import RESERVED
from agentpay_server.platform import scheduler as schedule
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation
from agentpay_server.plugins import migrations
from agentpay_server.plugins.cluster import chain_head
from agentpay_server.plugins.cluster.chain import RpcChain
from agentpay_server.plugins.cluster.evidence import Evidence
from agentpay_server.sessions import closing, service
from agentpay_server.sessions import rules as session_rules
from agentpay_server.sessions import store as session_store
from agentpay_server.transfers import approvals
from agentpay_server.transfers import service as transfer_service
from agentpay_server.transfers import store as transfer_store
from agentpay_server.webhooks import sender

Patch = Callable[[Any, str, Any], None]
"""Sets an attribute until the bug is taken out again."""

BUGS: dict[str, Callable[[Patch], None]] = {}


def planted(bug: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[bug.__name__] = bug
    return bug


def patch_movement(patch: Patch, kind: str, **changed: Callable[..., Any]) -> None:
    """Wrap functions of one kind of transaction; each gets the real one first."""
    patched = []
    for feature in features.features():
        movements = []
        for each in feature.movements:
            wrapped = {name: partial(function, getattr(each, name)) for name, function in changed.items()}
            movements.append(attrs.evolve(each, **wrapped) if each.kind is kind else each)
        patched.append(attrs.evolve(feature, movements=tuple(movements)))
    patch(features, "features", lambda: tuple(patched))


def _believe_a_missing_status(patch: Patch) -> None:
    """Remove what else shows that a transaction has landed: the transaction, its history, the balance."""

    async def unchecked(*_):
        pass

    patch(Evidence, "check_absent", unchecked)
    patch(Settlement, "_check_balance", unchecked)


# --- The engine


@planted
def a_send_that_is_not_answered_is_a_failure(patch: Patch) -> None:
    send, look = Broadcaster._send, Broadcaster.poll
    lost: set[str] = set()

    async def noted(self, signed, operation):
        try:
            await send(self, signed, operation)
        except ChainUnreachableError:
            lost.add(signed.signature)
            raise

    async def given_up(self, signed, find=None):
        if signed.signature in lost:
            return ChainFailure(reason=FailureReason.OTHER, detail="no answer"), False
        return await look(self, signed, find)

    patch(Broadcaster, "_send", noted)
    patch(Broadcaster, "poll", given_up)


@planted
def what_was_sent_has_settled(patch: Patch) -> None:
    look = Broadcaster.poll
    sent_once: set[str] = set()

    async def hopeful(self, signed, find=None):
        end, must_send = await look(self, signed, find)
        if find is not None:
            return end, must_send
        if end is None and not must_send:
            return Landed(is_irreversible=True), False
        if end is None and signed.signature in sent_once:
            return Landed(is_irreversible=True), False
        sent_once.add(signed.signature)
        return end, must_send

    patch(Broadcaster, "poll", hopeful)


@planted
def the_status_is_not_read_again_after_the_height(patch: Patch) -> None:
    async def look(self, signed, find=None):
        status = await (find or partial(by_signature, self._chain, signed))(proof_height=None)
        if status is None:
            if await self._chain.block_height() <= signed.last_valid_block_height:
                return None, True
            return Expired.EXPIRED, False
        if not status.is_final:
            return None, False
        return status.failure or Landed(status.is_irreversible, status.chain_signature), False

    patch(Broadcaster, "poll", look)
    _believe_a_missing_status(patch)


@planted
def every_height_is_believed(patch: Patch) -> None:
    """As if no node returned a wrong number: no pace, slot, block or age of a signature counts."""

    async def has_passed(self, signed):
        return await self._chain.block_height() > signed.last_valid_block_height

    patch(chain_head.SlotRate, "accepted", lambda self, value, now: value)
    patch(chain_head.SlotRate, "is_plausible", lambda self, value, now: True)

    async def as_reported(self, blockhash, last_valid_height):
        return reported_landing_heights(last_valid_height)

    patch(chain_head, "has_plausible_life", lambda *args, **kwargs: True)
    patch(chain_head.ChainHead, "_do_slots_fit", lambda *_: True)
    patch(RpcChain, "landing_heights", as_reported)
    patch(Broadcaster, "_may_have_expired", has_passed)
    _believe_a_missing_status(patch)


@planted
def a_node_that_lags_proves_an_expiry(patch: Patch) -> None:
    patch(chain_head.ChainHead, "check_stands_at_tip", lambda self, slot: None)
    _believe_a_missing_status(patch)


@planted
def expiry_goes_by_time(patch: Patch) -> None:
    """After ten seconds without a status a transaction is given up."""
    look = Broadcaster.poll
    seen: dict[str, float] = {}

    async def impatient(self, signed, find=None):
        end, must_send = await look(self, signed, find)
        now = asyncio.get_running_loop().time()
        if end is None and must_send and now - seen.setdefault(signed.signature, now) > 10:
            return Expired.EXPIRED, False
        return end, must_send

    patch(Broadcaster, "poll", impatient)
    _believe_a_missing_status(patch)


@planted
def an_expired_transaction_is_signed_again_by_every_driver(patch: Patch) -> None:
    again = movement.Outcomes.replace

    def careless(self, connection, tx, subject, blockhash, prepared):
        stored = chain_transactions.pending(connection, tx.kind, tx.subject_id)
        return again(self, connection, stored or tx, subject, blockhash, prepared)

    found = movement.Outcomes.current

    def unchanged(self, connection, tx):
        current = found(self, connection, tx)
        return current if isinstance(current, movement.Ended) else tx

    patch(movement.Outcomes, "replace", careless)
    patch(movement.Outcomes, "current", unchanged)


@planted
def bytes_leave_before_their_commit(patch: Patch) -> None:
    hold = Gate.hold

    def early(self, tx, amount_micro, key):
        held = hold(self, tx, amount_micro, key)

        async def send():
            try:
                await self.context.chain.send(held.raw)
            except ChainUnreachableError:
                return

        self.context.tasks.start(send())
        return held

    patch(Gate, "hold", early)


@planted
def what_a_dead_server_drove_is_left(patch: Patch) -> None:
    async def nobody(self):
        return []

    patch(RecoverySchedule, "_recover", nobody)


@planted
def a_worker_ends_at_its_first_error(patch: Patch) -> None:
    async def serve(self, worker, changed):
        now = asyncio.get_running_loop().time
        self._next_checks[worker] = now()
        while True:
            changed.clear()
            seconds = await self._turn(worker)
            self._next_checks[worker] = now() + seconds
            await schedule._wait(changed, seconds)
            self._next_checks[worker] = now()

    async def run(self):
        await asyncio.gather(
            *(serve(self, worker, self._wakeup.listener()) for worker in self._scheduled),
            return_exceptions=True,
        )

    patch(schedule.Scheduler, "run", run)


# --- Keys


@planted
def an_idempotency_key_is_not_held(patch: Patch) -> None:
    _claims_nothing(patch, PurchaseKind.TRANSFER)


@planted
def other_parameters_under_a_key_go_unnoticed(patch: Patch) -> None:
    key_holder_of = transfer_service.key_holder_of
    patch(transfer_service, "key_holder_of", lambda record: attrs.evolve(key_holder_of(record), terms=ANY))


@planted
def a_session_is_opened_for_every_request(patch: Patch) -> None:
    _claims_nothing(patch, PurchaseKind.SESSION)


def _claims_nothing(patch: Patch, of: PurchaseKind) -> None:
    put = idempotency.put

    def put_others(connection, requested, seen, kind, subject_id):
        if kind is not of:
            put(connection, requested, seen, kind, subject_id)

    patch(idempotency, "put", put_others)


@planted
def a_charge_is_made_at_every_request(patch: Patch) -> None:
    patch(service, "charge_verdict", lambda *_: Verdict.NEW)
    insert = session_store.CHARGES.insert
    seen: list[str] = []

    def under_another_key(connection, charge):
        seen.append(charge.idempotency_key)
        insert(connection, attrs.evolve(charge, idempotency_key=f"{charge.idempotency_key} {len(seen)}"))

    patch(session_store.CHARGES, "insert", under_another_key)


@planted
def an_approved_transfer_can_be_approved_again(patch: Patch) -> None:
    patch(
        approvals,
        "_is_approvable",
        lambda transfer, now_us: transfer.status in ("pending_approval", "settled"),
    )
    patch(approvals, "_decision", transfer_store.TRANSFERS.to_change)
    patch(transfer_store, "waiting", transfer_store.TRANSFERS.existing)


# --- Limits


@planted
def a_daily_limit_forgets_sessions(patch: Patch) -> None:
    real = spending.against_daily_limit

    def forgetful(connection, source, now_us):
        values = {"account_id": source.account_id}
        return real(connection, source, now_us) - int(connection.execute(RESERVED, values).scalar_one())

    patch(spending, "against_daily_limit", forgetful)


@planted
def a_daily_limit_forgets_what_is_in_flight(patch: Patch) -> None:
    real = spending.against_daily_limit

    def forgetful(connection, source, now_us):
        return max(real(connection, source, now_us) - source.in_flight, 0)

    patch(spending, "against_daily_limit", forgetful)


@planted
def a_daily_limit_is_off_by_one(patch: Patch) -> None:
    real = spending.against_daily_limit
    patch(spending, "against_daily_limit", lambda *args: max(real(*args) - 1, 0))


@planted
def what_is_approved_has_no_limits(patch: Patch) -> None:
    real, real_spend, approved = Gate.refusal, approvals.spend_of, []

    def noted(terms, preflight):
        approved[:] = [real_spend(terms, preflight)]
        return approved[0]

    def lenient(self, spend, key):
        if any(spend is each for each in approved):
            policy = attrs.evolve(
                stored_policy(self.source.policy), max_daily_spend=None, max_single_transfer=None
            )
            self = attrs.evolve(self, source=attrs.evolve(self.source, policy=canonical_policy(policy)))
        return real(self, spend, key)

    patch(approvals, "spend_of", noted)
    patch(Gate, "refusal", lenient)


@planted
def a_pause_is_ignored(patch: Patch) -> None:
    patch(rules, "paused_refusal", lambda policy, amount_micro: None)
    parties = accounts.parties_of

    def never_paused(*args):
        return tuple(None if each is None else attrs.evolve(each, paused=False) for each in parties(*args))

    patch(accounts, "parties_of", never_paused)


@planted
def a_cap_is_not_checked(patch: Patch) -> None:
    refusal = session_rules.charge_refusal
    patch(service, "FITS", bindparam("amount") > 0)
    patch(
        service,
        "charge_refusal",
        lambda policy, *, cap_micro, **rest: refusal(policy, cap_micro=10**15, **rest),
    )


def _post_otherwise(patch: Patch, changed: Callable[[Posting], Posting]) -> None:
    post = ledger.post_all

    def otherwise(connection, postings, now_us):
        return post(connection, [changed(posting) for posting in postings], now_us)

    patch(ledger, "post_all", otherwise)


@planted
def a_reservation_is_released_twice(patch: Patch) -> None:
    _post_otherwise(patch, lambda posting: attrs.evolve(posting, release=2 * posting.release))


@planted
def a_reservation_of_what_failed_is_kept(patch: Patch) -> None:
    _post_otherwise(
        patch,
        lambda posting: posting if posting.debit or not posting.entries else attrs.evolve(posting, release=0),
    )


@planted
def a_failed_spend_still_counts(patch: Patch) -> None:
    end = chain_transactions._end

    def kept(connection, tx, state, now_us, **values):
        return end(connection, tx, state, now_us, **{**values, "released_us": None})

    patch(chain_transactions, "_end", kept)
    patch(chain_transactions, "set_released", lambda *_: None)


# --- Sessions and deposits


@planted
def a_settlement_overlooks_dust(patch: Patch) -> None:
    real = session_rules.settlement
    patch(
        closing,
        "settlement",
        lambda *, cap_micro, running_total_micro, escrow_micro: real(
            cap_micro=cap_micro, running_total_micro=running_total_micro, escrow_micro=cap_micro
        ),
    )


@planted
def a_closing_session_takes_charges(patch: Patch) -> None:
    refusal = session_rules.charge_refusal
    patch(service, "IS_OPEN", sessions.c.status != "settled")

    def lenient(policy, *, status, **rest):
        return refusal(policy, status="open" if status == "closing" else status, **rest)

    patch(service, "charge_refusal", lenient)


@planted
def the_rest_of_a_session_stays_with_the_payee(patch: Patch) -> None:
    real = session_rules.settlement

    def generous(**values):
        legs = real(**values)
        return attrs.evolve(legs, settled_micro=legs.settled_micro + legs.returned_micro, returned_micro=0)

    patch(closing, "settlement", generous)


@planted
def own_payments_are_deposits_too(patch: Patch) -> None:
    insert = accounts.insert_entries

    def unsigned(connection, rows):
        # Without a signature, by which a constraint would tell that there are two.
        for row in rows:
            insert(connection, [row | {"tx_signature": None} if row["type"] == "deposit" else row])

    patch(accounts, "insert_entries", unsigned)
    patch(chain_transactions, "credits_account", lambda *_: False)
    patch(accounts, "is_deposit_posted", lambda *_: False)


@planted
def a_batch_of_deposits_loses_its_last_one(patch: Patch) -> None:
    post = deposit_service.Deposits._post

    def lossy(self, connection, account_id, after, batch, *given, **named):
        lost = attrs.evolve(batch, deposits=batch.deposits[:-1])
        return post(self, connection, account_id, after, lost, *given, **named)

    patch(deposit_service.Deposits, "_post", lossy)


# --- Events, responses, records


@planted
def any_answer_of_a_receiver_will_do(patch: Patch) -> None:
    real = sender.after_attempt

    def content(attempt, status_code, ended_us):
        if status_code is not None:
            return NextStep(status=DeliveryStatus.DELIVERED)
        return real(attempt, status_code, ended_us)

    patch(sender, "after_attempt", content)


@planted
def a_lost_post_is_a_delivery(patch: Patch) -> None:
    patch(sender, "after_attempt", lambda *_: NextStep(status=DeliveryStatus.DELIVERED))


@planted
def deliveries_are_not_leased(patch: Patch) -> None:
    patch(deliveries, "lease", lambda *_: None)


@planted
def a_body_tells_its_attempt(patch: Patch) -> None:
    attempt = sender.WebhookSender.attempt

    async def telling(self, delivery):
        body = delivery.body[:-1] + f',"attempt":{delivery.attempts}}}'
        await attempt(self, attrs.evolve(delivery, body=body))

    patch(sender.WebhookSender, "attempt", telling)


@planted
def an_event_of_a_retried_unit_is_lost(patch: Patch) -> None:
    """A unit that remembers its writes outside the transaction omits them when it is run again."""
    add = outbox_service.Outbox.add
    written: set[Any] = set()

    def once(self, event, *only):
        name = (event.type, str(event.data))
        if name not in written:
            written.add(name)
            add(self, event, *only)

    patch(outbox_service.Outbox, "add", once)


@planted
def a_transfer_is_initiated_twice(patch: Patch) -> None:
    def forgetful(landed, ending):
        return landed(attrs.evolve(ending, tx=attrs.evolve(ending.tx, announced_us=None)))

    patch_movement(patch, Operation.TRANSFER, landed=forgetful)


@planted
def the_audit_trail_forgets_transfers(patch: Patch) -> None:
    record = audit_service.record

    def forgetful(connection, principal, *, action, **rest):
        if action != "transfers.create":
            record(connection, principal, action=action, **rest)

    patch(audit_service, "record", forgetful)


@planted
def an_unknown_outcome_is_told_as_a_failure(patch: Patch) -> None:
    response = transfer_service.final_response

    def certain(record, chain, **rest):
        if record.status == "submitted":
            raise Problem(
                ErrorCode.TRANSFER_FAILED, "It failed.", transfer_id=record.transfer_id, status="failed"
            )
        return response(record, chain, **rest)

    patch(transfer_service, "final_response", certain)


@planted
def a_lost_database_is_an_internal_error(patch: Patch) -> None:
    class OtherError(Exception):
        pass

    patch(http_app, "DatabaseUnavailableError", OtherError)


@planted
def a_key_is_logged(patch: Patch) -> None:
    real = http_app.authenticated

    async def talkative(headers, keys, request_id):
        try:
            return await real(headers, keys, request_id)
        except Exception:
            http_app.logger.warning("refused %s", headers)
            raise

    patch(http_app, "authenticated", talkative)


@planted
def the_history_forgets_the_recipient(patch: Patch) -> None:
    insert = accounts.insert_entries
    patch(accounts, "insert_entries", lambda connection, rows: insert(connection, rows[:1]))


# --- Upgrades


@planted
def tables_of_a_newer_release_are_taken_for_ones_own(patch: Patch) -> None:
    upgrade = migrations._upgrade

    def careless(connection, release, **options):
        try:
            upgrade(connection, release, **options)
        except NewerSchemaError:
            return

    patch(migrations, "_upgrade", careless)
