"""Run all benchmarks, or the named ones, and print one table.

    python benchmarks/run.py transfer stores
    python benchmarks/run.py --write

`--write` runs those whose figures the page of guarantees shows, and writes them there.
"""

import argparse
import importlib

import pages
from harness import Result, print_table

MODULES = (
    "concurrency",
    "deliveries",
    "fixtures",
    "imports",
    "install",
    "landings",
    "payments",
    "sdk_call",
    "sessions",
    "simulator",
    "snapshots",
    "start",
    "transfer",
    "rpc",
    "typing_cold",
    "webhooks",
    "window",
    "stores",
    "throughput",
    "memory",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run benchmarks, and print one table.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(MODULES)}; all by default"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the figures into the pages that show them"
    )
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - set(MODULES)):
        parser.error(f"there is no {', '.join(unknown)}")
    if asked.write and asked.names:
        parser.error("--write measures everything that the pages show, in one run: do not name benchmarks")
    names = asked.names or [name for name in MODULES if name in pages.BENCHMARKS or not asked.write]
    results: dict[str, list[Result]] = {name: importlib.import_module(name).run() for name in names}
    print_table([result for found in results.values() for result in found])
    if asked.write:
        pages.write(results)


if __name__ == "__main__":
    main()
