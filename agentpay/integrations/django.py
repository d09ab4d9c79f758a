"""A webhook receiver for Django: a view that runs the handlers, or lets threads of the router run them."""

from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from django.core.exceptions import RequestDataTooBig
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from agentpay.integrations.router import WebhookRouter
from agentpay.webhooks import Event

__all__ = ["receiver"]

View = Callable[[HttpRequest], HttpResponse]


def receiver(webhooks: WebhookRouter) -> View:
    """Return the view that receives the deliveries of `webhooks`.

    In `urlpatterns`: `path("webhooks", receiver(webhooks))`. It accepts only POST, and needs no CSRF token,
    because deliveries are signed. Database connections that handlers open in their threads are released as
    Django releases them after a request.
    """

    def receive(request: HttpRequest) -> HttpResponse:
        try:
            body = _body(request, webhooks.max_body_bytes)
        except UnreadablePostError:
            return HttpResponse(status=400)
        if body is None:
            return HttpResponse(status=413)
        answer = webhooks.accept(body, request.META)
        if isinstance(answer, Event):
            answer = webhooks.submit(process, answer)
        return HttpResponse(status=answer)

    def process(event: Event) -> HTTPStatus:
        close_old_connections()
        try:
            return webhooks.process(event)
        finally:
            close_old_connections()

    return cast("View", csrf_exempt(require_POST(receive)))


def _body(request: HttpRequest, max_bytes: int) -> bytes | None:
    """Return the raw body, or None if it is too large."""
    length = request.META.get("CONTENT_LENGTH")
    if not length:
        # The length is unknown, as for chunked bodies under ASGI: `request.body` would read it without a
        # limit.
        body = cast("bytes", request.read(max_bytes + 1))
        return None if len(body) > max_bytes else body
    if not str(length).isdecimal() or int(length) > max_bytes:
        return None
    try:
        return cast("bytes", request.body)
    except RequestDataTooBig:
        return None
