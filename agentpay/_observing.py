"""Interfaces for observing calls, for example for tracing. Observers must not raise or change a call."""

from collections.abc import Mapping
from typing import Protocol

from agentpay._requests import PreparedRequest, Reply


class Watch(Protocol):
    """An observed call.

    Attributes:
        headers: header fields to add to its requests, such as trace context.
    """

    @property
    def headers(self) -> Mapping[str, str]: ...

    def succeeded(self, model: object, reply: Reply) -> None:
        """The call succeeded, with this model and reply."""
        ...

    def failed(self, error: BaseException) -> None:
        """The call failed."""
        ...


class Observer(Protocol):
    """Observes each call of a client and its copies."""

    def begin(self, request: PreparedRequest) -> Watch:
        """A call begins."""
        ...
