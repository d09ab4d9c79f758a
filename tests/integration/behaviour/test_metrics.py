"""`/metrics`: what a server counts, in Prometheus' text format."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from absent import make_absent
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from server_world import START, Funded, raw_client, refused

from agentpay import AgentPay, PolicyViolationError
from agentpay_server import AgentPayServer, Settings

Value = Callable[..., float]


@pytest.fixture
def value(server: AgentPayServer) -> Iterator[Value]:
    """Reads one sample: `value("agentpay_transfers_total", outcome="settled")`; 0 for a missing one."""
    with raw_client(server, "") as http:

        def read(name: str, **labels: str) -> float:
            answer = http.get("/metrics")
            assert answer.status_code == 200
            return samples(answer).get((name, tuple(sorted(labels.items()))), 0.0)

        yield read


def samples(answer: httpx.Response) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_the_format_is_the_text_format_and_no_key_is_needed(server: AgentPayServer) -> None:
    with raw_client(server, "") as http:
        answer = http.get("/metrics")
    assert answer.headers.get_list("content-type") == ["text/plain; version=0.0.4; charset=utf-8"]
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert names == {
        "agentpay_requests",
        "agentpay_transfers",
        "agentpay_settlement_seconds",
        "agentpay_connections",
        "agentpay_connections_dropped",
        "agentpay_delivery_lag_seconds",
        "agentpay_queue_depth",
        "agentpay_treasury_sol",
        "agentpay_stopped_accounts",
    }


def test_a_metrics_key_protects_the_metrics_alone() -> None:
    with AgentPayServer(settings=Settings(metrics_key="of-the-scraper")) as server:
        with raw_client(server, "") as http:
            refused(http.get("/metrics"), "unauthorized")
            refused(http.post("/metrics"), "unauthorized")
            assert http.get("/healthz").status_code == 200
            assert http.get("/readyz").status_code == 200
        for other in ("of-the-scraper2", "of-the-scrape", str(server.operator_key)):
            with raw_client(server, other) as http:
                refused(http.get("/metrics"), "unauthorized")
        with raw_client(server, "of-the-scraper") as scraper:
            assert "agentpay_requests_total" in scraper.get("/metrics").text
            assert scraper.post("/metrics").status_code == 405
            refused(scraper.get("/v1/accounts"), "unauthorized")


@pytest.mark.parametrize("key", ["", "two words", "tab\t", "é", "line\n", "x" * 201])
def test_a_metrics_key_fits_into_a_header_and_is_not_in_errors(key: str) -> None:
    with pytest.raises(ValueError, match="1 to 200 visible ASCII characters") as caught:
        Settings(metrics_key=key)
    assert not key or key not in str(caught.value)
    assert "of-the-scraper" not in repr(Settings(metrics_key="of-the-scraper"))


def test_requests_are_counted_by_path_template(
    server: AgentPayServer, client: AgentPay, http: httpx.Client, value: Value
) -> None:
    account = client.accounts.create(name="Payer")
    client.accounts.get(account.account_id)
    http.get("/v1/accounts/acct_planted")
    http.get("/v1/planted")
    http.request("PLANTED", "/v1/accounts")
    with raw_client(server, "ap_operator_planted") as stranger:
        stranger.get("/v1/accounts")
    count = "agentpay_requests_total"
    template = "/v1/accounts/{account_id}"
    assert value(count, route="/v1/accounts", method="POST", status="201") == 1
    assert value(count, route=template, method="GET", status="200") == 1
    assert value(count, route=template, method="GET", status="404") == 1
    assert value(count, route="none", method="GET", status="404") == 1
    assert value(count, route="none", method="GET", status="401") == 1
    assert value(count, route="/v1/accounts", method="other", status="405") == 1
    with raw_client(server, "") as plain:
        text = plain.get("/metrics").text
    assert "planted" not in text.lower()
    assert account.account_id not in text


def test_transfers_are_counted_once_by_outcome(client: AgentPay, funded: Funded, value: Value) -> None:
    source, target = funded("10"), funded("0.000001")
    for _ in range(3):
        client.transfers.create(
            from_=source.account_id, to=target.account_id, amount="1", idempotency_key="the same"
        )
    client.policies.update(source.account_id, max_single_transfer=2, escalation_threshold="1.5")
    for _ in range(2):
        with pytest.raises(PolicyViolationError):
            client.transfers.create(
                from_=source.account_id, to=target.account_id, amount="3", idempotency_key="too much"
            )
    client.transfers.create(from_=source.account_id, to=target.account_id, amount="2")
    count = "agentpay_transfers_total"
    assert value(count, outcome="settled", error="") == 1
    assert value(count, outcome="rejected", error="policy_violation") == 1
    assert value(count, outcome="pending_approval", error="") == 1
    assert value("agentpay_settlement_seconds_count") == 1
    assert value("agentpay_settlement_seconds_sum") == 0  # the clock is paused
    assert value("agentpay_settlement_seconds_bucket", le="0.005") == 1
    assert value("agentpay_settlement_seconds_bucket", le="+Inf") == 1


def test_pending_deliveries_are_queue_depth_and_lag(
    server: AgentPayServer, client: AgentPay, funded: Funded, value: Value
) -> None:
    source, target = funded("10"), funded("0.000001")
    inbox = server.webhook_inbox()
    client.transfers.create(from_=source.account_id, to=target.account_id, amount="1")
    assert value("agentpay_queue_depth", queue="deliveries_due") == 2
    assert value("agentpay_delivery_lag_seconds") == 0
    clock: Any = server._running.server.context.clock
    clock.move_to(clock.now_us() + 1_500_000)
    assert value("agentpay_delivery_lag_seconds") == 1.5
    server.sandbox.clock.advance(0)
    assert len(inbox.receipts) == 2
    assert value("agentpay_queue_depth", queue="deliveries_due") == 0
    assert value("agentpay_queue_depth", queue="transfers_submitted") == 0
    assert value("agentpay_delivery_lag_seconds") == 0


def test_servers_of_one_process_have_separate_metrics(server: AgentPayServer, value: Value) -> None:
    with AgentPayServer(clock=START) as other:
        other.client().accounts.create(name="elsewhere")
    assert value("agentpay_requests_total", route="/v1/accounts", method="POST", status="201") == 0
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("agentpay")]


def test_metrics_without_their_extra_name_it(server: AgentPayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    make_absent(monkeypatch, "prometheus_client")
    with raw_client(server, "") as http:
        body = refused(http.get("/metrics"), "not_found")
    assert body["message"] == "/metrics needs prometheus_client: install the extra ops of agentpay-kit."
