"""What may watch the calls of a client. Watching never changes a call: a watcher raises nothing."""

from collections.abc import Mapping
from typing import Protocol

from agentpay._requests import PreparedRequest, Reply


class Watch(Protocol):
    """One call that is watched.

    Attributes:
        headers: header fields that its requests carry for whoever watches on the other side.
    """

    @property
    def headers(self) -> Mapping[str, str]: ...

    def succeeded(self, model: object, reply: Reply) -> None:
        """Note that the call ended with a response, and what it meant."""
        ...

    def failed(self, error: BaseException) -> None:
        """Note that the call ended with an exception."""
        ...


class Observer(Protocol):
    """What is asked to watch each call of a client and its copies."""

    def begin(self, request: PreparedRequest) -> Watch:
        """Begin to watch a call."""
        ...
