"""The feature: transfers, their approvals and dry runs."""

from typing import Final

from agentpay.contract.transfers import Transfer
from agentpay_server.feature import Core, Feature, Phase, Reply, Route
from agentpay_server.transfers.approvals import Approvals
from agentpay_server.transfers.deciding import Checks
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
        "transfers.create": Route(_transfer, lambda s: s.transfers.create),
        "transfers.get": Route(200, lambda s: s.transfers.get),
        "transfers.list": Route(200, lambda s: s.transfers.list),
        "transfers.check": Route(200, lambda s: s.checks.check),
        "approvals.list": Route(200, lambda s: s.approvals.list),
        "approvals.approve": Route(200, lambda s: s.approvals.approve, is_owned=True),
        "approvals.reject": Route(200, lambda s: s.approvals.reject, is_owned=True),
    },
)
