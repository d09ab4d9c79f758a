"""The command `agentpay`, and `python -m agentpay`: loads the command line, or says what to install."""

import atexit
import gc
import sys

from agentpay._loading import load


def main() -> None:
    """Run the command line, or print one line that names the missing extra."""
    # Collecting all that is loaded would only delay the end.
    atexit.register(gc.freeze)
    try:
        cli = load("agentpay.cli", part="the command line", extra="cli")
    except ModuleNotFoundError as missing:
        sys.exit(f"agentpay: {missing}")
    cli.main(prog_name="agentpay")


if __name__ == "__main__":
    main()
