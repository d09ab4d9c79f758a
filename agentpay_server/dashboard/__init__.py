"""The operator console as a browser loads it; `http/dashboard.py` serves it."""
