"""`agentpay listen`: printing events as they happen, and optionally forwarding them.

Polls the console's list of events and registers no webhook, so it works with a server that cannot reach this
machine. Events from before its start are not shown.
"""

import asyncio
import contextlib
import json
import secrets
import signal
import threading
from datetime import UTC, datetime
from typing import Any, Final

import click
from attrs import define, evolve, field
from rich.text import Text

from agentpay import AsyncAgentPay
from agentpay.cli.connection import ServerAccess, address_of, client_of, reported_errors
from agentpay.cli.forwarding import Forward, Forwarder, url_faults
from agentpay.cli.listing import PASSING
from agentpay.cli.naming import find_account
from agentpay.cli.output import Output
from agentpay.cli.profiles import ConfigError, read_config, write_config
from agentpay.cli.tables import STYLES
from agentpay.contract.choices import EventType
from agentpay.contract.events import EVENTS, Event
from agentpay.webhooks import WebhookSecrets

_PAGE: Final = 100
_TYPE_WIDTH: Final = max(map(len, EVENTS))
_FIELDS: Final = (
    "amount_usdc",
    "balance_usdc",
    "settled_usdc",
    "cap_usdc",
    "transfer_id",
    "session_id",
)


def print_events(
    output: Output,
    *,
    url: str | None,
    key: str | None,
    profile: str | None,
    types: tuple[EventType, ...],
    account_id: str | None,
    forward_to: str | None,
    secret: str | None,
    interval_seconds: float,
    is_wide: bool,
) -> None:
    """Print events until Ctrl-C; with `forward_to`, forward them as well."""
    if forward_to is not None and (faults := url_faults(forward_to)):
        problems = " and ".join(fault.message for fault in faults)
        raise click.BadParameter(
            f"{problems}, such as http://127.0.0.1:3000/hooks.", param_hint="--forward-to"
        )
    address = address_of(url, key, profile)
    with reported_errors(address, output):
        if account_id is not None:
            with client_of(address) as server:
                account_id = find_account(server, output, account_id)
        listener = EventListener(
            address,
            output,
            types=frozenset(types),
            account_id=account_id,
            interval_seconds=interval_seconds,
            is_wide=is_wide,
        )
        known = secret or (None if forward_to is None else _stored_secret())
        # Ctrl-C and SIGTERM are the normal way to stop it.
        with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
            asyncio.run(listener.run(forward_to, known))


def print_secret(output: Output) -> None:
    """Print the stored secret; the first time, store a new one."""
    config = read_config()
    if config.listen_secret is None:
        config = evolve(config, listen_secret=_new_secret())
        write_config(config)
    if output.is_json:
        output.document({"secret": config.listen_secret})
    else:
        # Only the secret, without style, for use in $(...).
        click.echo(config.listen_secret)


def _stored_secret() -> str | None:
    try:
        return read_config().listen_secret
    except ConfigError as error:
        raise click.UsageError(f"{error}.") from None


def _new_secret() -> str:
    return f"whsec_{secrets.token_urlsafe(32)}"


