"""Faults of our own making in payments behind HTTP 402 (see `planted.py`)."""

import attrs
from planted import Patch, planted

from agentpay.contract.ext.payments import PaymentHeader
from agentpay_server.chain.custody import spending_key
from agentpay_server.engine.movement import Ended, Outcomes
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import accounts, transactions
from agentpay_server.ledger.idempotency import RequestedKey
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.failpoints import Operation
from agentpay_server.plugins.cluster.evidence import Evidence
from agentpay_server.plugins.pay402 import service
from agentpay_server.plugins.pay402.building import build_payment
from agentpay_server.plugins.pay402.challenges import offers as rules

_IMPATIENT_US = 20 * SECOND_US


@planted
def a_payment_is_signed_again_for_every_answer(patch: Patch) -> None:
    replayed = service.Payments._replayed

    async def signed_again(self, transfer, offer):
        payment = await replayed(self, transfer, offer)
        if payment.header is None or offer.channel is not None:
            return payment
        chain = self._context.chain
        source = await self._database.read(accounts.ACCOUNTS.existing, transfer.account_id)
        prepared = build_payment(
            self._context.signer,
            await chain.latest_blockhash(),
            offer.terms,
            payer_key=spending_key(source.key_index),
            usdc_mint=chain.usdc_mint,
            own_addresses=(),
            nonce=0,
            nonce_memo=transfer.transfer_id,
        )
        name, value = rules.wrap(offer, prepared.raw, payment_id=transfer.transfer_id)
        return attrs.evolve(payment, header=PaymentHeader(name=name, value=value))

    patch(service.Payments, "_replayed", signed_again)


@planted
def a_payment_expires_before_that_is_proved(patch: Patch) -> None:
    poll_one = Settlement.poll_one

    async def impatient(self, tx):
        if self._context.clock.now_us() < tx.created_us + _IMPATIENT_US:
            return await poll_one(self, tx)
        subject = await self._database.read(self._movements[tx.kind].load, tx.subject_id)
        posted = await self._database.run(self.outcomes.expire, tx, subject)
        return posted.following.subject if isinstance(posted.following, Ended) else None

    patch(Settlement, "poll_one", impatient)


@planted
def a_payment_that_was_handed_out_reserves_nothing(patch: Patch) -> None:
    insert = transactions.insert_transaction

    def insert_without(connection, tx):
        insert(connection, attrs.evolve(tx, hold=0) if tx.kind == Operation.PAYMENT else tx)

    patch(transactions, "insert_transaction", insert_without)


@planted
def a_payment_that_has_expired_stays_reserved(patch: Patch) -> None:
    def kept(self, unit, expired, subject, reason):
        return engine_dropped(self, unit, attrs.evolve(expired, spent_us=None), subject, reason)

    engine_dropped = Outcomes._dropped
    patch(Outcomes, "_dropped", kept)


@planted
def a_payment_is_found_by_what_it_takes_from(patch: Patch) -> None:
    """Neither message nor signature count: the newest transaction of the account is taken for it."""

    async def newest(self, cosigned, lines, *, must_read):
        return lines[-1].signature if lines else None

    patch(Evidence, "name_of", newest)


@planted
def an_operator_s_key_is_held_for_each_account_alone(patch: Patch) -> None:
    asked = RequestedKey.of
    patch(RequestedKey, "of", lambda *given: attrs.evolve(asked(*given), by_operator=False))


@planted
def nobody_looks_for_payments(patch: Patch) -> None:
    async def poll_one(self, tx):
        return None

    patch(Settlement, "poll_one", poll_one)
