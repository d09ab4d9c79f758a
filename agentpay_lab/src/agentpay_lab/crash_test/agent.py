"""An agent of a crash test, in its own process: makes its purchases, each under its own key.

Stores only the names of finished purchases, in a file. After a kill, the next agent retries all others with
the same keys.

    python -P agent.py PLAN.json
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from agentpay import AgentPay, errors
from agentpay.payments import PaymentAuth

_TRIES: Final = 4
_SERVICE_TRIES: Final = 200
_PAUSE_SECONDS: Final = 0.1
_AGAIN_SHARE: Final = 0.1


class PlannedBuyer:
    """Makes the purchases of a plan.

    `plan` holds `services` and `shop`, URLs; `api_key`; `account_id`; `purchases`, names and paths; `done`,
    the file of finished purchases; `seed`.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._random = random.Random(plan["seed"])  # noqa: S311 - no secret depends on it
        self._done = Path(plan["done"])
        self._shops = [self._shop(url) for url in plan["services"]]

    def run(self) -> None:
        """Make the unfinished purchases, and repeat some finished ones."""
        done = dict(line.split(" ") for line in self._lines())
        for name, path in self._plan["purchases"]:
            if name in done and self._random.random() > _AGAIN_SHARE:
                continue
            outcome, asked = self._buy(name, path)
            with self._done.open("a") as file:
                file.write(f"{name} {outcome}:{asked}\n")

    def _shop(self, service_url: str) -> httpx.Client:
        plan = self._plan
        service = AgentPay(api_key=plan["api_key"], base_url=service_url, max_retries=0, timeout=30)
        auth = PaymentAuth(service, account_id=plan["account_id"])
        return httpx.Client(base_url=plan["shop"], auth=auth, trust_env=False)

    def _lines(self) -> Iterator[str]:
        if self._done.exists():
            # A kill may leave a partial line.
            yield from (line for line in self._done.read_text().splitlines() if ":" in line)

    def _buy(self, name: str, path: str) -> tuple[str, int]:
        """Try a purchase a few times; return the outcome and the number of tries."""
        tries = 0
        for _ in range(_SERVICE_TRIES):
            try:
                tries += 1
                response = self._random.choice(self._shops).get(path, extensions={"payment_key": name})
                if response.status_code == 200:
                    return "served", tries
            except errors.PaymentRefusedError:
                # The seller asks again despite a payment. The same key presents the same payment.
                pass
            except errors.TransferRejectedError:
                return "refused", tries
            except errors.UnpayableChallengeError:
                return "unpayable", tries
            except errors.ConflictError as conflict:
                return str(conflict.code), tries
            except httpx.HTTPError:
                pass
            except errors.AgentPayError as error:
                # The server is down, or the outcome is unknown: the key makes a retry safe.
                sys.stderr.write(f"{name}: {error}\n")
                time.sleep(_PAUSE_SECONDS)
                tries -= 1
            if tries == _TRIES:
                break
        return "unserved", tries


if __name__ == "__main__":
    PlannedBuyer(json.loads(Path(sys.argv[1]).read_text("utf-8"))).run()
