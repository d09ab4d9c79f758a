"""Predicts the outcome of a transfer by the rules of `engine/authorization.py` (interface B4).

It creates, locks, claims, reserves, signs and stores nothing.
"""

from agentpay.contract.policies import Policy
from agentpay.contract.spending import CHECK_TRANSFER, CheckTransfer, PredictedOutcome, TransferCheck
from agentpay.contract.usdc import format_string, from_micro, to_micro
from agentpay_server.database.connection import Connection
from agentpay_server.engine import policy as rules
from agentpay_server.engine.authorization import Authorizer, Gate, Preflight, must_read_again, own_parties
from agentpay_server.engine.policy import stored_policy
from agentpay_server.ledger import spending
from agentpay_server.ledger.accounts import own_account
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.spending import remaining
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers.deciding import cost_of_transfer, require_room_to_wait, spend_of
from agentpay_server.transfers.rules import TransferTerms


class Checks:
    """Predicts the outcome of transfers."""

    def __init__(self, context: Context, authorizer: Authorizer) -> None:
        self._context = context
        self._authorizer = authorizer

    async def check(self, principal: Principal, request: CheckTransfer) -> TransferCheck:
        """Return the outcome that `POST /v1/transfers` would have now.

        Raises:
            Problem: `not_found` of `from`, `invalid_recipient`, `fee_budget_exceeded`, `rate_limited`,
                `chain_unavailable`.
        """
        principal.require_account(request.from_, CHECK_TRANSFER.operation)
        terms = TransferTerms(
            account_id=request.from_,
            to=request.to,
            amount_micro=to_micro(request.amount),
            memo=request.memo or None,
            category=request.category,
        )
        while True:
            parties = await self._context.database.read(own_parties, principal, terms.account_id, terms.to)
            preflight = await self._authorizer.preflight(parties)
            checked = await self._context.database.read(self._checked, principal, terms, preflight)
            if checked is not None:
                return checked

    def _checked(
        self, connection: Connection, principal: Principal, terms: TransferTerms, preflight: Preflight | None
    ) -> TransferCheck | None:
        source = own_account(connection, principal, terms.account_id)
        if must_read_again(source, preflight):
            return None
        policy, key = stored_policy(source.policy), spending.key_of(principal)
        gate = Gate(
            connection,
            self._context,
            self._context.clock.now_us(),
            source=source,
            policy=policy,
            by_operator=not principal.is_agent,
            read=preflight,
            is_last_try=True,
        )
        refusal = gate.paused() or gate.refusal(spend_of(terms, gate.preflight), key)
        decision, error, message = PredictedOutcome.SETTLE, None, None
        if refusal is not None:
            decision, error, message = PredictedOutcome.REJECT, refusal.code.value, refusal.message
        elif gate.needs_approval(terms.amount_micro):
            require_room_to_wait(gate, principal)
            decision, message = PredictedOutcome.ESCALATE, _escalated(policy, terms)
        else:
            gate.pay(cost_of_transfer(gate.preflight))
        limit = None if policy.max_daily_spend is None else to_micro(policy.max_daily_spend)
        spent = spending.against_daily_limit(connection, source, gate.spent_us)
        left, of_key = (
            remaining(limit_micro=limit, spent_micro=spent),
            spending.left_of_key(connection, key),
        )
        # One that is pending approval counts toward the key's total, and not toward the daily limit.
        if left is not None and decision is PredictedOutcome.SETTLE:
            left = max(left - terms.amount_micro, 0)
        if of_key is not None and decision is not PredictedOutcome.REJECT:
            of_key = max(of_key - terms.amount_micro, 0)
        least = spending.least(left, of_key)
        return TransferCheck(
            decision=decision.value,
            error=error,
            message=message,
            remaining_usdc=None if least is None else from_micro(least),
        )


def _escalated(policy: Policy, terms: TransferTerms) -> str:
    threshold = policy.escalation_threshold
    assert threshold is not None  # noqa: S101 - without one nothing is escalated
    return (
        f"escalation_threshold is {format_string(threshold)} USDC and this transfer requests "
        f"{rules.usdc_text(terms.amount_micro)} USDC: it would wait for an operator's approval."
    )
