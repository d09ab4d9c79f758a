"""Loads parts of the server when they are first needed, and says what to install where they cannot be.

A client-only installation includes this package but not its dependencies: those are the extra `server`.
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
        # A part of a package is missing because the package is.
        name = (missing.name or "").partition(".")[0]
        if name in ("agentpay", "agentpay_server"):
            raise
        # Only here: it loads more than everything else that an installation without the server loads.
        from agentpay_server.installation import install_command  # noqa: PLC0415

        raise ModuleNotFoundError(
            f"the server needs {name}, which is not installed: {install_command('server')}", name=name
        ) from missing
