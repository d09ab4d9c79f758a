"""Paying one request within a session over HTTP 402: one unit of work, then a signature.

The unit stores key and cumulative amount, under the cap, before anything is signed. A key never gets a
second amount: Ed25519 signs the same bytes alike, so a repeated request, and one after a crash, presents the
same voucher. Because the order of vouchers matters to sellers, one is in flight for each session: the next is
signed once a client has reported its outcome, or after 30 seconds.
"""

import json
from typing import Final

from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.payments import AUTHORIZE_PAYMENT, REPORT_OUTCOME, ReportOutcome
from agentpay.contract.sessions import ClosingReason, SessionStatus
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, PurchaseKind, VoucherRecord
from agentpay_server.engine.policy import (
    Recipient,
    Refusal,
    paused_refusal,
    stored_policy,
    usdc_text,
    voucher_refusal,
)
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, idempotency, spending
from agentpay_server.ledger.apply import Unit
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import Held, RequestedKey
from agentpay_server.platform.clock import real_now_us
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem, not_found, signing_suspended
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels.closing import to_closing
from agentpay_server.plugins.channels.on_chain import IN_FLIGHT_US, MAX_REFUSALS
from agentpay_server.plugins.channels.owners import Owned
from agentpay_server.plugins.channels.store import CHANNELS, IS_OPEN, VOUCHERS, Channel
from agentpay_server.plugins.pay402.authorizing import pin_is_as_seen
from agentpay_server.plugins.pay402.challenges.terms import Offer
from agentpay_server.plugins.pay402.judging import spend_on
from agentpay_server.plugins.pay402.pins import pin_refusal
from agentpay_server.plugins.pay402.store import Pin
from agentpay_server.sessions.outcomes import refused
from agentpay_server.sessions.rules import key_refusal
from agentpay_server.sessions.service import draw

_REFUSED: Final = 402
_SERVER_ERROR: Final = 500


@frozen(kw_only=True)
class Paid:
    """The result: the session's channel, and the voucher to sign."""

    channel: Channel
    voucher: VoucherRecord
    is_replay: bool = False


