"""The server's logs: one line per event, silent by default, and never a secret."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from logs import written_to
from outages import database_away
from server_world import Funded, raw_client

from agentpay import AgentPay
from agentpay_server import AgentPayServer


class Lines:
    """The records that are logged meanwhile."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.text.splitlines()) if line["event"] == name]


@pytest.fixture
def lines() -> Iterator[Lines]:
    stream = io.StringIO()
    with written_to(stream):
        yield Lines(stream)


def test_every_response_is_logged_with_request_route_status_and_duration(
    lines: Lines, client: AgentPay, http: httpx.Client
) -> None:
    account = client.accounts.create(name="Payer")
    answer = http.get(f"/v1/accounts/{account.account_id}/balance")
    line = lines.events("request.answered")[-1]
    assert line.pop("time").endswith("Z")
    assert line.pop("duration_ms") > 0
    assert line.pop("key_id").startswith("key_")
    assert line == {
        "level": "info",
        "event": "request.answered",
        "request_id": answer.headers["x-request-id"],
        "method": "GET",
        "route": "/v1/accounts/{account_id}/balance",
        "status": 200,
    }
    http.get("/v1/accounts/acct_unknown")
    line = lines.events("request.answered")[-1]
    assert (line["status"], line["error"]) == (404, "not_found")


def test_a_transfer_is_followed_from_its_request_to_its_end(
    lines: Lines, client: AgentPay, funded: Funded
) -> None:
    source, target = funded("10"), funded("0.000001")
    transfer = client.transfers.create(from_=source.account_id, to=target.account_id, amount="1")
    (settled,) = lines.events("transfer.settled")
    request = lines.events("request.answered")[-1]
    assert settled["transfer_id"] == request["transfer_id"] == transfer.transfer_id
    assert settled["request_id"] == request["request_id"]
    assert settled["tx_signature"] == transfer.tx_signature
    assert settled["duration_ms"] == 0  # the clock is paused


def test_a_refused_transfer_is_logged_with_the_reason(
    lines: Lines, http: httpx.Client, funded: Funded
) -> None:
    source, target = funded("1"), funded("1")
    body = {"from": source.account_id, "to": target.account_id, "amount": "2", "idempotency_key": "k"}
    answer = http.post("/v1/transfers", json=body)
    (rejected,) = lines.events("transfer.rejected")
    assert rejected["error"] == "insufficient_balance"
    assert rejected["transfer_id"] == answer.json()["transfer_id"]
    assert lines.events("request.answered")[-1]["transfer_id"] == answer.json()["transfer_id"]


def test_a_delivery_is_logged_without_its_url(
    lines: Lines, server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    source, target = funded("10"), funded("0.000001")
    inbox = server.webhook_inbox(events=["transfer.settled"])
    client.transfers.create(from_=source.account_id, to=target.account_id, amount="1")
    server.sandbox.clock.advance(0)
    (line,) = lines.events("delivery.attempted")
    assert (line["attempt"], line["status"], line["delivery_status"]) == (1, 200, "delivered")
    assert line["event_id"] == inbox.events[0].id
    assert inbox.url not in lines.text


def test_probes_are_not_logged_and_polling_for_events_only_at_debug(
    server: AgentPayServer, client: AgentPay
) -> None:
    for level, expected in ((logging.INFO, 0), (logging.DEBUG, 1)):
        stream = io.StringIO()
        with written_to(stream, level=level), raw_client(server, "") as http:
            client.events.list()
            for path in ("/healthz", "/readyz", "/metrics"):
                http.get(path)
        assert ("request.answered" in stream.getvalue()) == bool(expected)
        assert stream.getvalue().count('"route":"/ext/v1/console/events"') == expected


def test_no_secret_and_no_text_of_callers_is_logged(
    lines: Lines, server: AgentPayServer, client: AgentPay, funded: Funded, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = funded("10"), funded("1")
    agent = server.agent_keys.create(source.account_id, name="planted-name")
    webhook = client.webhooks.create(url="https://planted.example/hook", events=["transfer.settled"])
    client.transfers.create(
        from_=source.account_id,
        to=target.account_id,
        amount="1",
        memo="planted-memo",
        idempotency_key="planted-key",
    )
    with raw_client(server, agent.key) as http:
        http.get("/v1/accounts/planted-identifier?cursor=planted-cursor")
        http.post("/planted-path", content="planted-body", headers={"X-Planted": "planted-header"})
    with raw_client(server, "ap_operator_planted-secret") as http:
        http.get("/v1/accounts")
    for secret in (server.operator_key, agent.key, webhook.secret):
        assert secret not in lines.text
        assert secret[-20:] not in lines.text
    assert "planted" not in lines.text.lower()


def test_an_internal_error_is_logged_as_one_line_with_its_traceback(
    lines: Lines, server: AgentPayServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("first\nsecond")

    monkeypatch.setattr(server._running.server.services.built["accounts"].accounts, "list", fail)
    answer = http.get("/v1/accounts")
    (line,) = lines.events("request.failed")
    assert line["level"] == "error"
    assert line["request_id"] == answer.headers["x-request-id"]
    assert "ZeroDivisionError: first\nsecond" in line["exception"]
    assert lines.events("request.answered")[-1]["status"] == 500


def test_library_warnings_are_logged_in_the_same_format(lines: Lines) -> None:
    logging.getLogger("somebody.else").warning('"quoted"\nand %s', "broken")
    logging.getLogger("somebody.else").info("not worth a line")
    (line,) = lines.events("log")
    assert (line["level"], line["logger"]) == ("warning", "somebody.else")
    assert line["message"] == '"quoted"\nand broken'


def test_the_text_format_is_one_line_with_quoted_values(
    server: AgentPayServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ValueError("why")

    monkeypatch.setattr(server._running.server.services.built["accounts"].accounts, "list", fail)
    stream = io.StringIO()
    with written_to(stream, "text"):
        with database_away(server, 'x "y"\nz'):
            http.get("/v1/accounts/acct_1")
        answer = http.get("/v1/accounts")
    first, _, failed, *_, cause, last = stream.getvalue().splitlines()
    request = f"request_id={answer.headers['x-request-id']}"
    # Without the fields that have no value, such as the lines left out.
    assert first.endswith(r' detail="x \"y\"\nz"')
    assert f"ERROR request.failed {request}" in failed
    assert cause == "ValueError: why"
    assert f"request.answered {request} method=GET route=/v1/accounts status=500" in last
