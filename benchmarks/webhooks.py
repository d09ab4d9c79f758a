"""`unwrap` of a 700-byte transfer.settled, against what it cannot do without and its peers; and the import.

The floor is the code that one would write by hand: hmac over the body, a constant-time comparison with the
header, `json.loads`, and a cattrs converter that makes the same class with decimals and aware datetimes, yet
refuses nothing: no repeated keys, no coercion, no NaN. The peers verify and read the same event, each under
its own scheme: `stripe.Webhook.construct_event` and `openai`'s `webhooks.unwrap`. Imports are measured in
fresh processes, the start of the interpreter subtracted.
"""

import base64
import hashlib
import hmac
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from cattrs import Converter
from harness import Result, compare, print_table

from agentpay.webhooks import TransferSettled, sign, unwrap

SECRET = "whsec_" + "5" * 43
PAYLOAD = json.dumps(
    {
        "id": "evt_01h455vb4pex5vsknk084sn02q",
        "type": "transfer.settled",
        "created_at": "2026-01-31T12:00:00.000Z",
        "data": {
            "transfer_id": "txn_01h455vb4pex5vsknk084sn02q",
            "account_id": "acct_01h455vb4pex5vsknk084sn02q",
            "amount_usdc": "25.000000",
            "tx_signature": "5" * 88,
            "settled_at": "2026-01-31T12:00:00.000Z",
            # Possible additions of a later version, up to 700 bytes.
            "memo": "m" * 192,
            "chain_explorer_url": "https://explorer.solana.com/tx/" + "5" * 63,
        },
    },
    separators=(",", ":"),
).encode()
HEADERS = {
    "Host": "receiver.example",
    "User-Agent": "agentpay-server/0.1",
    "Content-Type": "application/json",
    "Content-Length": str(len(PAYLOAD)),
    "X-Service-Event-Id": "evt_01h455vb4pex5vsknk084sn02q",
    "X-Service-Delivery-Attempt": "1",
    "X-Service-Signature": sign(PAYLOAD, SECRET),
}


def by_hand() -> Callable[[], object]:
    converter = Converter()
    converter.register_structure_hook(datetime, lambda value, _: datetime.fromisoformat(value))
    converter.register_structure_hook(Decimal, lambda value, _: Decimal(value))
    key = SECRET.encode()

    def receive() -> TransferSettled:
        expected = hmac.new(key, PAYLOAD, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, HEADERS["X-Service-Signature"]):
            raise ValueError
        return converter.structure(json.loads(PAYLOAD), TransferSettled)

    return receive


def stripe() -> Callable[[], object]:
    library = importlib.import_module("stripe")
    text, stamp = PAYLOAD.decode(), int(time.time())
    signature = hmac.new(SECRET.encode(), f"{stamp}.{text}".encode(), hashlib.sha256).hexdigest()
    header = f"t={stamp},v1={signature}"
    return lambda: library.Webhook.construct_event(text, header, SECRET, tolerance=None)


def openai() -> Callable[[], object]:
    library = importlib.import_module("openai")
    text, stamp, key = PAYLOAD.decode(), str(int(time.time())), b"5" * 32
    signature = base64.b64encode(hmac.digest(key, f"wh_1.{stamp}.{text}".encode(), "sha256")).decode()
    headers = {"webhook-id": "wh_1", "webhook-timestamp": stamp, "webhook-signature": f"v1,{signature}"}
    client = library.OpenAI(api_key="x", webhook_secret="whsec_" + base64.b64encode(key).decode())
    return lambda: client.webhooks.unwrap(text, headers)


def with_headers() -> object:
    return unwrap(PAYLOAD, HEADERS, SECRET)


def import_seconds(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def imports(rounds: int = 25) -> list[Result]:
    subjects = {
        "import agentpay.webhooks": (1.3, "import agentpay.webhooks"),
        "the same, and what the first unwrap loads": (
            None,
            "import agentpay.webhooks, agentpay._calls.deliveries",
        ),
    }
    floor = "import attrs, cattrs"
    taken: dict[str, list[float]] = {"": [], floor: [], **{code: [] for _, code in subjects.values()}}
    for _ in range(rounds):
        for code, seconds in taken.items():
            seconds.append(import_seconds(code))
    bare = statistics.median(taken.pop(""))
    micros = {code: (statistics.median(seconds) - bare) * 1e6 for code, seconds in taken.items()}
    return [
        Result(name, micros[code], micros[floor], micros[code] / micros[floor], bound)
        for name, (bound, code) in subjects.items()
    ]


def run() -> list[Result]:
    """Return the ratios of `unwrap` to its floor and to its peers, and that of the import."""
    assert len(PAYLOAD) == 700
    hand = by_hand()
    assert hand() == with_headers()
    # Short and many rounds: on a busy machine a long one is interrupted.
    results = [
        compare(
            "unwrap, against a check by hand",
            subject=with_headers,
            floor=hand,
            bound=1.5,
            calls=200,
            rounds=75,
        )
    ]
    # stripe takes a signature, openai takes headers.
    for name, peer in (("stripe construct_event", stripe), ("openai webhooks.unwrap", openai)):
        try:
            floor = peer()
        except ImportError:
            print(f"{name}: not installed, not measured", file=sys.stderr)
            continue
        results.append(compare(f"unwrap, against {name}", subject=with_headers, floor=floor, bound=0.2))
    return results + imports()


if __name__ == "__main__":
    print_table(run())
