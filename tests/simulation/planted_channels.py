"""Faults of our own making in sessions over HTTP 402 and in payments up to a maximum (see `planted.py`)."""

import attrs
from planted import Patch, patch_movement, planted
from solders.pubkey import Pubkey

from agentpay_server.chain.channels import codecs, evidence
from agentpay_server.ledger import transactions
from agentpay_server.platform.failpoints import Operation
from agentpay_server.plugins.channels import closing, on_chain
from agentpay_server.plugins.channels.session_payments import SessionPayments
from agentpay_server.plugins.cluster import history
from agentpay_server.plugins.pay402.selection import SelectOffer
from agentpay_server.sessions import payouts


def _signs(patch: Patch, cumulative) -> None:
    """Let vouchers be signed for other amounts than the stored ones."""
    step = SessionPayments._voucher_step

    def changed(self, channel, voucher, selected, *, is_replay=False):
        voucher = attrs.evolve(voucher, cumulative=cumulative(voucher, is_replay))
        return step(self, channel, voucher, selected, is_replay=is_replay)

    patch(SessionPayments, "_voucher_step", changed)


@planted
def a_repeated_key_gets_a_higher_voucher(patch: Patch) -> None:
    _signs(patch, lambda voucher, is_replay: voucher.cumulative + is_replay)


@planted
def a_session_over_402_has_keys_of_its_own(patch: Patch) -> None:
    init = SelectOffer.__init__

    def apart(self, context, principal, request, key, offers, *, now_us):
        if request.session_cap is not None:
            key = attrs.evolve(key, idempotency_key=f"session {key.idempotency_key}")
        init(self, context, principal, request, key, offers, now_us=now_us)

    patch(SelectOffer, "__init__", apart)


@planted
def a_voucher_forgets_the_ones_before_it(patch: Patch) -> None:
    _signs(patch, lambda voucher, _: voucher.amount)


@planted
def an_opening_is_handed_out_and_not_stored(patch: Patch) -> None:
    insert = transactions.insert_transaction

    def insert_others(connection, tx):
        if tx.kind != Operation.CHANNEL_OPEN:
            insert(connection, tx)

    patch(transactions, "insert_transaction", insert_others)


@planted
def an_opening_that_has_expired_stays_reserved(patch: Patch) -> None:
    def kept(expired, ending):
        return attrs.evolve(expired(ending), postings=())

    patch_movement(patch, Operation.CHANNEL_OPEN, expired=kept)


@planted
def a_seller_that_settles_is_posted_as_one_that_does_not(patch: Patch) -> None:
    payout_of = on_chain.payout_of

    def unsettled(*payout, cap_micro, **others):
        return attrs.evolve(payout_of(*payout, cap_micro=cap_micro, **others), settled_micro=0)

    patch(on_chain, "payout_of", unsettled)


@planted
def what_a_seller_has_only_verified_counts_as_settled(patch: Patch) -> None:
    history_of = evidence.history_of

    def verified(transactions, channel, *, signer, **where):
        read = list(transactions)
        vouchers = [
            codecs.verified_voucher(step.data, Pubkey.from_string(signer))
            for each in read
            for step, _ in each.steps
            if step.program == str(codecs.ED25519_PROGRAM)
        ]
        totals = [each.cumulative_micro for each in vouchers if each and str(each.channel) == channel]
        found = history_of(read, channel, signer=signer, **where)
        return attrs.evolve(found, proven_micro=max(totals, default=0))

    patch(history, "history_of", verified)


@planted
def what_a_seller_adds_to_a_payout_has_returned(patch: Patch) -> None:
    payout_of = on_chain.payout_of

    def returned(payout, session_id, *, cap_micro, **_):
        return payout_of(payout, session_id, cap_micro=cap_micro, owed={session_id: cap_micro})

    patch(on_chain, "payout_of", returned)


@planted
def a_payout_is_a_deposit_too(patch: Patch) -> None:
    patch(transactions, "unposted_channels", lambda *_: [])


@planted
def a_maximum_is_posted_in_place_of_what_was_taken(patch: Patch) -> None:
    paid_out = closing.paid_out

    def at_most(found, *payout, paid, deposited):
        paid = found.channel.deposit if found.channel.is_payment else paid
        return paid_out(found, *payout, paid=paid, deposited=deposited)

    patch(closing, "paid_out", at_most)


@planted
def lost_vouchers_suspend_no_account(patch: Patch) -> None:
    patch(payouts, "suspending", lambda outcome, *_, **__: outcome)
