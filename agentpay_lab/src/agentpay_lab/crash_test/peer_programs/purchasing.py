"""Shared by the agents in Python: buy what a plan lists, and resume after a kill from the journal."""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

SECONDS = 70
"""How long a purchase may take."""


def read_plan() -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return plan


async def buy(
    plan: dict[str, Any],
    fetch: Callable[[str], Awaitable[Any]],
    *,
    final: tuple[type[Exception], ...] = (),
) -> None:
    """Try each purchase until it is served or its tries are used up, those before a kill included.

    After an error in `final`, the client tells its callers not to retry.
    """
    done = Path(plan["done"])
    lines = done.read_text().splitlines() if done.exists() else []

    def note(text: str) -> None:
        with done.open("a") as file:
            file.write(f"{text}\n")

    for name, path in plan["purchases"]:
        if f"{name} served" in lines or f"{name} unserved" in lines:
            continue
        is_served = False
        for _ in range(lines.count(f"{name} asked"), plan["tries"]):
            note(f"{name} asked")
            try:
                is_served = (await fetch(plan["shop"] + path)).status_code == 200
            except Exception as error:  # noqa: BLE001 - whatever it raises, the agent has no resource
                sys.stderr.write(f"{name} {error!r}\n")
                if isinstance(error, final):
                    break
            if is_served:
                break
        note(f"{name} {'served' if is_served else 'unserved'}")
