"""A webhook receiver for Starlette and FastAPI: an endpoint that also runs the handlers."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from agentpay.integrations.router import WebhookRouter
from agentpay.webhooks import Event

__all__ = ["receiver"]


def receiver(webhooks: WebhookRouter) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that receives the deliveries of `webhooks`.

    Async handlers run on the application's event loop, others in its threads.
    In Starlette: `Route("/webhooks", receiver(webhooks), methods=["POST"])`. In FastAPI:
    `app.add_route("/webhooks", receiver(webhooks), methods=["POST"])`, or `add_api_route` of an `APIRouter`
    with a prefix, whose `add_route` ignores the prefix.
    """

    async def receive(request: Request) -> Response:
        body = await _body(request, webhooks.max_body_bytes)
        if isinstance(body, HTTPStatus):
            return Response(status_code=body)
        answer = webhooks.accept(body, request.headers)
        if not isinstance(answer, Event):
            return Response(status_code=answer)
        if webhooks.answer == "after":
            return Response(status_code=await webhooks.process_async(answer, run_in_threadpool))
        return Response(background=BackgroundTask(webhooks.process_async, answer, run_in_threadpool))

    return receive


async def _body(request: Request, max_bytes: int) -> bytes | HTTPStatus:
    # Counted while it arrives: the declared length may be missing.
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    except ClientDisconnect:
        return HTTPStatus.BAD_REQUEST
    return bytes(body)
