"""Paid APIs for tests: a seller that speaks x402 and MPP, honest or hostile.

`Paywall` sells over httpx transports, as an ASGI application, or on a port, and settles the payments on a
test chain. `Mode` lists its possible misbehavior.
"""

from agentpay_server.payments.terms import Protocol
from agentpay_server.testkit.paywall.modes import Mode
from agentpay_server.testkit.paywall.paywall import Paywall
from agentpay_server.testkit.paywall.records import PaywallRequest, Sale

__all__ = ["Mode", "Paywall", "PaywallRequest", "Protocol", "Sale"]
