"""Spans and metrics, as the SDK of OpenTelemetry records them."""

import httpx
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sdk_world import ACCOUNT, KEY, TRANSFER, answer, cancelled, hang, paid, refusal

from agentpay import AsyncAgentPay, errors
from agentpay.integrations.opentelemetry import instrument

PAYMENT = {"from_": "acct_a", "to": "acct_b", "amount": "7.77", "memo": "hush", "idempotency_key": "key-1"}


class Recorded:
    """The recorded spans and metrics, from the SDK's processors."""

    def __init__(self):
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meter_provider = MeterProvider([self._metrics])

    def watch(self, client):
        return instrument(client, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)

    @property
    def spans(self):
        return self._spans.get_finished_spans()

    def points(self, name):
        data = self._metrics.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def recorded():
    return Recorded()


def test_a_call_is_a_span_that_covers_its_retries(caller, recorded):
    script = caller.script(
        answer(503, {"error": "service_unavailable", "message": "busy"}),
        answer(200, {**TRANSFER, "amount_usdc": "7.770000"}, x_request_id="req_1"),
    )
    assert recorded.watch(caller.client) is caller.client
    caller(lambda c: c.transfers.create(**PAYMENT))
    (span,) = recorded.spans
    assert (span.name, span.kind) == ("agentpay.transfers.create", SpanKind.CLIENT)
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "agentpay.operation": "transfers.create",
        "agentpay.request_id": "req_1",
        "agentpay.transfer_id": "txn_a",
        "http.request.method": "POST",
        "http.request.resend_count": 1,
        "http.response.status_code": 200,
        "server.address": "api.example.com",
        "server.port": 443,
    }
    # Both attempts are of one trace for the service, too.
    trace_id = trace.format_trace_id(span.context.trace_id)
    assert {r.headers["traceparent"].split("-")[1] for r in script.requests} == {trace_id}
    (retries,) = recorded.points("agentpay.client.retries")
    assert retries.value == 1
    (duration,) = recorded.points("agentpay.client.operation.duration")
    assert duration.count == 1
    assert duration.attributes["agentpay.operation"] == "transfers.create"


def test_a_span_is_a_child_of_the_current_span_and_ends_with_the_call(caller, recorded):
    script = caller.script(*[answer(200, ACCOUNT)] * 2)
    tracer = recorded.tracer_provider.get_tracer("app")

    async def work():
        with tracer.start_as_current_span("outer") as outer:
            found = caller.client.accounts.get("acct_a")
            if caller.is_async:
                await found
            assert trace.get_current_span() is outer

    caller.run(work)
    # Without instrumentation, no context is sent.
    assert "traceparent" not in script.requests[0].headers
    recorded.watch(caller.client)
    caller.run(work)
    _, inner, outer = recorded.spans
    assert inner.parent.span_id == outer.context.span_id


def test_a_refusal_records_its_error_code(caller, recorded):
    caller.script(refusal(402, "policy_violation", transfer_id="txn_a", status="rejected"))
    recorded.watch(caller.client)
    with pytest.raises(errors.PolicyViolationError):
        caller(lambda c: c.transfers.create(**PAYMENT))
    (span,) = recorded.spans
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "policy_violation"
    assert span.attributes["http.response.status_code"] == 402
    assert span.attributes["agentpay.transfer_id"] == "txn_a"
    (duration,) = recorded.points("agentpay.client.operation.duration")
    assert duration.attributes["error.type"] == "policy_violation"
    assert not recorded.points("agentpay.client.unknown_outcomes")


def test_failed_attempts_and_an_unknown_outcome_are_counted(caller, recorded):
    caller.script(*[httpx.ReadError("reset")] * 3)
    recorded.watch(caller.client)
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        caller(lambda c: c.transfers.create(**PAYMENT))
    (span,) = recorded.spans
    assert span.attributes["agentpay.outcome_unknown"] is True
    assert span.attributes["error.type"] == "TransferOutcomeUnknownError"
    (unknown,) = recorded.points("agentpay.client.unknown_outcomes")
    (retries,) = recorded.points("agentpay.client.retries")
    assert (unknown.value, retries.value, caught.value.retries_made) == (1, 2, 2)


@pytest.mark.anyio
async def test_a_cancelled_call_ends_its_span(recorded):
    client = AsyncAgentPay(api_key=KEY, base_url="https://a.example", transport=httpx.MockTransport(hang))
    recorded.watch(client)
    error = await cancelled(lambda: client.transfers.create(**PAYMENT))
    (span,) = recorded.spans
    assert span.attributes["error.type"] == type(error).__name__


def test_no_private_data_is_recorded_or_propagated(caller, recorded):
    script = caller.script(lambda _: answer(200, {**TRANSFER, "amount_usdc": "7.770000"}))
    recorded.watch(caller.client)
    token = context.attach(baggage.set_baggage("customer", "hush"))
    try:
        caller(lambda c: c.transfers.create(**PAYMENT))
    finally:
        context.detach(token)
    (span,) = recorded.spans
    events = [(event.name, dict(event.attributes)) for event in span.events]
    # Not their times, in whose digits any amount may be.
    told = [span.name, dict(span.attributes), events, span.status.description, dict(span.resource.attributes)]
    told += [dict(point.attributes) for point in recorded.points("agentpay.client.operation.duration")]
    for secret in (KEY, "hush", "7.77", "key-1", "acct_a"):
        assert secret not in str(told)
    assert "baggage" not in script.requests[0].headers


def test_copies_and_undescribed_requests_are_instrumented_too(caller, recorded):
    caller.script(*[answer(200, ACCOUNT)] * 2, answer(200, {}))
    recorded.watch(caller.client)
    caller(lambda c: c.with_options(timeout=5).accounts.get("acct_a"))
    caller(lambda c: c.accounts.get("acct_a"))
    caller(lambda c: c.request("GET", "/v1/new"))
    assert [span.name for span in recorded.spans] == [
        "agentpay.accounts.get",
        "agentpay.accounts.get",
        "agentpay.request",
    ]


@pytest.mark.parametrize("moment", ["on_start", "on_end"])
def test_an_error_of_a_span_processor_never_reaches_the_caller(caller, recorded, moment, caplog):
    class Faulty(SpanProcessor):
        def on_start(self, span, parent_context=None):
            if moment == "on_start":
                raise OSError("disk full")

        def on_end(self, span):
            if moment == "on_end":
                raise OSError("disk full")

    recorded.tracer_provider.add_span_processor(Faulty())
    caller.script(paid)
    recorded.watch(caller.client)
    before = trace.get_current_span()
    transfer = caller(lambda c: c.transfers.create(**{**PAYMENT, "amount": "1.5"}))
    assert transfer.status == "settled"
    assert trace.get_current_span() is before
    assert "could not be recorded" in caplog.text
