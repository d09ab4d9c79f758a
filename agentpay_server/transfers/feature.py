"""The feature: transfers, their approvals and dry runs."""

from typing import Final

from agentpay.contract.transfers import Transfer
from agentpay_server.feature import Core, Feature, Phase, Reply, Route
from agentpay_server.transfers.approvals import Approvals
from agentpay_server.transfers.checking import Checks
from agentpay_server.transfers.outcomes import TRANSFER
from agentpay_server.transfers.service import Execution, Transfers


class TransferServices:
    def __init__(self, core: Core) -> None:
        self.execution: Execution = Execution(core.context, core.settlement, core.authorizer)
        self.transfers: Transfers = Transfers(core.context, self.execution)
        self.checks: Checks = Checks(core.context, core.authorizer)
        self.approvals: Approvals = Approvals(core.context, self.execution)


def _transfer(transfer: Transfer) -> Reply:
    return Reply(status=200 if transfer.status == "settled" else 202, model=transfer)


FEATURE: Final[Feature[TransferServices]] = Feature(
    name="transfers",
    build=TransferServices,
    movements=(TRANSFER,),
    work=lambda s: [(Phase.LATER, s.approvals)],
    routes={
        "transfers.create": Route(_transfer, lambda s, c: s.transfers.create(c.principal, c.body)),
        "transfers.get": Route(200, lambda s, c: s.transfers.get(c.principal, c.path["transfer_id"])),
        "transfers.list": Route(200, lambda s, c: s.transfers.list(c.principal, c.query)),
        "transfers.check": Route(200, lambda s, c: s.checks.check(c.principal, c.body)),
        "approvals.list": Route(200, lambda s, c: s.approvals.list(c.principal, c.query)),
        "approvals.approve": Route(
            200, lambda s, c: s.approvals.approve(c.principal, c.path["transfer_id"]), is_owned=True
        ),
        "approvals.reject": Route(
            200, lambda s, c: s.approvals.reject(c.principal, c.path["transfer_id"], c.body), is_owned=True
        ),
    },
)
