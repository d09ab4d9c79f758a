"""Server-sent events, sans-IO: chunks of a response become events (format: WHATWG HTML, 9.2).

The service sends one line of JSON for each event. Comments keep the connection alive.
"""

from typing import Any, Final

from agentpay.contract import codec, json_text
from agentpay.contract.events import Event
from agentpay.errors import ResponseValidationError

_EVENT_MAX_BYTES: Final = 1024 * 1024


class EventReader:
    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that a chunk completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = [event for line in lines if (event := self._line(line.rstrip(b"\r"))) is not None]
        if self._size + len(self._rest) > _EVENT_MAX_BYTES:
            raise _unreadable("an event is larger than 1 MiB")
        return events

    def _line(self, line: bytes) -> Event | None:
        if not line:
            name, data = self._name, "\n".join(self._data)
            self._name, self._data, self._size = "", [], 0
            # A named event, such as `reset`, is about the stream itself.
            return _event(data) if data and not name else None
        field, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._size += len(line)
        elif field == "event":
            self._name = value
        return None


def _event(data: str) -> Event:
    try:
        event: Any = codec.structure(json_text.parse_json(data.encode()), Event)
    except (json_text.InvalidJsonError, codec.InvalidValueError) as error:
        raise _unreadable(str(error)) from None
    return event  # type: ignore[no-any-return]


def _unreadable(problem: str) -> ResponseValidationError:
    return ResponseValidationError(
        f"the stream of events is not what the service documents: {problem}. Check that base_url is the "
        "address of the service"
    )
