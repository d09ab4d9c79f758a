"""The command `agentpay-server`, and `python -m agentpay_server`."""

import atexit
import gc
import sys

from agentpay._loading import load


def main() -> None:
    # Collecting all that is loaded would only delay the end: by 0.3 s for a server.
    atexit.register(gc.freeze)
    try:
        cli = load("agentpay_server.cli", part="the server", extra="server")
    except ModuleNotFoundError as missing:
        sys.exit(f"agentpay-server: {missing}")
    cli.main(prog_name="agentpay-server")


if __name__ == "__main__":
    main()
