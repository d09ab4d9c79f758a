"""A webhook receiver for Flask: a view that runs the handlers, or lets threads of the router run them."""

from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from flask import Flask, Response, current_app, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.local import LocalProxy

from agentpay.integrations.router import WebhookRouter
from agentpay.webhooks import Event

__all__ = ["receiver"]


def receiver(webhooks: WebhookRouter) -> Callable[[], Response]:
    """Return the view that receives the deliveries of `webhooks`. Handlers run in the application context.

    `app.add_url_rule("/webhooks", view_func=receiver(webhooks), methods=["POST"])`. With several receivers,
    pass an `endpoint` name for each. Nothing may read the request's form before: that consumes the body.
    """

    def receive() -> Response:
        request.max_content_length = webhooks.max_body_bytes
        try:
            body = request.get_data(cache=False)
        except RequestEntityTooLarge:
            return Response(status=413)
        answer = webhooks.accept(body, request.headers)
        if isinstance(answer, Event):
            answer = webhooks.submit(_within(_application(), webhooks), answer)
        return Response(status=answer)

    return receive


def _application() -> Flask:
    # The application object, which threads can use; `current_app` is bound to this request.
    return cast("LocalProxy[Flask]", current_app)._get_current_object()  # noqa: SLF001 - as Flask documents


def _within(application: Flask, webhooks: WebhookRouter) -> Callable[[Event], HTTPStatus]:
    def process(event: Event) -> HTTPStatus:
        with application.app_context():
            return webhooks.process(event)

    return process
