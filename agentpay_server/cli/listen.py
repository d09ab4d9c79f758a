"""`agentpay-server listen`: events as they happen, printed and, if asked for, forwarded.

It reads the events that the console lists, again and again, and registers nothing: nothing is left behind
when it ends, and it works wherever the server is reached, also where that may not post to this machine. What
has happened before it began is not shown.
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
from agentpay.contract.deliveries import RecordedEvent
from agentpay.contract.event_types import EventType
from agentpay.contract.identifiers import ACCOUNT
from agentpay.webhooks import WebhookSecrets
from agentpay_server.cli.connection import Address, address_of, takes_address, told_to_people
from agentpay_server.cli.forwarding import Forward, Forwarder, url_faults
from agentpay_server.cli.output import Output, takes_json
from agentpay_server.cli.values import Identifier, Seconds
from agentpay_server.credentials import new_secret

SECRET_VARIABLE: Final = "AGENTPAY_WEBHOOK_SECRET"  # noqa: S105 - the name of one

_PAGE: Final = 100
_PASSING: Final = (errors.APIConnectionError, errors.ServerError, errors.RateLimitedError)
"""What passes by itself, while a server is started again for one."""


@click.command()
@click.option("--forward-to", metavar="URL", help="Post every event there, signed, with retries.")
@click.option("--events", "types", metavar="TYPE,…", help="Those types alone, such as transfer.settled.")
@click.option(
    "--account",
    "account_id",
    type=Identifier(ACCOUNT),
    metavar="ACCOUNT_ID",
    help="Events about one account.",
)
@click.option(
    "--secret",
    envvar=SECRET_VARIABLE,
    show_envvar=True,
    help="What signs what is forwarded. Without it a new one is made, and told.",
)
@click.option(
    "--interval",
    type=Seconds(0.05, 60),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait before looking again.",
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
    """Print events as they happen, and forward them, signed.

    With --forward-to, an address receives the bytes that a webhook would receive, with the same headers, and
    the same retries for as long as the command runs. Ctrl-C ends it, with exit code 0.
    """
    wanted = _types(types)
    if forward_to is not None and (faults := url_faults(forward_to)):
        said = " and ".join(fault.message for fault in faults)
        raise click.BadParameter(f"{said}, such as http://127.0.0.1:3000/hooks.", param_hint="--forward-to")
    output, address = Output(is_json=is_json), address_of(url, key)
    listener = Listener(address, output, types=wanted, account_id=account_id, interval_seconds=interval)
    # Ctrl-C and SIGTERM are how it ends.
    with told_to_people(address, output), contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(listener.run(forward_to, secret))


class Listener:
    """Looks for new events, prints them, has them forwarded."""

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
            self._tell_ready(forward_to, None if secret or forwarder is None else signed_with)
            while True:
                await self._tell_reports()
                for event in await self._look(feed):
                    if event.type in self._types:
                        self._tell_event(event)
                        if forwarder is not None:
                            forwarder.start(event)

    async def _look(self, feed: "_Feed") -> list[RecordedEvent]:
        """Return what has happened since, however long it takes the server to answer again."""
        is_told = False
        while True:
            try:
                return await feed.fresh()
            except _PASSING as error:
                if not is_told:
                    self._output.note(f"{self._address.url} gives no events now, trying on: {error}")
                    is_told = True
                await asyncio.sleep(self._interval_seconds)

    async def _tell_reports(self) -> None:
        """Print what becomes of what was forwarded, until it is time to look again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_seconds):
                while True:
                    self._tell_forward(await self._reports.get())

    def _tell_ready(self, forward_to: str | None, secret: str | None) -> None:
        url = self._address.url
        if self._output.is_json:
            told = {"base_url": url, "forward_to": forward_to, "secret": secret}
            self._output.document({"listening": told})
            return
        self._output.note(f"Listening to {url}. Ctrl-C ends it.")
        if forward_to is not None:
            self._output.note(f"Forwarding to {forward_to}, signed with {secret or 'the secret given'}")

    def _tell_event(self, event: RecordedEvent) -> None:
        if self._output.is_json:
            self._output.document({"event": event})
            return
        data = (f"{name}={_shown(value)}" for name, value in event.data.items() if value is not None)
        self._output.line(event.created_at, event.type, event.id, *data)

    def _tell_forward(self, forward: Forward) -> None:
        if self._output.is_json:
            self._output.document({"forward": forward})
            return
        answer = forward.error if forward.status_code is None else forward.status_code
        retry = () if forward.retry_seconds is None else (f"again in {forward.retry_seconds:g} s",)
        self._output.line(
            f"  → {answer} in {forward.duration_ms} ms",
            forward.status,
            *retry,
            f"attempt {forward.attempt} of {forward.event_type} {forward.event_id}",
        )


class _Feed:
    """What a server's list of events holds that it did not hold before, oldest first.

    A window of the newest events is remembered, and not the newest alone: beside other servers an event may
    be listed after one that is later in the list.
    """

    def __init__(self, server: AsyncAgentPay, account_id: str | None) -> None:
        self._server = server
        self._account_id = account_id
        self._known: set[str] | None = None

    async def fresh(self) -> list[RecordedEvent]:
        """Return the events that are new; none the first time, when all there are are merely remembered."""
        page = await self._server.console.events.list(account_id=self._account_id, limit=_PAGE)
        seen = list(page.data)
        known = self._known
        while known is not None and page.has_more and page.data and page.data[-1].id not in known:
            page = await page.next_page()
            seen += page.data
        # The window alone: what lies below is never looked at again.
        self._known = {event.id for event in seen}
        return [] if known is None else [event for event in reversed(seen) if event.id not in known]


def _types(given: str | None) -> frozenset[str]:
    if given is None:
        return frozenset(EventType)
    names = frozenset(name.strip() for name in given.split(","))
    if unknown := sorted(names - frozenset(EventType)):
        raise click.BadParameter(
            f"there is no {', '.join(map(repr, unknown))}; there are {', '.join(EventType)}.",
            param_hint="--events",
        )
    return names


def _shown(value: Any) -> str:  # noqa: ANN401 - a JSON value
    text = str(value)
    return text if " " not in text else json.dumps(text, ensure_ascii=False)


def _end_at_sigterm() -> None:
    """Let SIGTERM do what Ctrl-C does, where there are such signals and they can be had."""
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
