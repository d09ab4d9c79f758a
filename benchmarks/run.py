"""Run the benchmarks, all or those that are named, and print one table."""

import importlib
import sys

from harness import Result, print_table

MODULES = (
    "deliveries",
    "fixtures",
    "imports",
    "sdk_call",
    "sessions",
    "snapshots",
    "start",
    "transfer",
    "rpc",
    "typing_cold",
    "webhooks",
    "window",
    "stores",
    "memory",
)


def main() -> None:
    results: list[Result] = []
    for name in sys.argv[1:] or MODULES:
        results += importlib.import_module(name).run()
    print_table(results)


if __name__ == "__main__":
    main()
