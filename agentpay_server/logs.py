"""The server's logs: events with fields, one line each.

Loggers below `agentpay_server` are silent unless they have a handler and the level INFO, as with the command
line. An event names its request by identifier. Fields contain identifiers, codes and durations, never a
caller's data, so they cannot contain secrets.
"""

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, TextIO
from weakref import WeakKeyDictionary

REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("agentpay_request_id", default=None)
"""The request that the current task is processing."""

ROOT: Final = "agentpay_server"
logging.getLogger(ROOT).addHandler(logging.NullHandler())

_QUIET_SECONDS: Final = 1.0

Field = str | int | float | None


class LogFormat(StrEnum):
    """The format of log lines."""

    JSON = "json"
    """One JSON object a line."""

    TEXT = "text"
    """Lines for people."""


class Event:
    """The message of a log record: a name, and fields in order. The text is formatted only when printed."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, Field]) -> None:
        self.name: str = name
        self.fields: Mapping[str, Field] = fields

    def __str__(self) -> str:
        told = (f"{name}={_shown(value)}" for name, value in self.fields.items() if value is not None)
        return " ".join([self.name, *told])


def log(
    logger: logging.Logger, level: int, event: str, *, exception: BaseException | None = None, **fields: Field
) -> None:
    """Log an event.

    Args:
        logger: the module's.
        level: of `logging`.
        event: its name: `thing.happened`.
        exception: an exception to print with it. If it has an `outage`, the event is logged as
            `<outage>.unavailable` instead, without a traceback, and at most once a second.
        fields: its fields; None values are left out.
    """
    outage = getattr(exception, "outage", None)
    if outage is not None:
        _log_outage(logger, level, f"{outage}.unavailable", str(exception))
    elif logger.isEnabledFor(level):
        logger.log(
            level, Event(event, {"request_id": REQUEST_ID.get(), **fields}), exc_info=exception, stacklevel=2
        )


class _Outages:
    """When each outage was last logged, and how often it was suppressed since, for one event loop."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def left_out(self, event: str, now: float) -> int | None:
        """Return how many lines were suppressed before this one; None if this one is suppressed too."""
        if now < self._told_at.get(event, -_QUIET_SECONDS) + _QUIET_SECONDS:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return None
        self._told_at[event] = now
        return self._left_out.pop(event, 0)


# Per event loop, because each server has its own: one server's outage must not suppress another's.
_OUTAGES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Outages]] = WeakKeyDictionary()


def _log_outage(logger: logging.Logger, level: int, event: str, detail: str) -> None:
    if not logger.isEnabledFor(level):
        return
    loop = asyncio.get_running_loop()
    left_out = _OUTAGES.setdefault(loop, _Outages()).left_out(event, loop.time())
    if left_out is not None:
        fields = {"request_id": REQUEST_ID.get(), "detail": detail, "left_out": left_out or None}
        logger.log(level, Event(event, fields), stacklevel=3)


@contextmanager
def logging_to(stream: TextIO, style: LogFormat, level: int = logging.INFO) -> Iterator[None]:
    """Print the server's events, and warnings of the libraries that it uses, to a stream.

    Args:
        stream: where to print.
        style: how to print an event.
        level: the lowest level of events to print.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter())
    root, ours = logging.getLogger(), logging.getLogger(ROOT)
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(level)
    try:
        yield
    finally:
        ours.setLevel(before)
        root.removeHandler(handler)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, request_id, then the event's own fields."""

    def __init__(self) -> None:
        super().__init__()
        self._print = json.JSONEncoder(separators=(",", ":")).encode
        self._moment = _Moment()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; other libraries' records are logged as the event `log`."""
        message = record.msg
        if not isinstance(message, Event):
            said = {"request_id": REQUEST_ID.get(), "logger": record.name, "message": record.getMessage()}
            message = Event("log", said)
        line: dict[str, Field] = {
            "time": self._moment.text(record.created),
            "level": record.levelname.lower(),
            "event": message.name,
        }
        line.update({name: value for name, value in message.fields.items() if value is not None})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._print(line)


class TextFormatter(logging.Formatter):
    """A line for people: time, level, event, fields; then the traceback, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._moment = _Moment()

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        lines = [f"{self._moment.text(record.created)} {record.levelname} {record.getMessage()}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


class _Moment:
    """Formats times as in the contract; the text of the second is cached, because many lines share it."""

    def __init__(self) -> None:
        self._second, self._text = -1, ""

    def text(self, seconds: float) -> str:
        second = int(seconds)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((seconds - second) * 1000):03d}Z"


def _shown(value: Field) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text else json.dumps(text)
