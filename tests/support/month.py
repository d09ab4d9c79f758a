"""A month with many transfers, written into the books as copies of real ones: real ones take minutes."""

import json
from datetime import datetime, timedelta
from typing import Any

import books
import money
from attrs import frozen

from agentpay import Transfer
from agentpay_server import AgentPayServer
from agentpay_server.platform.clock import from_us, manual_clock, to_us
from agentpay_server.platform.randomness import Identifiers, randomness

TRANSFERS = 20_000
DAYS = 30


@frozen(kw_only=True)
class Month:
    """A server, two of its accounts that pay each other, and the month of that.

    `since` is before its first transfer and the deposits; `until` is the time of its last one.
    """

    server: AgentPayServer
    accounts: tuple[str, str]
    since: datetime
    until: datetime


def of(server: AgentPayServer) -> Month:
    """Write the month. The n-th transfer has the memo `invoice n` and 0.01 USDC and n millionths."""
    client, begin = server.client(), server.sandbox.clock.now()
    one, other = (client.accounts.create(name=name).account_id for name in ("North", "South"))
    for account_id in (one, other):
        server.sandbox.fund(account_id, 100)
    samples = [
        client.transfers.create(from_=payer, to=payee, amount=1, memo="sample")
        for payer, payee in ((one, other), (other, one))
    ]
    copies: dict[str, list[dict[str, Any]]] = {"transfers": [], "entries": [], "events": []}
    clock = manual_clock(begin)
    identifiers = Identifiers(clock, randomness(7))
    parts = [_rows(server, sample) for sample in samples]
    step_us = DAYS * 86_400_000_000 // TRANSFERS // 1_000 * 1_000
    for number in range(TRANSFERS):
        at_us = to_us(begin) + (number + 1) * step_us
        clock.move_to(at_us)
        # Both of a pair pay the same, so that the balances on chain stay right.
        micro = 10_000 + number // 2
        signature = f"{number:05}" + "1" * 83
        names = {
            str(samples[number % 2].transfer_id): identifiers.new("txn_"),
            str(samples[number % 2].tx_signature): signature,
        }
        for table, rows in parts[number % 2].items():
            for row in rows:
                copies[table].append(_copy(row, names, identifiers, number=number, micro=micro, at_us=at_us))
    for table, rows in copies.items():
        money.on_owner(
            server, lambda context, table=table, rows=rows: books.add(context.database, table, rows)
        )
    server.sandbox.clock.advance(days=DAYS, hours=1)
    client.policies.update(one, max_single_transfer=5)
    return Month(
        server=server, accounts=(one, other), since=begin - timedelta(seconds=1), until=from_us(at_us)
    )


def _rows(server: AgentPayServer, transfer: Transfer) -> dict[str, list[dict[str, Any]]]:
    return {
        table: money.rows(server, table, transfer_id=transfer.transfer_id)
        for table in ("transfers", "entries", "events")
    }


def _copy(
    row: dict[str, Any],
    names: dict[str, str],
    identifiers: Identifiers,
    *,
    number: int,
    micro: int,
    at_us: int,
) -> dict[str, Any]:
    copy = {name: names.get(value, value) if isinstance(value, str) else value for name, value in row.items()}
    copy["created_us"] = at_us
    fixed = {
        "amount": micro,
        "memo": f"invoice {number:05}",
        "memo_key": f"invoice {number:05}".encode(),
        "idempotency_key": f"month-{number}",
        "key_expires_us": None,
        "settled_us": at_us,
        "event_id": identifiers.new("evt_"),
        "transaction_id": identifiers.new("entry_"),
    }
    copy |= {name: value for name, value in fixed.items() if name in copy}
    if "body" in copy:
        body = json.loads(row["body"])
        body |= {"id": copy["event_id"], "created_at": _wire(at_us)}
        body["data"] = {name: names.get(value, value) for name, value in body["data"].items()}
        body["data"] |= {"amount_usdc": f"{micro // 1_000_000}.{micro % 1_000_000:06}"}
        if "settled_at" in body["data"]:
            body["data"]["settled_at"] = _wire(at_us)
        copy["body"] = json.dumps(body)
    return copy


def _wire(at_us: int) -> str:
    return from_us(at_us).isoformat(timespec="milliseconds").replace("+00:00", "Z")
