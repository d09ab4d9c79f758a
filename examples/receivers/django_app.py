"""Receive webhooks in Django: `AGENTPAY_WEBHOOK_SECRET=whsec_… python django_app.py runserver`."""

import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.urls import path

from agentpay.integrations import WebhookRouter
from agentpay.integrations.django import receiver
from agentpay.webhooks import TransferSettled

webhooks = WebhookRouter(secret=os.environ["AGENTPAY_WEBHOOK_SECRET"])


@webhooks.on(TransferSettled)
def settled(event: TransferSettled) -> None:
    print(f"{event.type} {event.id}: {event.data.amount_usdc} USDC are final", flush=True)


urlpatterns = [path("webhooks", receiver(webhooks))]

# A project has these in its settings module, with its other middleware.
if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"],
    )
app = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
