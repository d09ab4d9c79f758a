"""A process that has loaded the MCP server, and forks one for every line that it reads.

As `fork_server.py`, which says why. A child says its pid and then what the command says, and its exit status
follows when it has ended.
"""

import json
import os
import sys

import anyio._backends._asyncio  # noqa: F401 - loaded for the children
import uvicorn.protocols.http.h11_impl  # noqa: F401

from agentpay.mcp import __main__ as command
from agentpay.mcp import serving  # noqa: F401 - loaded for the children


def tell(**words: object) -> None:
    print(json.dumps(words), flush=True)  # noqa: T201 - it is what it is for


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                os.environ.update(order["environment"])
                tell(pid=os.getpid())
                command.main(order["arguments"])
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        tell(status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
