"""A process that forks a child for every order that it reads, a line of JSON on standard input.

Python and its imports take a second to start, a fork takes milliseconds. One child runs at a time. It tells
its pid, then what the command prints; its exit status follows when it has ended.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def tell(**words: object) -> None:
    print(json.dumps(words), flush=True)  # noqa: T201 - it is what it is for


def fork_for_each_order(command: Callable[[dict[str, Any]], object]) -> None:
    """Fork for every line; the child runs the command, in the order's environment."""
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                os.environ.update(order["environment"])
                tell(pid=os.getpid())
                command(order)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        tell(status=os.waitstatus_to_exitcode(status))
