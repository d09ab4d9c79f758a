"""Ports that a test must know before something listens on them, or after it has stopped."""

import random
import socket
from contextlib import suppress

_GIVEN_TO_NOBODY = range(20_000, 32_000)
"""Below the ports that Linux and macOS give to whoever asks for any."""


def steady_port() -> int:
    """Return a free loopback port that no other program is given meanwhile, unless it asks for this one.

    A port that the system chose is free again once its socket is closed: the next connection may get it.
    """
    while True:
        port = random.choice(_GIVEN_TO_NOBODY)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
