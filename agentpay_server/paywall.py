"""Paid APIs for tests: a seller that speaks x402 and MPP, honest or hostile.

`Paywall` sells over httpx transports, as an ASGI application, or on a port, and settles the payments on a
test chain. It also sells through payment channels: by session of MPP, and up to a maximum by x402. `Mode`,
`SessionMode` and `UptoMode` list its possible misbehavior. `HostilePayer` is the other side: it tries to get
more from a seller than it pays for.
"""

from agentpay_server.plugins.pay402.challenges.terms import Protocol
from agentpay_server.plugins.paywall.hostile_payer import Attempt, HostilePayer, Trick
from agentpay_server.plugins.paywall.paywall import Paywall
from agentpay_server.plugins.paywall.products import (
    Mode,
    PaywallChannel,
    PaywallRequest,
    Sale,
    SessionMode,
    UptoMode,
)

__all__ = [
    "Attempt",
    "HostilePayer",
    "Mode",
    "Paywall",
    "PaywallChannel",
    "PaywallRequest",
    "Protocol",
    "Sale",
    "SessionMode",
    "Trick",
    "UptoMode",
]
