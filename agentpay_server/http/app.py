"""The ASGI application: routes of the endpoint tables, and the order of checks (interface R17).

The order: key, path and method, scope of the key, rate limit, size, media type and content of the body, then
everything that needs the database. Expected failures are a `Problem`, or an unresponsive database (503).
Anything else is a bug: logged, and a bare 500. Responses are counted and logged with the template of their
path: paths may contain a caller's data.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from agentpay.contract.endpoints import Endpoint
from agentpay.contract.endpoints import Scope as KeyScope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.console import GET_SUMMARY
from agentpay.contract.ext.deliveries import LIST_EVENTS
from agentpay.contract.pages import PageBody
from agentpay_server.assembly.server import Server
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS, HttpEffect, SetFault
from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.feature import JSON_TYPE, Header, Pages, Reply
from agentpay_server.http import openapi
from agentpay_server.http.admission import Places, RateLimit
from agentpay_server.http.operations import Operations, require_get
from agentpay_server.http.requests import (
    METHODS_OF,
    REFUSED,
    SHARE,
    WHOLE,
    DisconnectedError,
    DroppedError,
    authenticated,
    identified,
    matched,
    no_such_path,
    read_body,
    require_json,
    structured_body,
    structured_query,
)
from agentpay_server.http.responses import (
    REQUEST_PREFIX,
    Headers,
    drop,
    exported,
    internal_error,
    rendered,
    respond,
    send_reply,
    wanted_export,
)
from agentpay_server.operators import feature as operators
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem, service_unavailable
from agentpay_server.platform.logs import REQUEST_ID, Metrics, log
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.randomness import Identifiers, SystemRandomness
from agentpay_server.platform.settings import PUBLIC_RATE_LIMIT, Settings, limit_in_force

NO_ROUTE: Final = "none"
"""The route of requests that are refused before their path is read."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

DOCUMENTS: Final = {"/openapi.json": False, "/openapi-extensions.json": True}
"""Paths of the OpenAPI documents, which need no key, and whether each describes the extensions."""

_WITHOUT_KEY: Final = frozenset(
    path
    for path, methods in METHODS_OF.items()
    if all(endpoint.scope is KeyScope.NO_KEY for endpoint in methods.values())
)
"""Paths whose endpoints need no key. Another method is 405 there, with or without a key."""

_POLLED: Final = LIST_EVENTS.path
_UNKEPT: Final = GET_SUMMARY.path
"""Open consoles read it every few seconds, which would push all others out of the log of requests."""
_NOBODY: Final = Principal(operator_id="", key_id="")
logger: logging.Logger = logging.getLogger(__name__)


