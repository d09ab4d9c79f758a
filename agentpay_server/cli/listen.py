"""`agentpay-server listen`: printing events as they happen, and optionally forwarding them.

It polls the console's list of events and registers no webhook. So it leaves nothing behind, and works with a
server that cannot reach this machine. Events from before its start are not shown.
"""

import asyncio
import contextlib
import json
import os
import signal
import threading
from typing import Any, Final

import click

from agentpay import AsyncAgentPay, errors
from agentpay.contract.event_types import EventType
from agentpay.contract.events import Event
from agentpay.contract.identifiers import ACCOUNT
from agentpay.webhooks import WebhookSecrets
from agentpay_server.cli.connection import Address, address_of, reported_errors, takes_address
from agentpay_server.cli.forwarding import Forward, Forwarder, url_faults
from agentpay_server.cli.output import Output, takes_json
from agentpay_server.cli.values import Identifier, Seconds
from agentpay_server.credentials import new_secret

SECRET_VARIABLE: Final = "AGENTPAY_WEBHOOK_SECRET"  # noqa: S105 - the name of one

_PAGE: Final = 100
_PASSING: Final = (errors.APIConnectionError, errors.ServerError, errors.RateLimitedError)
"""Errors that are retried: the server may be restarting."""


@click.command()
@click.option("--forward-to", metavar="URL", help="Forward every event to this URL, signed, with retries.")
@click.option("--events", "types", metavar="TYPE,…", help="Only these event types, such as transfer.settled.")
@click.option(
    "--account",
    "account_id",
    type=Identifier(ACCOUNT),
    metavar="ACCOUNT_ID",
    help="Only events about one account.",
)
@click.option(
    "--secret",
    envvar=SECRET_VARIABLE,
    show_envvar=True,
    help="Signing secret for --forward-to. Default: a new one, which is printed.",
)
@click.option(
    "--interval",
    type=Seconds(0.05, 60),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Polling interval.",
)
@takes_address
@takes_json
def listen(
    *,
    url: str,
    key: str | None,
    is_json: bool,
    forward_to: str | None,
    types: str | None,
    account_id: str | None,
    secret: str | None,
    interval: float,
) -> None:
    """Print events as they happen, and optionally forward them, signed.

    With --forward-to, a URL receives what a webhook would receive: the same bytes and headers, and the same
    retries while the command runs. Ctrl-C stops it with exit code 0.
    """
    wanted = _types(types)
    if forward_to is not None and (faults := url_faults(forward_to)):
        problems = " and ".join(fault.message for fault in faults)
        raise click.BadParameter(
            f"{problems}, such as http://127.0.0.1:3000/hooks.", param_hint="--forward-to"
        )
    output, address = Output(is_json=is_json), address_of(url, key)
    listener = Listener(address, output, types=wanted, account_id=account_id, interval_seconds=interval)
    # Ctrl-C and SIGTERM are the normal way to stop it.
    with reported_errors(address, output), contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(listener.run(forward_to, secret))


