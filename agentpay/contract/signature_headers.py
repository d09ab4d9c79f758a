"""The names of the headers with the signatures of a delivery (interface W5, W12).

Separate from the models of `webhooks.py`, so that verifying a signature does not import them.
"""

from typing import Final

SIGNATURE_HEADER: Final = "X-Service-Signature"
"""Hex HMAC-SHA256 of the raw body; during a rotation, with the old secret."""

NEXT_SIGNATURE_HEADER: Final = "X-Service-Signature-Next"
"""The same with the new secret, during a rotation."""
