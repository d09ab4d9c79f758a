"""Which endpoints hear of what: pure rules over registered webhooks (interface W3, EV4)."""

from collections.abc import Collection

from attrs import frozen

from agentpay.contract.event_types import EventType


@frozen(kw_only=True)
class Subscription:
    """What a webhook asked for.

    Attributes:
        webhook_id: the webhook.
        events: names of the event types that it receives.
        account_ids: the accounts that it hears of; empty is all of the operator.
        low_balance_micro: micro-USDC below which a balance is low; None is never.
    """

    webhook_id: str
    events: Collection[str]
    account_ids: Collection[str]
    low_balance_micro: int | None

    def hears(self, event_type: str, account_id: str) -> bool:
        """Tell whether it receives events of a type about an account."""
        return event_type in self.events and (not self.account_ids or account_id in self.account_ids)

    def hears_of_drop(self, account_id: str, *, before_micro: int, after_micro: int) -> bool:
        """Tell whether a change of balance goes from at or above the threshold to below it.

        Crossing is what fires: a balance that stays below does not fire again, and one that is back at or
        above is armed again, without anything to remember.
        """
        threshold = self.low_balance_micro
        return (
            threshold is not None
            and after_micro < threshold <= before_micro
            and self.hears(EventType.BALANCE_LOW_THRESHOLD, account_id)
        )
