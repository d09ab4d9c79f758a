"""The plug-in: payments behind HTTP 402."""

from typing import Final

from agentpay.contract.payments import Payment, SessionStep
from agentpay_server.feature import Core, Feature, Phase, Reply, Route
from agentpay_server.plugins.channels import feature as channels
from agentpay_server.plugins.channels.session_payments import SessionPayments
from agentpay_server.plugins.pay402.service import Origins, Payments, Purchases
from agentpay_server.plugins.pay402.settling import PAYMENT, PaymentWatch
from agentpay_server.transfers.service import Execution


class PaymentServices:
    def __init__(self, core: Core) -> None:
        context, settlement = core.context, core.settlement
        self.watch: PaymentWatch = PaymentWatch(context, settlement)
        sessions = SessionPayments(context, settlement, core.authorizer, self.watch)
        purchases = Purchases(
            context,
            settlement,
            Execution(context, settlement, core.authorizer),
            closing=core.of(channels.FEATURE).closing,
            watch=self.watch,
            sessions=sessions,
        )
        self.payments: Payments = Payments(context, purchases, sessions)
        self.origins: Origins = Origins(context)


def _payment(payment: Payment | SessionStep) -> Reply:
    return Reply(status=201 if payment.header is not None else 202, model=payment)


FEATURE: Final[Feature[PaymentServices]] = Feature(
    name="payments",
    build=PaymentServices,
    movements=(PAYMENT,),
    work=lambda s: [(Phase.PAYMENTS, s.watch)],
    # Record payments that sellers broadcast while no server ran.
    recover=lambda s: s.watch.poll(),
    on_executed=lambda s: s.watch.executed,
    routes={
        "payments.authorize": Route(_payment, lambda s: s.payments.authorize, is_owned=True),
        "payments.get": Route(200, lambda s: s.payments.get),
        "payments.list": Route(200, lambda s: s.payments.list),
        "payments.report_outcome": Route(200, lambda s: s.payments.report_outcome, is_owned=True),
        "sellers.list": Route(200, lambda s: s.origins.list),
        "sellers.put": Route(200, lambda s: s.origins.put),
        "sellers.get": Route(200, lambda s: s.origins.get),
        "sellers.delete": Route(204, lambda s: s.origins.delete),
    },
)
