"""Payments behind HTTP 402."""
