"""Webhooks: registered endpoints, events, and their delivery."""
