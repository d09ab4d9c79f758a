"""Starts `agentpay.mcp.command`, so that Ctrl-C ends the process at once, also while that is loaded.

A thread that reads standard input cannot be interrupted, and nothing is lost: a reference names its purchase,
whatever ends a process.
"""

import signal
import threading
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until the host closes the connection."""
    is_ours = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, signal.SIG_DFL) if is_ours else None
    try:
        from agentpay.mcp.command import run  # noqa: PLC0415 - see the top

        run(argv)
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, previous)


if __name__ == "__main__":
    main()
