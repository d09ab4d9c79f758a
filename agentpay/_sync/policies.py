# Generated from _async by scripts/unasync.py. Edit that one.
"""Policies as a resource: read, replaced, and changed without undoing what others change."""

# `timeout` is handed to the HTTP exchange, which answers with an outcome; `asyncio.timeout` would lose it.
# ruff: noqa: ASYNC109

from typing import Final

from agentpay._arguments import Names, policy_change
from agentpay._sync.resource import Resource
from agentpay._requests import etag_of, prepare
from agentpay._settings import RetriesOption, TimeoutOption
from agentpay.contract import endpoints
from agentpay.contract.policies import AccountPolicy, Limit, PolicyChange
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.errors import PreconditionFailedError

POLICY_UPDATE_ATTEMPTS: Final = 10
"""How often a policy is read and written again while others change it at the same time."""


class Policies(Resource):
    """Spending policies of accounts (interface PO1 to PO12). All need an operator key."""

    __module__ = "agentpay"

    def get(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> AccountPolicy:
        """Read the policy of an account (interface PO2).

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Raises:
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
        """
        path = {"account_id": account_id}
        policy: AccountPolicy = self._call(
            prepare(endpoints.GET_POLICY, path=path), timeout, max_retries
        )
        return policy

    def update(
        self,
        account_id: str,
        *,
        max_single_transfer: Limit | UnsetType = UNSET,
        max_daily_spend: Limit | UnsetType = UNSET,
        allowed_counterparties: Names | UnsetType = UNSET,
        categories: Names | UnsetType = UNSET,
        require_memo: bool | UnsetType = UNSET,
        escalation_threshold: Limit | UnsetType = UNSET,
        paused: bool | UnsetType = UNSET,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> AccountPolicy:
        """Change the given fields of a policy and keep the others (interface PO2, PO3).

        The policy is read, changed, and written in full on the condition that nobody changed it meanwhile;
        else it is read again. So a concurrent change is never undone, and the outcome does not depend on
        whether the service takes a PUT for a replacement or for a partial update.

        Args:
            account_id: the account, `acct_…`.
            max_single_transfer: most USDC per transfer, 0 to 999999999.999999; None lifts the limit. An
                amount is a `Decimal`, an `int` or a string; floats are refused.
            max_daily_spend: most USDC in a rolling 24-hour window; None lifts the limit.
            allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an
                empty list nobody.
            categories: spend categories that may be paid for; None allows all, an empty list none.
            require_memo: refuse transfers without a memo.
            escalation_threshold: USDC from which a transfer waits for approval; None is never.
            paused: block every outgoing transfer.
            timeout: seconds, for each request.
            max_retries: retries, for each request.

        Returns:
            The policy now in force. It holds from the next transfer on.

        Raises:
            TypeError: an amount is a float, or an allowlist is a single string.
            ValueError: an amount is negative, not finite, or has more than 6 decimals.
            InvalidRequestError: the service refuses a field; `details` names it.
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
            PreconditionFailedError: others changed the policy 10 times in a row meanwhile.
        """
        change = policy_change(
            max_single_transfer=max_single_transfer,
            max_daily_spend=max_daily_spend,
            allowed_counterparties=allowed_counterparties,
            categories=categories,
            require_memo=require_memo,
            escalation_threshold=escalation_threshold,
            paused=paused,
        )
        return self._change(account_id, change, timeout, max_retries)

    def replace(
        self,
        account_id: str,
        *,
        max_single_transfer: Limit = None,
        max_daily_spend: Limit = None,
        allowed_counterparties: Names = None,
        categories: Names = None,
        require_memo: bool = False,
        escalation_threshold: Limit = None,
        paused: bool = False,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> AccountPolicy:
        """Set all seven fields of a policy, whatever it was before (interface PO2).

        A field that is not given takes its default, which lifts the limit, **and resumes a paused account**.
        To keep the other fields, use `update`.

        Args:
            account_id: the account, `acct_…`.
            max_single_transfer: most USDC per transfer, 0 to 999999999.999999; None is no limit. An amount is
                a `Decimal`, an `int` or a string; floats are refused.
            max_daily_spend: most USDC in a rolling 24-hour window; None is no limit.
            allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an
                empty list nobody.
            categories: spend categories that may be paid for; None allows all, an empty list none.
            require_memo: refuse transfers without a memo.
            escalation_threshold: USDC from which a transfer waits for approval; None is never.
            paused: block every outgoing transfer.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Returns:
            The policy now in force.

        Raises:
            TypeError: an amount is a float, or an allowlist is a single string.
            ValueError: an amount is negative, not finite, or has more than 6 decimals.
            InvalidRequestError: the service refuses a field; `details` names it.
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
        """
        change = policy_change(
            max_single_transfer=max_single_transfer,
            max_daily_spend=max_daily_spend,
            allowed_counterparties=allowed_counterparties,
            categories=categories,
            require_memo=require_memo,
            escalation_threshold=escalation_threshold,
            paused=paused,
        )
        return self._put(account_id, change, None, timeout, max_retries)

    def pause(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> AccountPolicy:
        """Block every outgoing transfer of an account, and keep its limits. Raises as `update` does.

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for each request.
            max_retries: retries, for each request.
        """
        return self._change(account_id, PolicyChange(paused=True), timeout, max_retries)

    def resume(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> AccountPolicy:
        """Allow transfers of an account again, within its limits. Raises as `update` does.

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for each request.
            max_retries: retries, for each request.
        """
        return self._change(account_id, PolicyChange(paused=False), timeout, max_retries)

    def _change(
        self, account_id: str, change: PolicyChange, timeout: TimeoutOption, max_retries: RetriesOption
    ) -> AccountPolicy:
        left = POLICY_UPDATE_ATTEMPTS
        while True:
            left -= 1
            current, reply = self._exchange(
                prepare(endpoints.GET_POLICY, path={"account_id": account_id}), timeout, max_retries
            )
            whole = PolicyChange.to(change.applied_to(current))
            try:
                return self._put(account_id, whole, etag_of(reply), timeout, max_retries)
            except PreconditionFailedError:
                # Someone else's write, or our own whose answer was lost: either way the next read shows it.
                if not left:
                    raise

    def _put(
        self,
        account_id: str,
        change: PolicyChange,
        if_match: str | None,
        timeout: TimeoutOption,
        max_retries: RetriesOption,
    ) -> AccountPolicy:
        request = prepare(
            endpoints.PUT_POLICY, path={"account_id": account_id}, body=change, if_match=if_match
        )
        policy: AccountPolicy = self._call(request, timeout, max_retries)
        return policy
