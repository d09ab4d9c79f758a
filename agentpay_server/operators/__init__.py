"""Operators and API keys."""