class Listener:
    """Polls for new events, prints them and forwards them."""

    def __init__(
        self,
        address: Address,
        output: Output,
        *,
        types: frozenset[str],
        account_id: str | None,
        interval_seconds: float,
    ) -> None:
        self._address = address
        self._output = output
        self._types = types
        self._account_id = account_id
        self._interval_seconds = interval_seconds
        self._reports: asyncio.Queue[Forward] = asyncio.Queue()

    async def run(self, forward_to: str | None, secret: str | None) -> None:
        """Listen until cancelled."""
        _end_at_sigterm()
        async with contextlib.AsyncExitStack() as opened:
            server = await opened.enter_async_context(
                AsyncAgentPay(api_key=self._address.key, base_url=self._address.url)
            )
            feed = _Feed(server, self._account_id)
            await feed.fresh()
            forwarder = None
            signed_with = secret or new_secret(os.urandom(32))
            if forward_to is not None:
                hidden = WebhookSecrets(signed_with)
                hidden.check()
                forwarder = Forwarder(forward_to, hidden, self._reports.put_nowait)
                opened.push_async_callback(forwarder.close)
            self._print_start(forward_to, None if secret or forwarder is None else signed_with)
            while True:
                await self._print_reports()
                for event in await self._look(feed):
                    if event.type in self._types:
                        self._print_event(event)
                        if forwarder is not None:
                            forwarder.start(event)

    async def _look(self, feed: "_Feed") -> list[Event]:
        """Return new events; retries for as long as the server does not respond."""
        is_reported = False
        while True:
            try:
                return await feed.fresh()
            except _PASSING as error:
                if not is_reported:
                    self._output.note(f"Cannot read events from {self._address.url}, retrying: {error}")
                    is_reported = True
                await asyncio.sleep(self._interval_seconds)

    async def _print_reports(self) -> None:
        """Print forwarding attempts until the next poll."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_seconds):
                while True:
                    self._print_forward(await self._reports.get())

    def _print_start(self, forward_to: str | None, secret: str | None) -> None:
        url = self._address.url
        if self._output.is_json:
            self._output.document(
                {"listening": {"base_url": url, "forward_to": forward_to, "secret": secret}}
            )
            return
        self._output.note(f"Listening to {url}. Press Ctrl-C to stop.")
        if forward_to is not None:
            self._output.note(f"Forwarding to {forward_to}, signed with {secret or 'the secret you passed'}")

    def _print_event(self, event: Event) -> None:
        if self._output.is_json:
            self._output.document({"event": event})
            return
        data = (
            f"{name}={_shown(value)}" for name, value in event.to_dict()["data"].items() if value is not None
        )
        self._output.line(event.created_at, event.type, event.id, *data)

    def _print_forward(self, forward: Forward) -> None:
        if self._output.is_json:
            self._output.document({"forward": forward})
            return
        response = forward.error if forward.status_code is None else forward.status_code
        retry = () if forward.retry_seconds is None else (f"in {forward.retry_seconds:g} s",)
        self._output.line(
            f"  → {response} in {forward.duration_ms} ms",
            forward.status,
            *retry,
            f"attempt {forward.attempt} of {forward.event_type} {forward.event_id}",
        )


class _Feed:
    """The events added to a server's list since the last call, oldest first.

    It remembers a window of the newest events instead of only the newest one: with several servers, an event
    may be inserted below the newest.
    """

    def __init__(self, server: AsyncAgentPay, account_id: str | None) -> None:
        self._server = server
        self._account_id = account_id
        self._known: set[str] | None = None

    async def fresh(self) -> list[Event]:
        """Return new events; an empty list at the first call, which only records the existing ones."""
        page = await self._server.console.events.list(account_id=self._account_id, limit=_PAGE)
        seen = list(page.data)
        known = self._known
        while known is not None and page.has_more and page.data and page.data[-1].id not in known:
            page = await page.next_page()
            seen += page.data
        # Only this window: older events are never read again.
        self._known = {event.id for event in seen}
        return [] if known is None else [event for event in reversed(seen) if event.id not in known]


def _types(given: str | None) -> frozenset[str]:
    if given is None:
        return frozenset(EventType)
    names = frozenset(name.strip() for name in given.split(","))
    if unknown := sorted(names - frozenset(EventType)):
        raise click.BadParameter(
            f"unknown event type {', '.join(map(repr, unknown))}; available: {', '.join(EventType)}.",
            param_hint="--events",
        )
    return names


def _shown(value: Any) -> str:  # noqa: ANN401 - a JSON value
    text = str(value)
    return text if " " not in text else json.dumps(text, ensure_ascii=False)


def _end_at_sigterm() -> None:
    """Make SIGTERM stop the command as Ctrl-C does, where the platform and the thread allow it."""
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
