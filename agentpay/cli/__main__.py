"""`python -m agentpay.cli` is `agentpay`."""

from agentpay.cli import main

if __name__ == "__main__":
    main(prog_name="agentpay")
