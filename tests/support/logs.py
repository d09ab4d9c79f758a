"""The log of servers in this process, in the formats of `agentpay-server serve`."""

import logging
from contextlib import AbstractContextManager
from typing import Literal, TextIO

from agentpay_server.platform.logs import LogFormat, logging_to


def written_to(
    stream: TextIO, style: Literal["json", "text"] = "json", level: int = logging.INFO
) -> AbstractContextManager[None]:
    """Write what is logged meanwhile to a stream."""
    return logging_to(stream, LogFormat(style), level)
