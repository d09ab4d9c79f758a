"""The feature: accounts with their policies, deposits and history."""

from typing import Final

from agentpay_server.accounts.deposits import Arrivals, Deposits
from agentpay_server.accounts.policies import POLICY_RECORD, Policies, PolicyRecords, VersionedPolicy
from agentpay_server.accounts.service import Accounts
from agentpay_server.feature import Core, Feature, Phase, Reply, Route
from agentpay_server.ledger.accounts import History


class AccountServices:
    def __init__(self, core: Core) -> None:
        context, settlement, rpc = core.context, core.settlement, core.config.rpc
        self.accounts: Accounts = Accounts(context, settlement, core.funding)
        self.history: History = History(context)
        self.records: PolicyRecords = PolicyRecords(context, settlement, core.funding)
        self.policies: Policies = Policies(context, self.records)
        self.deposits: Deposits = Deposits(
            context,
            settlement,
            core.keep(Arrivals, Arrivals),
            poll_every_seconds=None if rpc is None else rpc.deposit_interval_seconds,
        )


def _policy(versioned: VersionedPolicy) -> Reply:
    policy, etag = versioned
    return Reply(status=200, model=policy, headers=((b"etag", etag.encode("ascii")),))


FEATURE: Final[Feature[AccountServices]] = Feature(
    name="accounts",
    build=AccountServices,
    movements=(POLICY_RECORD,),
    work=lambda s: [(Phase.DEPOSITS, s.deposits), (Phase.LATER, s.records)],
    before_signature=lambda s: s.deposits.poll_before_spend,
    routes={
        "accounts.create": Route(201, lambda s: s.accounts.create, is_owned=True),
        "accounts.list": Route(200, lambda s: s.accounts.list),
        "accounts.get": Route(200, lambda s: s.accounts.get),
        "accounts.balance": Route(200, lambda s: s.accounts.balance),
        "accounts.budget": Route(200, lambda s: s.accounts.budget),
        "console.list_details": Route(200, lambda s: s.accounts.list_details),
        "console.details": Route(200, lambda s: s.accounts.detail),
        "console.unblock": Route(200, lambda s: s.accounts.unblock),
        "accounts.transactions": Route(200, lambda s: s.history.list),
        "accounts.history": Route(200, lambda s: s.history.list_all),
        "console.pause_all": Route(200, lambda s: s.policies.pause_all, is_owned=True),
        "console.resume_all": Route(200, lambda s: s.policies.resume_all, is_owned=True),
        "policies.get": Route(_policy, lambda s: s.policies.get),
        "policies.put": Route(_policy, lambda s: s.policies.put, is_owned=True),
    },
)
