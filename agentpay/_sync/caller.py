# Generated from _async by scripts/unasync.py. Edit that one.
"""The driver of the retry generator: it sends and sleeps. Every request of every resource goes through it.

`agentpay._calls` decides what to send, what a response means and when to retry; `agentpay._http` does the
network I/O.
"""

import contextlib
import logging
from collections.abc import Generator, Mapping
from typing import Any

from agentpay._calls.options import CallOptions, CallSettings
from agentpay._calls.requests import PreparedRequest, extended
from agentpay._calls.retries import Renew, Sleep, attempts, note_key, unexpected
from agentpay._calls.settings import ClientSettings, logger
from agentpay._http.clients import Http
from agentpay.contract.responses import RawResponse
from agentpay.errors import AgentPayError


class Caller:
    """Sends requests with the settings of one client, over connections that its copies share.

    Attributes:
        settings: the settings of the client.
        http: the connections.
    """

    def __init__(self, settings: ClientSettings, http: Http) -> None:
        self.settings = settings
        self.http = http
        self._usual = CallSettings(
            headers=http.headers(settings),
            timeout=settings.timeout,
            max_retries=settings.max_retries,
            total_timeout=settings.total_timeout,
        )

    def begin(self, options: CallOptions, arguments: Mapping[str, object]) -> CallSettings:
        """Return the settings of a call with these options that begins now.

        `arguments` are those of the method, one of which an unknown option may have meant.

        Raises:
            ConfigurationError: an option has an invalid value; the message names it.
            TypeError: there is no such option.
        """
        if not options and self._usual.total_timeout is None:
            return self._usual
        return self._usual.begun(options, arguments, self.http.monotonic)

    def exchange(self, request: PreparedRequest, call: CallSettings) -> tuple[Any, RawResponse]:
        """Send a request, with retries; return the response's model and the reply.

        Raises:
            AgentPayError: the request failed, and is not retried.
        """
        if call.extras is not None:
            request = extended(request, *call.extras)
        observer = self.http.observer
        if observer is None:
            return self._noted(request, call)
        watch = observer.begin(request)
        try:
            model, reply = self._noted(request, call.with_headers(watch.headers))
        except BaseException as error:
            watch.failed(error)
            raise
        watch.succeeded(model, reply)
        return model, reply

    def pieces(
        self, request: PreparedRequest, options: CallOptions, arguments: Mapping[str, object]
    ) -> Generator[RawResponse | bytes, None]:
        """Send a request once, and yield its response without the body, then the body as it arrives.

        Raises:
            AgentPayError: the request failed, or the connection was lost.
        """
        self.http.warn_if_exposed()
        return self.http.pieces(request, self.begin(options, arguments))

    def _noted(self, request: PreparedRequest, call: CallSettings) -> tuple[Any, RawResponse]:
        key = request.idempotency_key
        if key is None:
            return self._attempts(request, call)
        # Before the first byte: the log has the key, however the call ends.
        if logger.isEnabledFor(logging.INFO):
            with contextlib.suppress(Exception):  # a failing log handler must not fail a payment
                logger.info("%s: idempotency_key %r", request.endpoint.name, key)
        try:
            return self._attempts(request, call)
        except BaseException as error:
            note_key(error, request)
            raise

    def _attempts(self, request: PreparedRequest, call: CallSettings) -> tuple[Any, RawResponse]:
        http = self.http
        flow = attempts(
            request,
            max_retries=call.max_retries,
            pause_max=lambda: call.pause_max(http.monotonic()),
            now=http.now,
            random=http.random,
        )
        http.warn_if_exposed()
        is_sent = False
        try:
            step = next(flow)
            while True:
                if isinstance(step, Sleep):
                    logger.info("sending %s again in %.2f s", request.endpoint.name, step.seconds)
                    http.sleep(step.seconds)
                    step = next(flow)
                elif isinstance(step, Renew):
                    http.renew()
                    step = next(flow)
                else:
                    outcome = http.send(request, call)
                    is_sent = True
                    step = flow.send(outcome)
        except StopIteration as done:
            model, reply = done.value
            return model, reply
        except AgentPayError:
            raise
        except Exception as error:
            if not is_sent:
                raise
            raise unexpected(request, error) from error
