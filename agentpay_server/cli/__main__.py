"""`python -m agentpay_server.cli` is `agentpay-server`."""

from agentpay_server.cli import main

if __name__ == "__main__":
    main(prog_name="agentpay-server")
