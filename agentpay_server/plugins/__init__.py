"""What plugs in: each package is a capability that the core starts without; `features.py` names them."""
