"""A receiver in another language, that knows the contract and not this code, verifies what is signed here."""

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from webhook_world import OTHER, PAYLOAD, SECRET, payload

from agentpay.webhooks import sign

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_a_node_receiver_accepts_signed_deliveries_and_refuses_others():
    text = payload(type="moon.landed", data={"memo": "Grüße 😀\u2028"})
    deliveries = [
        (PAYLOAD, sign(PAYLOAD, SECRET), SECRET, 200),
        (text, sign(text, "ключ 🔑"), "ключ 🔑", 200),
        (PAYLOAD + b" ", sign(PAYLOAD, SECRET), SECRET, 401),
        (PAYLOAD, sign(PAYLOAD, OTHER), SECRET, 401),
        (PAYLOAD, "", SECRET, 401),
    ]
    lines = [
        json.dumps(
            {
                "headers": {"x-service-signature": signature},
                "body": base64.b64encode(body).decode(),
                "secret": secret,
            }
        )
        for body, signature, secret, _ in deliveries
    ]
    script = Path(__file__).with_name("receiver.mjs")
    done = subprocess.run(
        [NODE, script], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=60
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["status"] for answer in answers] == [status for *_, status in deliveries]
    assert [answer["type"] for answer in answers[:2]] == ["transfer.settled", "moon.landed"]
