"""The built program of payment channels, which every embedded machine runs."""

from functools import cache
from importlib.resources import files
from typing import Final

_BUILT: Final = "channels.so"


@cache
def built_program() -> bytes:
    """Return the ELF file that `scripts/channel_program.py` builds from `channels.c`."""
    return files("agentpay_server.chain.channels").joinpath(_BUILT).read_bytes()
