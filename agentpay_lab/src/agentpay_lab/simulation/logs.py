"""Checks the logs of simulated servers for secrets and unexpected exceptions."""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from agentpay_lab.simulation.chance import ACTOR
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.platform.errors import Problem

_EXPECTED: Final = (ChainUnreachableError, DatabaseUnavailableError, Problem, TimeoutError)
_LOGGERS: Final = ("agentpay_server", "agentpay")


class LogChecks(logging.Handler):
    """No record may contain one of `secrets`."""

    def __init__(
        self,
        secrets: Collection[str],
        violate: Callable[..., None],
        note: Callable[[str, str, str], None],
    ) -> None:
        super().__init__(logging.INFO)
        self._secrets, self._violate, self._note = secrets, violate, note
        self._lines = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        actor = ACTOR.get()
        if actor is not None and actor.is_dead:
            return
        who = "-" if actor is None else actor.name
        text = self._lines.format(record)
        if any(secret in text for secret in self._secrets):
            self._violate("a secret is in a log", record.name, record.getMessage()[:80])
        error = None if record.exc_info is None else record.exc_info[1]
        if error is not None and not isinstance(error, _EXPECTED):
            self._violate("an unexpected exception", record.getMessage()[:120], repr(error)[:200])
        if record.levelno >= logging.WARNING:
            self._note("log", who, record.getMessage()[:200])


@contextmanager
def checked_logs(checks: LogChecks, level: int) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.setLevel(level)
        each.propagate = False
        each.addHandler(checks)
    try:
        yield
    finally:
        for each, (was, propagated) in zip(loggers, before, strict=True):
            each.removeHandler(checks)
            each.setLevel(was)
            each.propagate = propagated
