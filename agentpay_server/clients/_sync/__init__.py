# Generated from _async by scripts/unasync.py. Edit that one.
"""The sync client of the sandbox. The sync one is generated from it."""
