"""The operator console as a browser loads it: HTML, CSS and ES modules, which `http/dashboard.py` serves."""
