"""An agent of a crash test, in a process of its own: makes its purchases, each under its own key.

It keeps nothing but the names of the purchases that it is done with, in a file. When it is killed, the next
one tries all others again, with the same keys.

    python -m agentpay_server._crash_test.agent PLAN.json
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from agentpay import AgentPay, errors

_TRIES: Final = 4
_SERVICE_TRIES: Final = 200
_PAUSE_SECONDS: Final = 0.1
_SELLER_SECONDS: Final = 10.0
_AGAIN_SHARE: Final = 0.1


class Agent:
    """Buys.

    Args:
        plan: `services`, URLs of the service; `api_key`; `account_id`; `shop`, the URL of the seller;
            `purchases`, their names and paths; `done`, the file with what is done; `seed`.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._random = random.Random(plan["seed"])  # noqa: S311 - no secret depends on it
        self._shop = httpx.Client(base_url=plan["shop"], timeout=_SELLER_SECONDS, trust_env=False)
        self._clients = [
            AgentPay(api_key=plan["api_key"], base_url=url, max_retries=0, timeout=30)
            for url in plan["services"]
        ]
        self._done = Path(plan["done"])
        parts = urlsplit(plan["shop"])
        self._origin = f"{parts.scheme}://{parts.netloc}"

    def run(self) -> None:
        """Buy what is not done yet, and now and again something that is."""
        done = dict(line.split(" ") for line in self._lines())
        for name, path in self._plan["purchases"]:
            if name in done and self._random.random() > _AGAIN_SHARE:
                continue
            outcome, asked = self._buy(name, path)
            with self._done.open("a") as file:
                file.write(f"{name} {outcome}:{asked}\n")

    def _lines(self) -> Iterator[str]:
        if self._done.exists():
            # A line that a kill has cut off is no line.
            yield from (line for line in self._done.read_text().splitlines() if ":" in line)

    def _buy(self, name: str, path: str) -> tuple[str, int]:
        """Try a purchase some times under its one key; return what came of it, and how often it asked."""
        asked = 0
        for _ in range(_TRIES):
            challenge = self._got(path, {})
            if challenge is None or challenge.status_code != 402:
                continue
            asked += 1
            header = self._header(name, path, challenge)
            if isinstance(header, str):
                return header, asked
            served = self._got(path, header)
            if served is not None and served.status_code == 200:
                return "served", asked
        return "unserved", asked

    def _got(self, path: str, header: dict[str, str]) -> httpx.Response | None:
        try:
            return self._shop.get(path, headers=header)
        except httpx.HTTPError:
            return None

    def _header(self, name: str, path: str, challenge: httpx.Response) -> dict[str, str] | str:
        """Return the header that pays; a word where the service refuses."""
        for _ in range(_SERVICE_TRIES):
            client = self._random.choice(self._clients)
            try:
                payment = client.payments.authorize(
                    account_id=self._plan["account_id"],
                    idempotency_key=name,
                    origin=self._origin,
                    url=self._origin + path,
                    headers=challenge.headers.multi_items(),
                    body=challenge.text[:65_536],
                )
            except errors.TransferRejectedError:
                return "refused"
            except errors.UnpayableChallengeError:
                return "unpayable"
            except errors.ConflictError as conflict:
                return str(conflict.code)
            except errors.AgentPayError as error:
                # A server that is down, or says that it cannot tell: the key makes trying again safe.
                sys.stderr.write(f"{name}: {error}\n")
                time.sleep(_PAUSE_SECONDS)
                continue
            assert payment.header is not None  # noqa: S101 - nothing here waits for approval
            return {payment.header.name: payment.header.value}
        return "unreachable"


if __name__ == "__main__":
    Agent(json.loads(Path(sys.argv[1]).read_text("utf-8"))).run()