@define
class EventListener:
    """Polls for new events, prints them and forwards them."""

    address: ServerAccess
    output: Output
    types: frozenset[str] = field(kw_only=True)
    account_id: str | None = field(kw_only=True)
    interval_seconds: float = field(kw_only=True)
    is_wide: bool = field(default=False, kw_only=True)
    _is_forwarding: bool = field(default=False, init=False)
    _reports: asyncio.Queue[Forward] = field(factory=asyncio.Queue, init=False)

    async def run(self, forward_to: str | None, secret: str | None) -> None:
        """Listen until cancelled."""
        _end_at_sigterm()
        async with contextlib.AsyncExitStack() as opened:
            server = await opened.enter_async_context(
                AsyncAgentPay(api_key=self.address.key, base_url=self.address.url)
            )
            feed = _Feed(server, self.account_id)
            await feed.fresh()
            forwarder = None
            signed_with = secret or _new_secret()
            if forward_to is not None:
                self._is_forwarding = True
                hidden = WebhookSecrets(signed_with)
                hidden.check()
                forwarder = Forwarder(forward_to, hidden, self._reports.put_nowait)
                opened.push_async_callback(forwarder.close)
            self._print_start(forward_to, None if secret or forwarder is None else signed_with)
            while True:
                await self._print_reports()
                for event in await self._look(feed):
                    if event.type in self.types:
                        self._print_event(event)
                        if forwarder is not None:
                            forwarder.start(event)

    async def _look(self, feed: "_Feed") -> list[Event]:
        """Return new events. Retries while the server does not respond."""
        is_reported = False
        while True:
            try:
                return await feed.fresh()
            except PASSING as error:
                if not is_reported:
                    self.output.note(f"Cannot read events from {self.address.url}, retrying: {error}")
                    is_reported = True
                await asyncio.sleep(self.interval_seconds)

    async def _print_reports(self) -> None:
        """Print forwarding attempts until the next poll."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.interval_seconds):
                while True:
                    self._print_forward(await self._reports.get())

    def _print_start(self, forward_to: str | None, secret: str | None) -> None:
        url = self.address.url
        if self.output.is_json:
            self.output.document({"listening": {"base_url": url, "forward_to": forward_to, "secret": secret}})
            return
        self.output.note(f"Listening to {url}. Press Ctrl-C to stop.")
        if forward_to is not None:
            self.output.note(f"Forwarding to {forward_to}, signed with {secret or 'your secret'}")

    def _print_event(self, event: Event) -> None:
        if self.output.is_json:
            self.output.document({"event": event})
            return
        if self._is_forwarding:
            # Printed with the response to it: one line per event.
            return
        self.output.line(
            _clock(event.created_at),
            Text(f"{event.type:<{_TYPE_WIDTH}}", style=STYLES.get(event.type, "")),
            *self._about(event),
        )

    def _about(self, event: Event) -> list[object]:
        """Return the identifier and as much of the data as fits on one line."""
        data = event.to_dict()["data"]
        if self.is_wide:
            shown = (f"{name}={_shown(value)}" for name, value in data.items() if value is not None)
            return [event.id, *shown]
        words: list[object] = [event.id]
        width = len("00:00:00 ") + _TYPE_WIDTH + 1 + len(event.id)
        for name in _FIELDS:
            if name in data:
                word = str(data[name]) + (" USDC" if name.endswith("_usdc") else "")
                width += 1 + len(word)
                if not self.output.fits(width):
                    break
                words.append(word)
        return words

    def _print_forward(self, forward: Forward) -> None:
        if self.output.is_json:
            self.output.document({"forward": forward})
            return
        response = forward.error if forward.status_code is None else forward.status_code
        tried = () if forward.attempt == 1 else (f"attempt {forward.attempt}",)
        retry = () if forward.retry_seconds is None else (f"retry in {forward.retry_seconds:g} s",)
        lost = (Text("undelivered", style="red"),) if forward.status == "undelivered" else ()
        is_received = forward.status == "delivered"
        self.output.line(
            _clock(datetime.now(UTC)),
            Text(f"[{response}]", style="green" if is_received else "red"),
            f"{forward.duration_ms:>4} ms",
            Text(f"{forward.event_type:<{_TYPE_WIDTH}}", style=STYLES.get(forward.event_type, "")),
            forward.event_id,
            *tried,
            *retry,
            *lost,
        )


class _Feed:
    """The events added to a server's list since the last call, oldest first.

    Remembers a window of the newest events instead of only the newest one: with several servers, an event may
    be inserted below the newest.
    """

    def __init__(self, server: AsyncAgentPay, account_id: str | None) -> None:
        self._server = server
        self._account_id = account_id
        self._known: set[str] | None = None

    async def fresh(self) -> list[Event]:
        """Return new events; an empty list at the first call, which only records the existing ones."""
        page = await self._server.events.list(account_id=self._account_id, limit=_PAGE)
        seen = list(page.data)
        known = self._known
        while known is not None and page.has_more and page.data and page.data[-1].id not in known:
            page = await page.next_page()
            seen += page.data
        # Only this window, because older events are never read again.
        self._known = {event.id for event in seen}
        return [] if known is None else [event for event in reversed(seen) if event.id not in known]


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"


def _shown(value: Any) -> str:  # noqa: ANN401 - a JSON value
    text = str(value)
    return text if " " not in text else json.dumps(text, ensure_ascii=False)


def _end_at_sigterm() -> None:
    """Make SIGTERM stop the command as Ctrl-C does, where the platform and the thread allow it."""
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
