"""Loads parts that need an extra when they are first used, and says what to install if it is missing.

Every installation includes all modules, but not the dependencies of all extras.
"""

from importlib import import_module
from types import ModuleType


def load(module: str, *, part: str, extra: str) -> ModuleType:
    """The ModuleNotFoundError says what `part` needs to be installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        # A part of a package is missing because the package is.
        name = (missing.name or "").partition(".")[0]
        if name in ("agentpay", "agentpay_server"):
            raise
        # Imported late: it loads more than the rest of an installation without the extra.
        from agentpay._installation import install_command  # noqa: PLC0415

        raise ModuleNotFoundError(
            f"{part} needs {name}, which is not installed: {install_command(extra)}", name=name
        ) from missing
