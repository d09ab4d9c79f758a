# Generated from _async by scripts/unasync.py. Edit that one.
"""The async source of what pays; `scripts/unasync.py` generates `_sync` from it."""
