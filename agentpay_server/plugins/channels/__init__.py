"""Payments from payment channels on chain: sessions over HTTP 402, and payments up to a maximum."""
