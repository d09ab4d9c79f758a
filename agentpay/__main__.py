"""The command `agentpay`, and `python -m agentpay`: loads the command line, or says what to install."""

import atexit
import gc
import sys

from agentpay._loading import load


def main() -> None:
    """Run the command line, or print one line that names the missing extra."""
    # A command ends soon. Collecting what it loads would take a tenth of its time, and once more at its end.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    # The command of httpx, which only its own users run, would load a highlighter of source code.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    try:
        cli = load("agentpay.cli", part="the command line", extra="cli")
    except ModuleNotFoundError as missing:
        sys.exit(f"agentpay: {missing}")
    cli.main(prog_name="agentpay")


if __name__ == "__main__":
    main()
