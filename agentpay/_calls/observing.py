"""Interfaces for observing calls, for example for tracing. Observers must not raise or change a call."""

from collections.abc import Mapping
from typing import Protocol

from agentpay._calls.requests import PreparedRequest
from agentpay.contract.responses import RawResponse


class CallSpan(Protocol):
    """`headers` are added to the call's requests, such as trace context."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def succeeded(self, model: object, reply: RawResponse) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Observer(Protocol):
    """Observes each call of a client and its copies."""

    def begin(self, request: PreparedRequest) -> CallSpan: ...
