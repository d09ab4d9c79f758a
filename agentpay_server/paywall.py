"""Paid APIs for tests: a seller that speaks x402 and MPP, honest or hostile.

`Paywall` sells over httpx transports, as an ASGI application, or on a port, and settles the payments on a
test chain. `Mode` lists its possible misbehavior.
"""

from agentpay_server.testkit.paywall import Mode, Paywall, PaywallRequest, Protocol, Sale

__all__ = ["Mode", "Paywall", "PaywallRequest", "Protocol", "Sale"]
