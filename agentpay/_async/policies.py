"""The policies resource: read, replace and update policies without losing concurrent changes."""

from typing import Final, Unpack

import attrs

from agentpay._async.resource import AsyncResource
from agentpay._calls.arguments import request_of
from agentpay._calls.options import CallOptions, CallSettings
from agentpay._calls.requests import etag_of
from agentpay.contract import endpoints
from agentpay.contract.policies import AccountPolicy, Limit, Names, Policy, PolicyChange
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.errors import PreconditionFailedError

POLICY_UPDATE_ATTEMPTS: Final = 10
"""How often `update` reads and writes a policy that others change at the same time."""


class AsyncPolicies(AsyncResource):
    """Spending policies of accounts. All need an operator key."""

    __module__ = "agentpay.resources"

    async def get(self, account_id: str, **options: Unpack[CallOptions]) -> AccountPolicy:
        """Read the policy of an account.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
        """
        return await self._call(endpoints.GET_POLICY, locals(), options)

    async def update(
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
        **options: Unpack[CallOptions],
    ) -> AccountPolicy:
        """Change the given fields of a policy and keep the others.

        The policy is read, changed, and written in full, on the condition that it was not changed in between;
        otherwise this is repeated. So concurrent changes are never lost, and the result does not depend on
        whether the service treats a PUT as a replacement or as a partial update.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            max_single_transfer: maximum USDC per transfer, 0 to 999999999.999999; None lifts the limit. An
                amount is a `Decimal`, an `int` or a string; floats are refused.
            max_daily_spend: maximum USDC in a rolling 24-hour window; None lifts the limit.
            allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an
                empty list none.
            categories: allowed spend categories; None allows all, an empty list none.
            require_memo: refuse transfers without a memo.
            escalation_threshold: USDC from which a transfer needs approval; None means never.
            paused: block all outgoing transfers.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The policy now in force. It applies from the next transfer on.

        Raises:
            TypeError: no field is given.
            InvalidRequestError: a field is invalid, such as an amount that is a float; `details` names those
                that the service refuses.
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
            PreconditionFailedError: others changed the policy in between, 10 times in a row.
        """
        call = self._caller.begin(options, locals())  # first: it names a misspelt argument
        change = request_of(PolicyChange, locals())  # before the policy is read
        if change == PolicyChange():
            raise TypeError(
                "policies.update needs at least one field to change; policies.get reads the policy"
            )
        return await self._change(account_id, change, call)

    async def replace(
        self,
        account_id: str,
        policy: Policy | None = None,
        *,
        max_single_transfer: Limit | UnsetType = UNSET,
        max_daily_spend: Limit | UnsetType = UNSET,
        allowed_counterparties: Names | UnsetType = UNSET,
        categories: Names | UnsetType = UNSET,
        require_memo: bool | UnsetType = UNSET,
        escalation_threshold: Limit | UnsetType = UNSET,
        paused: bool | UnsetType = UNSET,
        **options: Unpack[CallOptions],
    ) -> AccountPolicy:
        """Set all seven fields of a policy, whatever it was before.

        A field that is not given gets its default, which lifts the limit, **and resumes a paused account**.
        To keep the other fields, use `update`.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            policy: the policy, such as `Policy(max_daily_spend=50)` or another account's, instead of fields.
            max_single_transfer: maximum USDC per transfer, 0 to 999999999.999999; None means no limit. An
                amount is a `Decimal`, an `int` or a string; floats are refused.
            max_daily_spend: maximum USDC in a rolling 24-hour window; None means no limit.
            allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an
                empty list none.
            categories: allowed spend categories; None allows all, an empty list none.
            require_memo: refuse transfers without a memo.
            escalation_threshold: USDC from which a transfer needs approval; None means never.
            paused: block all outgoing transfers.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The policy now in force.

        Raises:
            TypeError: both a policy and fields are given.
            InvalidRequestError: a field is invalid, such as an amount that is a float; `details` names those
                that the service refuses.
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
        """
        call = self._caller.begin(options, locals())
        change = request_of(PolicyChange, locals())
        if policy is None:
            policy = change.applied_to(Policy())
        elif change != PolicyChange():
            raise TypeError("policies.replace takes a Policy or its fields, not both")
        return await self._put(account_id, policy, call)

    async def pause(self, account_id: str, **options: Unpack[CallOptions]) -> AccountPolicy:
        """Block all outgoing transfers of an account, and keep its limits. Raises as `update` does.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        call = self._caller.begin(options, locals())
        return await self._change(account_id, PolicyChange(paused=True), call)

    async def resume(self, account_id: str, **options: Unpack[CallOptions]) -> AccountPolicy:
        """Allow transfers of an account again, within its limits. Raises as `update` does.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        call = self._caller.begin(options, locals())
        return await self._change(account_id, PolicyChange(paused=False), call)

    async def _change(self, account_id: str, change: PolicyChange, call: CallSettings) -> AccountPolicy:
        left = POLICY_UPDATE_ATTEMPTS
        while True:
            left -= 1
            current, reply = await self._exchange(endpoints.GET_POLICY, {"account_id": account_id}, call)
            try:
                return await self._put(account_id, change.applied_to(current), call, if_match=etag_of(reply))
            except PreconditionFailedError:
                # Another caller's write, or our own with a lost response: in both cases, read it again.
                if not left:
                    raise

    async def _put(
        self, account_id: str, policy: Policy, call: CallSettings, *, if_match: str | None = None
    ) -> AccountPolicy:
        arguments = {**attrs.asdict(policy, recurse=False), "account_id": account_id}
        result, _ = await self._exchange(endpoints.PUT_POLICY, arguments, call, if_match=if_match)
        return result
