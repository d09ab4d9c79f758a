"""Payments behind HTTP 402: read the challenge, sign the payment, build the header that presents it."""
