"""Imports parts of the server on demand, and says what to install if that fails.

A client-only installation includes this package but not its dependencies, which are in the extra `server`.
"""

from importlib import import_module
from types import ModuleType


def load(module: str) -> ModuleType:
    """Return a module of this package.

    Raises:
        ModuleNotFoundError: a dependency of the server is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        # A part of a package is missing because the package is.
        name = (missing.name or "").partition(".")[0]
        if name in ("agentpay", "agentpay_server"):
            raise
        # Imported here, because it imports more than the rest of a client-only installation.
        from agentpay_server.installation import install_command  # noqa: PLC0415

        raise ModuleNotFoundError(
            f"the server needs {name}, which is not installed: {install_command('server')}", name=name
        ) from missing
