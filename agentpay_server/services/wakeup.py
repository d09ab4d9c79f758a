"""Word to whoever waits for due work that a due time has changed."""

import asyncio


class Wakeup:
    """Wakes all of its listeners; each clears its own event before it looks for work."""

    def __init__(self) -> None:
        self._listeners: list[asyncio.Event] = []

    def listener(self) -> asyncio.Event:
        """Return an event that is set whenever `set` is called."""
        event = asyncio.Event()
        self._listeners.append(event)
        return event

    def set(self) -> None:
        """Wake every listener."""
        for event in self._listeners:
            event.set()
