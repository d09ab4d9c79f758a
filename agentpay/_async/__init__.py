"""The async client. `scripts/unasync.py` generates the sync client from it."""
