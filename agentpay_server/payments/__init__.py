"""Payments behind HTTP 402: reading challenges, building what is signed, wrapping the answer."""
