"""The money core: one way for money to leave, and one engine that brings every transaction to its end."""
