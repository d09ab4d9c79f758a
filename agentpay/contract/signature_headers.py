"""The names of the headers that carry the signatures of a delivery (interface W5, W12).

They stand apart from the models of `webhooks.py`, so that who verifies a signature loads no model.
"""

from typing import Final

SIGNATURE_HEADER: Final = "X-Service-Signature"
"""Hex HMAC-SHA256 of the raw body; while a secret is being rotated, under the old one."""

NEXT_SIGNATURE_HEADER: Final = "X-Service-Signature-Next"
"""While a secret is being rotated, the same under the new one."""
