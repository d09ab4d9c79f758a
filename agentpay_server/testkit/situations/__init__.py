"""Accounts, sessions and deliveries in states that take many calls to reach."""
