"""The feature: accounts with their policies, deposits and history."""

from typing import Final

from agentpay_server.accounts.deposits import Arrivals, Deposits, DepositSchedule
from agentpay_server.accounts.history import History
from agentpay_server.accounts.policies import POLICY_RECORD, Policies, PolicyRecords, VersionedPolicy
from agentpay_server.accounts.service import Accounts
from agentpay_server.feature import Core, Feature, Phase, Reply, Route


class AccountServices:
    def __init__(self, core: Core) -> None:
        context, settlement, rpc = core.context, core.settlement, core.config.rpc
        self.accounts: Accounts = Accounts(context, settlement, core.funding)
        self.history: History = History(context)
        self.records: PolicyRecords = PolicyRecords(context, settlement, core.funding)
        self.policies: Policies = Policies(context, self.records)
        self.deposits: Deposits = Deposits(context, settlement, core.keep(Arrivals, Arrivals))
        self.deposit_schedule: DepositSchedule = DepositSchedule(
            self.deposits,
            clock=context.clock,
            poll_every_seconds=None if rpc is None else rpc.deposit_interval_seconds,
        )


def _policy(versioned: VersionedPolicy) -> Reply:
    return Reply(status=200, model=versioned.policy, headers=((b"etag", versioned.etag.encode("ascii")),))


FEATURE: Final[Feature[AccountServices]] = Feature(
    name="accounts",
    build=AccountServices,
    movements=(POLICY_RECORD,),
    work=lambda s: [(Phase.DEPOSITS, s.deposit_schedule), (Phase.LATER, s.records)],
    before_signature=lambda s, token_account: s.deposits.poll_before_spend(token_account),
    routes={
        "accounts.create": Route(201, lambda s, c: s.accounts.create(c.principal, c.body), is_owned=True),
        "accounts.list": Route(200, lambda s, c: s.accounts.list(c.principal, c.query)),
        "accounts.get": Route(200, lambda s, c: s.accounts.get(c.principal, c.path["account_id"])),
        "accounts.balance": Route(200, lambda s, c: s.accounts.balance(c.principal, c.path["account_id"])),
        "accounts.budget": Route(200, lambda s, c: s.accounts.budget(c.principal, c.path["account_id"])),
        "accounts.list_details": Route(200, lambda s, c: s.accounts.list_details(c.principal, c.query)),
        "accounts.details": Route(200, lambda s, c: s.accounts.detail(c.principal, c.path["account_id"])),
        "accounts.unblock": Route(
            200, lambda s, c: s.accounts.allow_signing(c.principal, c.path["account_id"])
        ),
        "accounts.transactions": Route(
            200, lambda s, c: s.history.list(c.principal, c.path["account_id"], c.query)
        ),
        "accounts.history": Route(200, lambda s, c: s.history.list_all(c.principal, c.query)),
        "policies.get": Route(_policy, lambda s, c: s.policies.get(c.principal, c.path["account_id"])),
        "policies.put": Route(
            _policy,
            lambda s, c: s.policies.put(
                c.principal, c.path["account_id"], c.body, if_match=c.headers.get("if-match")
            ),
            is_owned=True,
        ),
    },
)
