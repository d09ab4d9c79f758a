"""What a snapshot keeps of an object: its captured attributes, and how they are restored."""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Restore: TypeAlias = Callable[[], None]
"""Restores a captured state, any number of times."""


def captured(owner: object, *names: str) -> Restore:
    """Capture attributes of an object or class.

    A dictionary, list, set or deque is copied, each time that it is restored too; its items must not change.
    A value with a method `capture` captures itself, and stays in place. Other values must not change.
    """
    values = {name: getattr(owner, name) for name in names}
    restorers = [value.capture() for value in values.values() if hasattr(value, "capture")]
    kept = {name: _copied(value) for name, value in values.items() if not hasattr(value, "capture")}

    def restore() -> None:
        for restore_part in restorers:
            restore_part()
        for name, value in kept.items():
            setattr(owner, name, _copied(value))

    return restore


def _copied(value: object) -> object:
    return value.copy() if isinstance(value, dict | list | set | deque) else value