@frozen(kw_only=True)
class PayByVoucher:
    """The unit of work that adds a request's price to what a session's seller can claim.

    Attributes:
        held: the claims of the key, as read before the unit of work.
        digest: of the purchase, which the same key must repeat.
        pin: the operator's pin of the origin, as read before the unit of work.
    """

    context: Context
    principal: Principal
    session_id: str
    key: RequestedKey
    held: Held
    offer: Offer
    digest: str
    url: str | None
    pin: Pin | None

    def __call__(self, connection: Connection) -> Paid | None:
        """Store the voucher.

        Returns:
            None if the request must start over, because the session is no longer open, or the pin or the
                key's claims are not as they were read.

        Raises:
            Problem: a refusal; `chain_unavailable` if signing is suspended for the account;
                `service_unavailable` while another voucher is in flight or clocks differ.
            ConflictError: another request has used the key meanwhile.
        """
        key = self.key
        # Every change of the policy takes this lock, and so does every other payment under the key.
        source = account_store.ACCOUNTS.existing(connection, key.account_id, lock=True)
        now_us = self.context.clock.now_us()
        self.context.clock_check.require(now_us)
        channel = channel_store.of_session(connection, self.session_id, lock=True)
        if channel.session.status != SessionStatus.OPEN:
            return None
        if not idempotency.is_as_seen(connection, key, self.held, now_us):
            return None
        # Comparing the account with the chain may have taken long since the pin was read.
        if not pin_is_as_seen(connection, source.operator_id, channel.record.origin, self.pin):
            return None
        refusal = self._refusal(connection, source, channel)
        if refusal is not None:
            raise refused(refusal, channel.session)
        if source.suspended_us is not None:
            raise signing_suspended(source.account_id)
        self._require_turn(channel)
        return self._store(connection, channel, now_us)

    def is_key_taken(self, connection: Connection) -> bool:
        """Return whether another request holds the idempotency key."""
        return idempotency.find(connection, self.key, self.context.clock.now_us()).is_held

    def _require_turn(self, channel: Channel) -> None:
        until_us = channel.record.in_flight_until_us
        if channel.record.in_flight is not None and until_us is not None and real_now_us() < until_us:
            raise Problem(
                ErrorCode.SERVICE_UNAVAILABLE,
                f"Another voucher of this session is in flight, {channel.record.in_flight}, and nothing was "
                "signed. Retry with the same key once its outcome is reported.",
                says_what_to_do=True,
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )

    def _refusal(self, connection: Connection, source: AccountRecord, channel: Channel) -> Refusal | None:
        session, policy = channel.session, stored_policy(source.policy)
        terms, owners = self.offer.terms, self.offer.owners
        recipients = [self._recipient(connection, owner) for owner in owners]
        spend = spend_on(self.offer, recipients, pin=self.pin)
        refusal = (
            paused_refusal(policy)
            # A limited key is offered its own sessions only; this holds for rows of older servers too.
            or key_refusal(opened_by=session.key_id, key=spending.key_of(self.principal))
            or pin_refusal(self.pin, terms, owners)
            or voucher_refusal(policy, spend)
        )
        if refusal is not None or session.running_total + terms.amount_micro <= session.cap:
            return refusal
        return Refusal(
            code=ErrorCode.SESSION_CAP_EXCEEDED,
            message=f"cap_usdc is {usdc_text(session.cap)} USDC, of which {usdc_text(session.running_total)} "
            f"USDC is signed away, and this request costs {usdc_text(terms.amount_micro)} USDC. Close the "
            "session, then request again to open another one.",
        )

    def _recipient(self, connection: Connection, owner: str) -> Recipient:
        token_account = associated_token_address(owner, self.context.chain.usdc_mint)
        account = account_store.account_at(connection, token_account)
        return Recipient(
            account_id=None if account is None else account.account_id,
            token_account=token_account,
            owner=owner,
        )

    def _store(self, connection: Connection, channel: Channel, now_us: int) -> Paid | None:
        context, key = self.context, self.key.idempotency_key
        amount, charge_id = self.offer.terms.amount_micro, context.identifiers.new(identifiers.CHARGE)
        drawn = draw(
            Unit(connection, context, now_us),
            channel.session,
            amount,
            principal=self.principal,
            action=AUTHORIZE_PAYMENT.name,
            key=key,
            charge_id=charge_id,
        )
        if drawn is None:
            return None
        session = drawn.session
        voucher = VoucherRecord(
            charge_id=charge_id,
            session_id=session.session_id,
            operator_id=session.operator_id,
            account_id=session.account_id,
            idempotency_key=key,
            digest=self.digest,
            url=self.url,
            amount=amount,
            cumulative=session.running_total,
            created_us=now_us,
        )
        VOUCHERS.insert(connection, voucher)
        idempotency.put(connection, self.key, self.held, PurchaseKind.CHANNEL, charge_id)
        record = CHANNELS.changed(
            connection,
            channel.record,
            IS_OPEN,
            cumulative=session.running_total,
            in_flight=charge_id,
            in_flight_until_us=real_now_us() + IN_FLIGHT_US,
            newest_challenge=json.dumps(self.offer.echo),
        )
        return Paid(channel=Channel(session=session, record=record), voucher=voucher)


def report(
    connection: Connection, context: Context, principal: Principal, charge_id: str, request: ReportOutcome
) -> Paid:
    """Store the seller's response to a voucher, as the client reports it, and return the voucher.

    Two refusals in a row close the session by force.

    Raises:
        Problem: `not_found`.
    """
    voucher = VOUCHERS.get(connection, charge_id)
    if (
        voucher is None
        or voucher.operator_id != principal.operator_id
        or (principal.is_agent and voucher.account_id != principal.account_id)
    ):
        raise not_found("payment", charge_id)
    is_first = voucher.outcome_status is None
    found = channel_store.of_session(connection, voucher.session_id, lock=True)
    voucher = VOUCHERS.changed(
        connection,
        voucher,
        outcome_status=request.status_code,
        outcome_receipt=request.receipt,
        outcome_duration_ms=request.duration_ms,
    )
    now_us = context.clock.now_us()
    audit.record(
        connection,
        principal,
        action=REPORT_OUTCOME.name,
        subject=charge_id,
        now_us=now_us,
        after={"status_code": request.status_code},
    )
    if found.record.in_flight == charge_id and is_first:
        _count(connection, found, request.status_code, now_us)
        found = channel_store.of_session(connection, voucher.session_id)
    return Paid(channel=found, voucher=voucher)


def _count(connection: Connection, found: Channel, status_code: int, now_us: int) -> None:
    # A seller that keeps a voucher and serves nothing may as well claim to have failed.
    is_refused = status_code == _REFUSED or status_code >= _SERVER_ERROR
    refusals = found.record.refusals + 1 if is_refused else 0
    channel = CHANNELS.changed(
        connection, found.record, in_flight=None, in_flight_until_us=None, refusals=refusals
    )
    if refusals >= MAX_REFUSALS:
        # Due at once, whatever this server's clock says.
        due_us, reason = channel.created_us, ClosingReason.PAYEE_REFUSES
        closed = Owned(owner=found.session, channel=channel)
        to_closing(connection, closed, now_us=now_us, due_us=due_us, force_us=due_us, reason=reason)
