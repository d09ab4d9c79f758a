"""The plug-in: payments behind HTTP 402."""

from typing import Final

from agentpay.contract.ext.payments import Payment, SessionStep
from agentpay_server.feature import Feature, Phase, Reply, Route
from agentpay_server.plugins.pay402.service import Payments
from agentpay_server.plugins.pay402.settling import PAYMENT


def _payment(payment: Payment | SessionStep) -> Reply:
    return Reply(status=201 if payment.header is not None else 202, model=payment)


FEATURE: Final[Feature[Payments]] = Feature(
    name="payments",
    build=Payments,
    movements=(PAYMENT,),
    work=lambda s: [(Phase.PAYMENTS, s.watch)],
    # Record payments that sellers broadcast while no server ran.
    recover=lambda s: s.watch.poll(),
    on_executed=lambda s: s.watch.executed,
    routes={
        "payments.authorize": Route(_payment, lambda s: s.authorize, is_owned=True),
        "payments.get": Route(200, lambda s: s.get),
        "payments.list": Route(200, lambda s: s.list),
        "payments.report_outcome": Route(200, lambda s: s.report_outcome, is_owned=True),
        "sellers.list": Route(200, lambda s: s.origins.list),
        "sellers.put": Route(200, lambda s: s.origins.put),
        "sellers.get": Route(200, lambda s: s.origins.get),
        "sellers.delete": Route(204, lambda s: s.origins.delete),
    },
)
