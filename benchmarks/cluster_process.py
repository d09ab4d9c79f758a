"""A cluster in a separate process, so that its CPU time is counted apart: the embedded chain behind JSON-RPC.

It prints its two addresses, and ends with its standard input.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import embedded_node
import rpc_world

from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY

if __name__ == "__main__":
    custody = rpc_world.new_custody()
    with embedded_node.running(custody.address(TREASURY), custody.address(TEST_MINT_AUTHORITY)) as node:
        print(json.dumps({"url": node.url, "websocket_url": node.websocket_url}), flush=True)
        sys.stdin.read()
