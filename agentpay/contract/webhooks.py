"""Webhook endpoints: registration and its result (interface W1 to W4)."""

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, ClassVar, Final, get_args
from urllib.parse import urlsplit

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.fields import ABSENT, ALWAYS_SENT, OMITTED_BY_DEFAULT, Form, NotEmpty, Rule, text
from agentpay.contract.models import Model
from agentpay.contract.requests import Request
from agentpay.contract.signature_headers import NEXT_SIGNATURE_HEADER as NEXT_SIGNATURE_HEADER
from agentpay.contract.signature_headers import SIGNATURE_HEADER as SIGNATURE_HEADER
from agentpay.contract.usdc import UsdcNumber

_EVENT_NAMES: Final[tuple[str, ...]] = get_args(choices.EventType)


@frozen(kw_only=True)
class Webhook(Model):
    """A registered endpoint, without its secret.

    Attributes:
        webhook_id: identifier, `wh_…`.
        url: where events are posted.
        events: names of the event types it receives.
        account_ids: the accounts whose events it receives; empty means all accounts of the operator.
        low_balance_threshold_usdc: balance below which `balance.low_threshold` is sent, in USDC, or None.
        created_at: when it was registered, UTC.
        warning: what of the registration can have no effect, as a sentence; usually None.
    """

    webhook_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    url: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    events: tuple[Annotated[choices.EventType, Form({"enum": list(_EVENT_NAMES)})], ...] = ()
    account_ids: tuple[str, ...] = ()
    low_balance_threshold_usdc: UsdcNumber | None = None
    created_at: datetime = field(default=ABSENT, metadata=ALWAYS_SENT)
    warning: str | None = field(default=None, metadata=OMITTED_BY_DEFAULT)


@frozen(kw_only=True)
class NewWebhook(Webhook):
    """A webhook as `webhooks.create` returns it.

    Its `repr` does not show the secret.

    Attributes:
        secret: key of the signatures. It is shown only here.
    """

    _example: ClassVar = {"secret": "whsec_" + "0" * 43}

    secret: str = field(repr=False)


def subscription_warning(events: Collection[str], low_balance_threshold: object | None) -> str | None:
    """Return what of a subscription can have no effect, as a sentence."""
    if "balance.low_threshold" in events and low_balance_threshold is None:
        return (
            "balance.low_threshold is never sent, because low_balance_threshold_usdc is not set. "
            "Register the webhook with a threshold to receive this event."
        )
    return None


def _parse_event_name(value: object) -> str:
    if not isinstance(value, str) or value not in _EVENT_NAMES:
        raise ValueError(f"must be one of {', '.join(_EVENT_NAMES)}")
    return value


def _parse_url(value: object) -> str:
    """Check the format of a webhook's URL. Its address is checked when an event is posted."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    if len(value) > _URL_MAX_CHARACTERS:
        raise ValueError(f"must have at most {_URL_MAX_CHARACTERS} characters")
    if not value.isascii() or any(character <= " " or character == "\x7f" for character in value):
        raise ValueError("must be a URL of printable ASCII characters; write other names in punycode")
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("must be a valid URL") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError("must be an http or https URL with a host")
    if "@" in parts.netloc:
        raise ValueError("must not contain user info; receivers verify the signature instead")
    if parts.fragment or "\\" in value:
        raise ValueError("must not contain a fragment or a backslash")
    return value


_URL_MAX_CHARACTERS = 2048

EventName = Annotated[choices.EventType, Rule(_parse_event_name, {"enum": list(_EVENT_NAMES)})]
EventNames = Annotated[tuple[EventName, ...], NotEmpty()]
WebhookUrl = Annotated[
    str, Rule(_parse_url, {"format": "uri", "pattern": "^https?://", "maxLength": _URL_MAX_CHARACTERS})
]


@frozen(kw_only=True)
class CreateWebhook(Request):
    """Body of `POST /v1/webhooks`.

    Attributes:
        url: the URL to post events to, `http(s)`, without user info.
        events: names of event types, at least one.
        account_ids: accounts whose events to receive; empty or omitted means all accounts of the operator.
        low_balance_threshold_usdc: balance in USDC below which `balance.low_threshold` is sent.
    """

    url: WebhookUrl
    events: EventNames
    account_ids: tuple[Annotated[str, text(minimum=1, maximum=128)], ...] = ()
    low_balance_threshold_usdc: UsdcNumber | None = None
