# Generated from _async by scripts/unasync.py. Edit that one.
"""The sync client of a whole server; the sync one is generated from it."""
