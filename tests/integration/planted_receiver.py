"""A webhook receiver with one planted fault, in its own process: `planted_receiver.py PORT FILE FAULT`.

It stores and acts in one: a line with the event's identifier at the end of FILE. Standard library only, so
that it starts quickly after a kill.
"""

import hashlib
import hmac
import json
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT, FILE, FAULT = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
SECRET = os.environ["AGENTPAY_WEBHOOK_SECRET"]
OLD_SECRET = "whsec_rotated_out"
LIMIT = 2**20
KNOWN = ("transfer.settled", "transfer.initiated")

lock = threading.Lock()
newest = [""]


def digest(body: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def canonical(body: bytes) -> bytes:
    return json.dumps(json.loads(body), sort_keys=True).encode()


def is_genuine(body: bytes, headers) -> bool:
    if FAULT == "verifies nothing":
        return True
    names = ["X-Service-Signature", "X-Service-Signature-Next"]
    if FAULT == "ignores the next signature":
        names.pop()
    offered = [headers[name] for name in names if headers[name]]
    if FAULT == "accepts what is not signed" and not offered:
        return True
    if FAULT == "fails on malformed signatures":
        for each in offered:
            bytes.fromhex(each)
    secrets = [SECRET, OLD_SECRET] if FAULT == "accepts an old secret for ever" else [SECRET]
    return any(
        hmac.compare_digest(digest(body, secret), each.encode("latin-1").decode("latin-1"))
        for secret in secrets
        for each in offered
        if each.isascii()
    )


def is_genuine_json(body: bytes, headers) -> bool:
    """Looks the parsed JSON up among what was ever signed: another body with the same JSON passes."""
    if is_genuine(body, headers):
        return True
    try:
        event = json.loads(body)
        compact = json.dumps(event, separators=(" , ", " : ")).replace("transfer", "\\u0074ransfer", 1)
    except (ValueError, TypeError):
        return False
    return is_genuine(compact.encode(), headers)


def has_acted(event_id: str) -> bool:
    return FILE.exists() and event_id in FILE.read_text()


def store(event: dict) -> None:
    if FAULT == "trusts the order":
        if event["created_at"] < newest[0]:
            return
        newest[0] = event["created_at"]
    if FAULT == "checks, then acts":
        if has_acted(event["id"]):
            return
        time.sleep(0.05)
    elif FAULT != "no deduplication" and has_acted(event["id"]):
        return
    with FILE.open("a") as file:
        file.write(event["id"] + "\n")
        file.flush()
        os.fsync(file.fileno())


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None:
        pass

    def respond(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.respond(405)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        if length > LIMIT:
            self.close_connection = True
            return self.respond(413)
        body = self.rfile.read(length)
        check = is_genuine_json if FAULT == "compares parsed JSON" else is_genuine
        if not check(body, self.headers):
            return self.respond(401)
        try:
            event = json.loads(body)
            event["id"], event["type"], event["created_at"]
        except (ValueError, TypeError, KeyError, RecursionError):
            if FAULT == "fails on malformed bodies":
                raise
            return self.respond(400)
        age = datetime.now(UTC) - datetime.fromisoformat(event["created_at"])
        if FAULT == "refuses late deliveries" and age > timedelta(minutes=5):
            return self.respond(400)
        if FAULT == "refuses unknown types" and event["type"] not in KNOWN:
            return self.respond(400)
        if FAULT == "responds before it stores":
            self.respond(200)
            time.sleep(0.2)
            with lock:
                store(event)
            return None
        if FAULT == "checks, then acts":
            store(event)
        else:
            with lock:
                store(event)
        return self.respond(200)


class Server(ThreadingHTTPServer):
    def handle_error(self, *args) -> None:
        pass


Server(("127.0.0.1", PORT), Receiver).serve_forever()
