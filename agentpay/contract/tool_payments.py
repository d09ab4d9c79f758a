"""The names by which MCP tools ask for payments and are paid, of x402 and MPP."""

from typing import Final

X402_EXTENSION: Final = "org.x402/payment"
"""The extension of MCP by which a server asks for a payment of x402 in a result of its own kind."""

PAYMENT_REQUIRED: Final = "payment_required"
"""The `resultType` of that result."""

X402_PAYMENT: Final = "x402/payment"
"""In `_meta` of a call: a payment of x402."""

X402_RECEIPT: Final = "x402/payment-response"
"""In `_meta` of a result: its receipt."""

MPP_PAYMENT: Final = "org.paymentauth/credential"
"""In `_meta` of a call: a payment of MPP."""

MPP_CHALLENGES: Final = "org.paymentauth/payment-required"
"""In `_meta` of a result: challenges of MPP, beside those of x402."""

MPP_RECEIPT: Final = "org.paymentauth/receipt"
"""In `_meta` of a result: the receipt of MPP."""

MPP_CODE: Final = -32042
"""The JSON-RPC error that asks for a payment of MPP."""

MPP_REFUSED_CODE: Final = -32043
"""The JSON-RPC error that refuses the payment that was presented, and asks again."""
