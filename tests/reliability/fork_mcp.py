"""A process that has loaded the MCP server, and forks one for every order; see `forking.py`."""

import anyio._backends._asyncio  # noqa: F401 - loaded for the children
import uvicorn.protocols.http.h11_impl  # noqa: F401
from forking import fork_for_each_order

from agentpay.mcp import __main__ as command
from agentpay.mcp import serving  # noqa: F401 - loaded for the children

if __name__ == "__main__":
    fork_for_each_order(lambda order: command.main(order["arguments"]))
