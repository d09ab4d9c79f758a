"""The plug-in: payments behind HTTP 402."""

from typing import Final

from agentpay.contract.payments import Payment, SessionStep
from agentpay_server.feature import Core, Feature, Phase, Reply, Route
from agentpay_server.payments.channels import feature as channels
from agentpay_server.payments.channels.session_payments import SessionPayments
from agentpay_server.payments.pins import Origins
from agentpay_server.payments.purchases import Purchases
from agentpay_server.payments.service import Payments
from agentpay_server.payments.settling import PAYMENT
from agentpay_server.payments.watch import PaymentWatch
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


async def _recover(services: PaymentServices) -> None:
    # Record payments that sellers broadcast while no server ran.
    await services.watch.poll()


FEATURE: Final[Feature[PaymentServices]] = Feature(
    name="payments",
    build=PaymentServices,
    movements=(PAYMENT,),
    work=lambda s: [(Phase.PAYMENTS, s.watch)],
    recover=_recover,
    on_executed=lambda s, transaction: s.watch.executed([str(each) for each in transaction.signatures]),
    routes={
        "payments.authorize": Route(
            _payment, lambda s, c: s.payments.authorize(c.principal, c.body), is_owned=True
        ),
        "payments.get": Route(200, lambda s, c: s.payments.get(c.principal, c.path["transfer_id"])),
        "payments.list": Route(200, lambda s, c: s.payments.list(c.principal, c.query)),
        "payments.report_outcome": Route(
            200,
            lambda s, c: s.payments.report_outcome(c.principal, c.path["transfer_id"], c.body),
            is_owned=True,
        ),
        "sellers.list": Route(200, lambda s, c: s.origins.list(c.principal, c.query)),
        "sellers.put": Route(200, lambda s, c: s.origins.put(c.principal, c.path["origin"], c.body)),
        "sellers.get": Route(200, lambda s, c: s.origins.get(c.principal, c.path["origin"])),
        "sellers.delete": Route(204, lambda s, c: s.origins.delete(c.principal, c.path["origin"])),
    },
)
