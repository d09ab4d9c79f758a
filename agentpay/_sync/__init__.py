# Generated from _async by scripts/unasync.py. Edit that one.
"""The sync client. `scripts/unasync.py` generates the sync client from it."""
