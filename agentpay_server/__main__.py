"""The command `agentpay-server`, and `python -m agentpay_server`."""

import sys

from agentpay._loading import load


def main() -> None:
    try:
        cli = load("agentpay_server.cli", part="the server", extra="server")
    except ModuleNotFoundError as missing:
        sys.exit(f"agentpay-server: {missing}")
    cli.main(prog_name="agentpay-server")


if __name__ == "__main__":
    main()
