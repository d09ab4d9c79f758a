"""Plug-ins: each is a capability that the core starts without; `features.py` names them."""
