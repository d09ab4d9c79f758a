"""The command `agentpay-lab`, and `python -m agentpay_lab`."""

import atexit
import gc

from agentpay_lab import cli


def main() -> None:
    # Collecting all that is loaded would only delay the end.
    atexit.register(gc.freeze)
    cli.main(prog_name="agentpay-lab")


if __name__ == "__main__":
    main()
