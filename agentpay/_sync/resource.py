# Generated from _async by scripts/unasync.py. Edit that one.
"""What all resources share: how a prepared request is exchanged for the model of its answer.

Every method of a resource takes `timeout` (seconds, None without limit) and `max_retries` for this call
alone, and raises the exceptions of `agentpay.errors`; a docstring names those with a meaning of their own.
"""

# `timeout` is handed to the HTTP exchange, which answers with an outcome; `asyncio.timeout` would lose it.
# ruff: noqa: ASYNC109

from collections.abc import Callable
from typing import Any

from agentpay._requests import PreparedRequest, Reply
from agentpay._settings import RetriesOption, TimeoutOption

Exchange = Callable[[PreparedRequest, TimeoutOption, RetriesOption], tuple[Any, Reply]]


class Resource:
    """Base of the resources: they know how to exchange a request for a model, and nothing of the client."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def _call(
        self, request: PreparedRequest, timeout: TimeoutOption, max_retries: RetriesOption
    ) -> Any:  # noqa: ANN401 - the model of the endpoint
        try:
            model, _ = self._exchange(request, timeout, max_retries)
        except Exception:
            raise
        except BaseException as error:
            if request.idempotency_key is not None:
                # Cancelled or interrupted while money may be under way: the key is all that is left of it.
                error.add_note(
                    f"{request.endpoint.name} may have been done. Do not pay again under a new key: call it "
                    f"with the same parameters and idempotency_key={request.idempotency_key!r} to resume it."
                )
            raise
        return model
