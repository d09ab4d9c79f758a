"""Loads parts of the server when they are first needed, and says what to install where they cannot be.

`pip install agentpay` brings this package, and not what it needs: that is `agentpay[server]`.
"""

from importlib import import_module
from types import ModuleType


def load(module: str) -> ModuleType:
    """Return a module of this package.

    Raises:
        ModuleNotFoundError: what the server needs is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        name = missing.name or ""
        if name.partition(".")[0] in ("agentpay", "agentpay_server"):
            raise
        raise ModuleNotFoundError(
            f"the server needs {name}, which is not installed: pip install 'agentpay[server]'", name=name
        ) from missing
