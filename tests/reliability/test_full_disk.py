"""A disk without room: writes fail, and reads do not. A child process limits the size of its own files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="only POSIX limits the size of files")

SERVING = """
import json, logging, resource, sys
import httpx
from agentpay_server import AgentPayServer

records = []


class Collector(logging.Handler):
    def emit(self, record):
        records.append((record.getMessage().split()[0], record.exc_info is not None))


logging.getLogger("agentpay_server").addHandler(Collector(logging.WARNING))
with AgentPayServer(data_dir=sys.argv[1], clock="system") as server:
    url, client = server.listen(), server.client()
    bot, shop = (client.accounts.create(name=name).account_id for name in ("bot", "shop"))
    server.sandbox.fund(bot, "10")
    order = {"from_": bot, "to": shop, "amount": "1", "idempotency_key": "order"}

    def ready():
        answer = httpx.get(f"{url}/readyz", timeout=30)
        return answer.json().get("not_ready", [])

    def transfer():
        try:
            return client.transfers.create(**order, max_retries=0).status
        except Exception as error:
            return type(error).__name__

    told = {"before": ready()}
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
    while "database" not in (full := ready()):
        pass
    told["full"] = full
    told["transfers"] = sorted({transfer() for _ in range(20)})
    told["unread"] = 0
    records.clear()
    for _ in range(200):
        try:
            client.accounts.balance(bot, max_retries=0)
        except Exception:
            told["unread"] += 1
    told["tracebacks"] = sum(has for _, has in records)
    told["lines"] = len(records)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    while ready():
        pass
    told["after"] = transfer()
    told["paid"] = str(client.accounts.balance(shop).balance_usdc)
print(json.dumps(told))
"""


def test_readiness_sees_a_full_disk_and_the_log_stays_short(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVING, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["before"] == []
    assert "database" in told["full"]
    assert "settled" not in told["transfers"]
    assert told["unread"] == 200
    assert told["tracebacks"] == 0, told
    assert told["lines"] < 100, told
    # Nothing is lost, and nothing was paid twice.
    assert (told["after"], told["paid"]) == ("settled", "1.000000")
