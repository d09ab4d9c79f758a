"""Spans and metrics of a client's calls, with OpenTelemetry.

One span per call, including retries, and three instruments. They contain nothing private or secret: no
amounts, memos, names or keys. Errors of an exporter never reach the caller.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from agentpay._async.client import AsyncAgentPay
from agentpay._calls.requests import ANY_SUCCESS, PreparedRequest
from agentpay._calls.settings import logger
from agentpay._loading import needing
from agentpay._sync.client import AgentPay
from agentpay._version import __version__
from agentpay.contract.responses import RawResponse
from agentpay.errors import AgentPayError, APIError, OutcomeUnknownError

with needing("agentpay.integrations.opentelemetry", package="opentelemetry-api"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["instrument"]

C = TypeVar("C", AgentPay, AsyncAgentPay)

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120)

# Only W3C trace context. Baggage may contain private data of the caller, and the service is a third party.
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def instrument(
    client: C,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> C:
    """Record a span and metrics for each call of a client, and of all its copies.

    A span is named after the method, such as `agentpay.transfers.create`. It covers all attempts of the call,
    and its context is sent along as `traceparent`. The instruments are the histogram
    `agentpay.client.operation.duration`, in seconds, and the counters `agentpay.client.retries` and
    `agentpay.client.unknown_outcomes`.

    Args:
        client: the client; it is changed in place.
        tracer_provider: where spans go; by default the global provider of OpenTelemetry.
        meter_provider: where metrics go; by default the global provider of OpenTelemetry.

    Returns:
        The client.
    """
    tracer = trace.get_tracer("agentpay", __version__, tracer_provider)
    meter = metrics.get_meter("agentpay", __version__, meter_provider)
    address = urlsplit(client.base_url)
    port = address.port or {"http": 80, "https": 443}[address.scheme]
    client._http.observer = _Observer(  # noqa: SLF001 - of this package
        tracer, meter, {"server.address": address.hostname or "", "server.port": port}
    )
    return client


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Log errors of the recording, which must not make a call fail that moves money."""
    try:
        yield
    except Exception:  # noqa: BLE001 - of any kind
        with contextlib.suppress(Exception):
            logger.exception("a call could not be recorded with OpenTelemetry")


class _Observer:
    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter, server: Mapping[str, Any]) -> None:
        self.tracer = tracer
        self.server = server
        self.duration = meter.create_histogram(
            "agentpay.client.operation.duration",
            unit="s",
            description="Duration of calls, including retries.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.retries = meter.create_counter(
            "agentpay.client.retries", unit="{retry}", description="Attempts after the first."
        )
        self.unknown_outcomes = meter.create_counter(
            "agentpay.client.unknown_outcomes",
            unit="{call}",
            description="Calls with an unknown outcome.",
        )

    def begin(self, request: PreparedRequest) -> "_Watch":
        return _Watch(self, request)


class _Watch:
    def __init__(self, observer: _Observer, request: PreparedRequest) -> None:
        self.headers: dict[str, str] = {}
        self._observer = observer
        # The path of a `client.request` may contain identifiers, which have too many values for a metric.
        name = "request" if request.endpoint.responses is ANY_SUCCESS else request.endpoint.name
        self._attributes: dict[str, Any] = {
            "agentpay.operation": name,
            "http.request.method": request.endpoint.method,
            **observer.server,
        }
        self._span: trace.Span = trace.INVALID_SPAN
        self._token: Any = None
        self._started = time.perf_counter()
        with _harmless():
            self._span = observer.tracer.start_span(
                f"agentpay.{name}", kind=SpanKind.CLIENT, attributes=self._attributes
            )
            # Makes spans of the HTTP library its children.
            self._token = context.attach(trace.set_span_in_context(self._span))
            _PROPAGATOR.inject(self.headers)

    def succeeded(self, model: object, reply: RawResponse) -> None:
        with _harmless():
            transfer_id = getattr(model, "transfer_id", None)
            self._end(reply.status_code, reply.retries_made, reply.request_id, transfer_id)

    def failed(self, error: BaseException) -> None:
        with _harmless():
            cause = error.__cause__ if isinstance(error, OutcomeUnknownError) else error
            answer = cause if isinstance(cause, APIError) else None
            code = error.code if isinstance(error, APIError) else None
            self._attributes["error.type"] = code or type(error).__name__
            self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            if isinstance(error, OutcomeUnknownError):
                self._span.set_attribute("agentpay.outcome_unknown", True)  # noqa: FBT003 - of OpenTelemetry
                self._observer.unknown_outcomes.add(1, self._attributes)
            self._end(
                None if answer is None else answer.status_code,
                error.retries_made if isinstance(error, AgentPayError) else 0,
                None if answer is None else answer.request_id,
                getattr(error, "transfer_id", None),
            )

    def _end(self, status: int | None, retries: int, request_id: str | None, transfer_id: object) -> None:
        try:
            if status is not None:
                self._attributes["http.response.status_code"] = status
            self._observer.duration.record(time.perf_counter() - self._started, self._attributes)
            if retries:
                self._observer.retries.add(retries, self._attributes)
                self._span.set_attribute("http.request.resend_count", retries)
            if request_id is not None:
                self._span.set_attribute("agentpay.request_id", request_id)
            if isinstance(transfer_id, str):
                self._span.set_attribute("agentpay.transfer_id", transfer_id)
            self._span.set_attributes(self._attributes)
        finally:
            if self._token is not None:
                context.detach(self._token)
            self._span.end()