class _Trace:
    """The progress of a request, of which `send` sends the response."""

    __slots__ = (
        "_send",
        "error",
        "headers",
        "method",
        "principal",
        "request_id",
        "route",
        "start",
        "status",
        "transfer_id",
    )

    def __init__(self, request_id: str, method: str, send: Send, route: str = NO_ROUTE) -> None:
        self.request_id = request_id
        self.method = method
        self.route = route
        self.start = asyncio.get_running_loop().time()
        self.headers: Mapping[str, str] = {}
        self.principal = _NOBODY
        self.status: int | None = None
        self.error: str | None = None
        self.transfer_id: str | None = None
        self._send = send

    async def send(self, message: Message) -> None:
        """Add `X-Request-Id` (interface R16)."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"].append((b"x-request-id", self.request_id.encode("ascii")))
        await self._send(message)


class Application:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._identifiers = server.context.identifiers
        # A separate source, so that requests do not change seeded identifiers.
        self._operation_ids = Identifiers(server.context.clock, SystemRandomness())
        self._requests = server.context.metrics.requests
        self.settings: Settings = server.context.settings
        self.metrics: Metrics = server.context.metrics
        self._pages: Sequence[Pages] = (Operations(server), *server.services.pages)
        self._served = server.services.of(operators.FEATURE).requests
        per_minute = limit_in_force(
            self.settings.rate_limit_per_minute,
            on_public_clusters=PUBLIC_RATE_LIMIT,
            is_test_chain=server.chain.is_test_chain,
        )
        limit = None if per_minute is None else RateLimit(server.context.clock, per_minute)
        if limit is not None:
            server.snapshots.include(limit)
        self._limit = limit
        self._places = Places()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _not_http(scope, receive, send)
            return
        for pages in () if REFUSED in scope else self._pages:
            route = pages.route(scope["path"])
            if route is not None:
                trace = _Trace(self._operation_ids.new(REQUEST_PREFIX), scope["method"], send, route)
                await _answer_keyless(pages, scope, trace)
                self._record(trace, logging.DEBUG)
                return
        trace = _Trace(self._identifiers.new(REQUEST_PREFIX), scope["method"], send)
        token = REQUEST_ID.set(trace.request_id)
        try:
            await self._handle(trace, scope, receive)
        except Problem as problem:
            await _refuse(trace, problem)
        except DatabaseUnavailableError as error:
            log(logger, logging.ERROR, "database.unavailable", exception=error)
            await _refuse(trace, service_unavailable())
        except DisconnectedError:
            # A server closes the connection if the application sends nothing.
            return
        except DroppedError:
            await drop(scope, receive)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or caller.cancelling():
                raise
            # The awaited work was cancelled, by a restore or the server's stop.
            await drop(scope, receive)
        except Exception as error:  # noqa: BLE001 - a fault of the server, whatever it is
            log(logger, logging.ERROR, "request.failed", exception=error)
            await respond(trace.send, 500, internal_error(trace.request_id))
        finally:
            # The polling of `listen`.
            is_polled = trace.route == _POLLED and trace.status == 200
            self._record(trace, logging.DEBUG if is_polled else logging.INFO)
            REQUEST_ID.reset(token)

    def refusal(self, problem: Problem) -> tuple[int, Headers, bytes]:
        """Refuse malformed or incomplete HTTP; counted and logged like other responses."""
        trace = _Trace(self._identifiers.new(REQUEST_PREFIX), NO_ROUTE, _unheard)
        token = REQUEST_ID.set(trace.request_id)
        try:
            status, headers, body = rendered(problem, trace.request_id)
            trace.status, trace.error = status, problem.code.value
            self._record(trace, logging.INFO)
        finally:
            REQUEST_ID.reset(token)
        headers += [
            (b"content-type", JSON_TYPE),
            (b"content-length", str(len(body)).encode("ascii")),
            (b"x-request-id", trace.request_id.encode("ascii")),
        ]
        return status, headers, body

    def _record(self, trace: _Trace, level: int) -> None:
        method = trace.method if trace.method in _METHODS else "other"
        self._requests[trace.route, method, "none" if trace.status is None else str(trace.status)] += 1
        principal = trace.principal
        duration_ms = round((asyncio.get_running_loop().time() - trace.start) * 1000, 3)
        if principal.is_known and trace.route != _UNKEPT:
            self._served.record(
                principal,
                request_id=trace.request_id,
                at_us=self._server.context.clock.now_us(),
                method=method,
                route=trace.route,
                status=trace.status,
                duration_ms=round(duration_ms),
            )
        if logger.isEnabledFor(level):
            log(
                logger,
                level,
                "request.answered",
                method=method,
                route=trace.route,
                status=trace.status,
                error=trace.error,
                transfer_id=trace.transfer_id,
                key_id=principal.key_id if principal.is_known else None,
                duration_ms=duration_ms,
            )

    # --- The endpoints

    async def _handle(self, trace: _Trace, scope: Scope, receive: Receive) -> None:
        if REFUSED in scope:
            raise scope[REFUSED]
        if scope["path"] in DOCUMENTS:
            trace.route = scope["path"]
            require_get(scope["path"], scope["method"])
            body = document_text(extensions=DOCUMENTS[scope["path"]]).encode("utf-8")
            await respond(trace.send, 200, body)
            return
        trace.headers = _headers(scope)
        if scope["path"] in _WITHOUT_KEY:
            address = (scope.get("client") or ("unknown",))[0]
            trace.principal = Principal.without_key(address, trace.request_id)
        else:
            trace.principal = await authenticated(trace.headers, self._server.services, trace.request_id)
        scope["agentpay.principal"] = trace.principal
        _require_plain_path(scope)
        trace.route, parameters = matched(scope["path"])
        endpoints = METHODS_OF[trace.route]
        endpoint = endpoints.get(scope["method"])
        if endpoint is None:
            allow = tuple(sorted(endpoints))
            raise Problem(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"This path does not support {scope['method']}. Supported: {', '.join(allow)}.",
                says_what_to_do=True,
                allow=allow,
            )
        _require_scope(endpoint, trace.principal, parameters)
        faults = self._server.faults
        fault = faults.http.take(endpoint.operation) if faults is not None and faults.http else None
        answer = partial(self._answer, trace, endpoint, parameters, scope, receive)
        if fault is None:
            await answer(is_whole=WHOLE in scope and scope[WHOLE]())
        else:
            await self._fail(fault, trace, answer)

    async def _fail(self, fault: SetFault, trace: _Trace, answer: Callable[..., Awaitable[None]]) -> None:
        restores = self._server.snapshots.restores
        if fault.effect is HttpEffect.RESET:
            raise DroppedError
        if fault.effect is HttpEffect.UNAVAILABLE:
            raise service_unavailable()
        if fault.effect is HttpEffect.RATE_LIMITED:
            raise Problem(
                ErrorCode.RATE_LIMITED,
                "A sandbox fault refuses requests, and nothing was done.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        if fault.effect is HttpEffect.INTERNAL_ERROR:
            await respond(trace.send, 500, internal_error(trace.request_id))
        elif fault.effect is HttpEffect.REPLY_LOST:
            with contextlib.suppress(Problem):
                await answer(send=_unheard)
            raise DroppedError
        else:
            assert fault.delay_ms is not None  # noqa: S101 - a delay has one
            await asyncio.sleep(fault.delay_ms / 1000)
            if self._server.snapshots.restores != restores:
                raise DroppedError
            await answer()

    async def _answer(
        self,
        trace: _Trace,
        endpoint: Endpoint[Any],
        parameters: Mapping[str, str],
        scope: Scope,
        receive: Receive,
        *,
        is_whole: bool = False,
        send: Send | None = None,
    ) -> None:
        """With `is_whole`, the body is there, so nothing else runs until it is read."""
        principal, snapshots, send = trace.principal, self._server.snapshots, send or trace.send
        restores = snapshots.restores
        if principal.is_known:
            self._count(principal)
        share: int | None = scope.get(SHARE)
        with self._places.for_body(principal, share):
            timeout_seconds = None if is_whole else self.settings.body_timeout_seconds
            raw = await read_body(trace.headers, receive, timeout_seconds=timeout_seconds)
        if snapshots.restores != restores:
            # The key was looked up in a state that a restore has replaced.
            raise DroppedError
        if principal.is_known and not is_whole:
            # The key may have been revoked while the body arrived.
            await authenticated(trace.headers, self._server.services, trace.request_id)
        with self._places.for_work(principal, share):
            try:
                reply = await self._reply(trace, endpoint, parameters, scope["query_string"], raw)
            except Problem:
                # Addresses are shared: what others there get wrong does not refuse a valid code.
                if not principal.is_known:
                    self._count(principal)
                raise
            if reply.stream is not None:
                await send_reply(send, receive, reply)
                return
        await send_reply(send, receive, reply)

    def _count(self, principal: Principal) -> None:
        if self._limit is not None:
            self._limit.take(principal.key_id)

    async def _reply(
        self,
        trace: _Trace,
        endpoint: Endpoint[Any],
        parameters: Mapping[str, str],
        query_string: bytes,
        raw: bytes,
    ) -> Reply:
        headers, restores = trace.headers, self._server.snapshots.restores
        given: list[Any] = [parameters]
        if endpoint.request is not None:
            require_json(headers)
            if not raw and endpoint.is_body_optional:
                raw = b"{}"
            given.append(structured_body(raw, endpoint.request))
        if endpoint.query is not None:
            given.append(structured_query(query_string, endpoint.query))
        services = self._server.services
        if endpoint.name not in services.routes:
            # Its plug-in is not installed.
            raise no_such_path()
        path, *given = [await identified(services.context, endpoint, trace.principal, each) for each in given]
        if self._server.snapshots.restores != restores:
            # The names were looked up in a state that a restore has replaced.
            raise DroppedError
        arguments = [trace.principal, *path.values(), *given]
        arguments += [headers.get(each.name.lower()) for each in endpoint.request_headers]
        route, service = services.routes[endpoint.name]
        kind = wanted_export(endpoint, headers)
        if kind is not None:

            async def read(of: Any) -> PageBody[Any]:  # noqa: ANN401 - a query
                # The key may have been revoked since the last page.
                await authenticated(headers, self._server.services, trace.request_id)
                page: PageBody[Any] = await route.handler(service)(*arguments[:-1], of)
                return page

            stream = await exported(endpoint, kind, given[-1], read)
            return Reply(status=200, stream=stream, stream_type=f"{kind}; charset=utf-8".encode("ascii"))
        reply = await route.answer(services.context.tasks, service, arguments)
        if hasattr(type(reply.model), "transfer_id"):
            trace.transfer_id = getattr(reply.model, "transfer_id")  # noqa: B009 - of any model
        return reply


@cache
def document_text(*, extensions: bool) -> str:
    return openapi.printed(BOUND_ENDPOINTS, extensions=extensions)


async def _answer_keyless(pages: Pages, scope: Scope, trace: _Trace) -> None:
    try:
        answer = await pages.answer(scope["path"], scope["method"], partial(_raw_header, scope))
    except Problem as problem:
        await _refuse(trace, problem, pages.headers)
        return
    await respond(trace.send, answer.status, answer.body, answer.headers, answer.content_type)


def _require_scope(endpoint: Endpoint[Any], principal: Principal, path: Mapping[str, str]) -> None:
    """Refuse a key before any lookup (interface E9, K5)."""
    operation = endpoint.operation
    if endpoint.scope is KeyScope.OPERATOR:
        principal.require_operator(operation)
    elif endpoint.scope is KeyScope.OPERATOR_KEY:
        principal.require_operator_key(operation, path.get("key_id"))
    elif "account_id" in path:
        principal.require_account(path["account_id"], operation)


def _require_plain_path(scope: Scope) -> None:
    """Refuse an encoded slash or a control character."""
    raw_path: bytes = scope.get("raw_path") or b""
    is_split = b"%2f" in raw_path.lower() and not raw_path.startswith(_FREE_TEXT)
    if is_split or not scope["path"].isprintable():
        raise no_such_path()


_FREE_TEXT: Final = tuple(
    endpoint.path.partition("{")[0].encode("ascii")
    for endpoint in BOUND_ENDPOINTS
    if endpoint.takes_rest_of_path
)
"""Paths in which encoded slashes are harmless."""


def _headers(scope: Scope) -> dict[str, str]:
    """Names in lower case; repeated fields are joined (RFC 9110, 5.3)."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _raw_header(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)


async def _unheard(_message: Message) -> None:
    """Discard a message of a lost response."""


async def _refuse(trace: _Trace, problem: Problem, headers: Sequence[Header] = ()) -> None:
    trace.error, trace.transfer_id = problem.code.value, problem.transfer_id
    status, extra, body = rendered(problem, trace.request_id)
    await respond(trace.send, status, body, [*headers, *extra])


async def _not_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Handle start and stop of an ASGI server; refuse everything else."""
    if scope["type"] != "lifespan":
        await send({"type": "websocket.close", "code": 1000})
        return
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
