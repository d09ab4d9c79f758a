"""The operator console as a browser loads it; `plugins/console/pages.py` serves it."""
