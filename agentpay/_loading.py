"""Loads parts that need an extra when they are first used, and says what to install if it is missing.

Every installation includes all modules, but not the dependencies of all extras.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


def load(module: str, *, part: str, extra: str) -> ModuleType:
    """The ModuleNotFoundError says what `part` needs to be installed."""
    with needing(part, extra=extra):
        return import_module(module)


@contextmanager
def needing(
    part: str, *, extra: str = "", package: str = "", refusal: type[Exception] | None = None
) -> Iterator[None]:
    """Say what `part` needs to be installed, if an import in the block fails. The innermost block says it.

    Args:
        part: what needs the import, as the subject of a sentence.
        extra: the extra that installs it.
        package: without an extra, the package on the index that brings it.
        refusal: the exception to raise; by default ModuleNotFoundError, with the missing package as its name.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        # A part of a package is missing because the package is.
        name = (missing.name or "").partition(".")[0]
        if name in ("agentpay", "agentpay_server"):
            raise
        # Imported late: it loads more than the rest of an installation without the extra.
        from agentpay._installation import install_command  # noqa: PLC0415

        install = install_command(extra) if extra else f"pip install {package}"
        is_said = isinstance(missing.__cause__, ModuleNotFoundError)
        sentence = f"{missing}" if is_said else f"{part} needs {name}, which is not installed: {install}"
        raise (refusal(sentence) if refusal else ModuleNotFoundError(sentence, name=name)) from missing
