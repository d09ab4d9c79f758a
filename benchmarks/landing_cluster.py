"""A cluster that costs little: it executes nothing, and lands each transaction a fixed time after it is sent.

It runs in a separate process. Its arguments are the seconds until a transaction is confirmed, and the seconds
from a request to its response. It prints its address, and ends with its standard input. Amounts of transfers
and mints are posted without checks; every account exists. At its end it prints how often each
method was called.
"""

import asyncio
import base64
import collections
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import rpc_world
from attrs import frozen
from solders.pubkey import Pubkey
from solders.token.state import Mint, TokenAccount, TokenAccountState
from solders.transaction import VersionedTransaction

from agentpay_server.chain.custody import TEST_MINT_AUTHORITY
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_DECIMALS

SLOT_SECONDS = 0.3
FINALIZED_SECONDS = 9.6
GENESIS_HASH = "GH7ome3EiwEr7tu9JuTh2dpYWBJK3z69Xm1ZE3MEE6JC"
RENT_LAMPORTS = 890_880
FIRST_SLOT = 100_000
LAMPORTS = 10**15
MINT_TO, TRANSFER_CHECKED, MINT_TO_CHECKED = 7, 12, 14


@frozen
class Sent:
    """A transaction that was sent: when, in base64, with its log."""

    at: float
    slot: int
    raw: str


class Cluster:
    """The state, and one method for each of the JSON-RPC methods."""

    def __init__(self, landing_seconds: float) -> None:
        self._landing_seconds = landing_seconds
        self._start = time.monotonic()
        self._sent: dict[str, Sent] = {}
        self._amounts: dict[str, int] = collections.defaultdict(int)
        self._histories: dict[str, list[str]] = collections.defaultdict(list)
        self.counts: dict[str, int] = collections.Counter()
        authority = Pubkey.from_string(rpc_world.new_custody().address(TEST_MINT_AUTHORITY))
        self._mint = bytes(Mint(authority, 10**15, USDC_DECIMALS, is_initialized=True, freeze_authority=None))

    def respond(self, body: bytes) -> bytes:
        """Return the response to a request."""
        request = json.loads(body)
        self.counts[request["method"]] += 1
        result = getattr(self, _name(request["method"]))(*request.get("params", ()))
        return json.dumps({"jsonrpc": "2.0", "result": result, "id": request["id"]}).encode()

    def _get_genesis_hash(self) -> str:
        return GENESIS_HASH

    def _get_version(self) -> object:
        return {"solana-core": "3.0.0", "feature-set": 1}

    def _get_epoch_info(self, options: object) -> object:
        slot = self._slot() - int(FINALIZED_SECONDS / SLOT_SECONDS)
        return {"absoluteSlot": slot, "blockHeight": slot - 1000, "epoch": 1, "slotIndex": 1}

    def _get_latest_blockhash(self, options: object) -> object:
        slot = self._slot()
        blockhash = str(Pubkey(slot.to_bytes(32, "big")))
        return self._with_slot({"blockhash": blockhash, "lastValidBlockHeight": slot - 1000 + 150})

    def _get_block(self, slot: int, options: object) -> object:
        return {"blockHeight": slot - 1000, "blockhash": str(Pubkey(slot.to_bytes(32, "big")))}

    def _get_minimum_balance_for_rent_exemption(self, size: int) -> int:
        return RENT_LAMPORTS + 6_960 * size

    def _get_multiple_accounts(self, addresses: list[str], options: object) -> object:
        return self._with_slot([self._account(address) for address in addresses])

    def _get_signature_statuses(self, signatures: list[str], options: object) -> object:
        return self._with_slot([self._status(signature) for signature in signatures])

    def _get_signatures_for_address(self, address: str, options: dict[str, Any]) -> object:
        lines = []
        for signature in reversed(self._histories[address]):
            status = self._status(signature)
            if signature == options.get("until"):
                break
            is_final = status is not None and status["confirmationStatus"] == "finalized"
            if status is not None and (is_final or options["commitment"] != "finalized"):
                lines.append({"signature": signature, **status})
        return lines[:1000]

    def _get_transaction(self, signature: str, options: object) -> object:
        if self._status(signature) is None:
            return None
        sent = self._sent[signature]
        logs = [f"Program {TOKEN_PROGRAM} invoke [1]", f"Program {TOKEN_PROGRAM} success"] * 3
        meta = {"err": None, "fee": 5000, "logMessages": logs, "status": {"Ok": None}}
        return {"slot": sent.slot, "transaction": [sent.raw, "base64"], "meta": meta, "version": "legacy"}

    def _send_transaction(self, raw: str, options: object) -> str:
        transaction = VersionedTransaction.from_bytes(base64.b64decode(raw))
        signature = str(transaction.signatures[0])
        if signature not in self._sent:
            slot = self._slot() + int(self._landing_seconds / SLOT_SECONDS)
            self._sent[signature] = Sent(time.monotonic(), slot, raw)
            self._book(signature, transaction)
        return signature

    def _book(self, signature: str, transaction: VersionedTransaction) -> None:
        keys = transaction.message.account_keys
        for step in transaction.message.instructions:
            if keys[step.program_id_index] != TOKEN_PROGRAM:
                continue
            kind, amount = step.data[0], int.from_bytes(step.data[1:9], "little")
            accounts = [str(keys[place]) for place in step.accounts]
            if kind == TRANSFER_CHECKED:
                self._amounts[accounts[0]] -= amount
                self._amounts[accounts[2]] += amount
                self._histories[accounts[0]].append(signature)
                self._histories[accounts[2]].append(signature)
            elif kind in (MINT_TO, MINT_TO_CHECKED):
                self._amounts[accounts[1]] += amount
                self._histories[accounts[1]].append(signature)

    def _status(self, signature: str) -> dict[str, Any] | None:
        sent = self._sent.get(signature)
        age = 0 if sent is None else time.monotonic() - sent.at
        if sent is None or age < self._landing_seconds:
            return None
        commitment = "finalized" if age > FINALIZED_SECONDS else "confirmed"
        return {"slot": sent.slot, "err": None, "confirmations": 1, "confirmationStatus": commitment}

    def _account(self, address: str) -> object:
        data = self._mint
        if address != rpc_world.USDC:
            mint, owner = Pubkey.from_string(rpc_world.USDC), Pubkey.default()
            state = TokenAccountState.Initialized
            data = bytes(TokenAccount(mint, owner, self._amounts[address], None, state, None, 0, None))
        encoded = [base64.b64encode(data).decode(), "base64"]
        return {"data": encoded, "owner": str(TOKEN_PROGRAM), "lamports": LAMPORTS, "executable": False}

    def _with_slot(self, value: object) -> object:
        return {"context": {"slot": self._slot()}, "value": value}

    def _slot(self) -> int:
        return FIRST_SLOT + int((time.monotonic() - self._start) / SLOT_SECONDS)


def _name(method: str) -> str:
    """Return the name here of a method of Solana."""
    return "_" + re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), method)


class _Connection(asyncio.Protocol):
    """One kept connection: requests with a known length, answered after a pause."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._cluster, self._seconds = cluster, seconds
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(rest) >= length:
            self._received = rest[length:]
            asyncio.get_running_loop().call_later(self._seconds, self._respond, rest[:length])

    def _respond(self, body: bytes) -> None:
        content = self._cluster.respond(body)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        self._transport.write(head.encode() + content)


async def _serve(landing_seconds: float, seconds: float) -> None:
    cluster = Cluster(landing_seconds)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(cluster, seconds), "127.0.0.1", 0, backlog=1024)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps(cluster.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), float(sys.argv[2])))
