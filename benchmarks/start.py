"""From `AgentPayServer()` to the first answer, chain included, warm: bound in milliseconds, not in a ratio.

The floor is LiteSVM alone: making its virtual machine is most of it.
"""

from harness import Result, compare
from solders.litesvm import LiteSVM

from agentpay_server import AgentPayServer

BOUND_MS = 15.0


def run() -> list[Result]:
    """Return how long a start takes, as a multiple of a virtual machine's."""

    def start() -> None:
        with AgentPayServer() as server:
            server.client().accounts.list()

    result = compare(
        "AgentPayServer() to first answer, and close", subject=start, floor=LiteSVM, bound=None, calls=5
    )
    verdict = "ok" if result.subject_us <= BOUND_MS * 1000 else "MISSED"
    name = f"{result.name} (at most {BOUND_MS:.0f} ms: {verdict})"
    return [Result(name, result.subject_us, result.floor_us, result.ratio, None)]
