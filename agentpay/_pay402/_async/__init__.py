"""The async source of what pays; `scripts/unasync.py` generates `_sync` from it."""
