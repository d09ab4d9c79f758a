"""Runs the checks against a receiver, kills it if told how to start it, and scores what it has acted on."""

import asyncio
import contextlib
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from attrs import field, frozen

from agentpay_lab.receiver_test import deliveries
from agentpay_lab.receiver_test.checks import CHECKS, title_of
from agentpay_lab.receiver_test.deliveries import DeliveryRequest, Events, SampleEvent, delivery

SECRET_VARIABLE: Final = "AGENTPAY_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
_TIMEOUT_SECONDS: Final = 10.0
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
"""How long a killed receiver may keep its port."""

_POLL_SECONDS: Final = 0.05
_GRACE_SECONDS: Final = 0.5
"""How long after all expected events an unexpected one is awaited."""

_ACTED_BYTES: Final = 10_000_000
_STANDARD_ERROR: Final = 2
_EVENT: Final = re.compile(r"evt_[0-9a-z]{26}")

KILLED: Final = "Acts once on an event if it is killed around its response."


class ReceiverError(Exception):
    """The receiver cannot be tested; the message says why."""


@frozen(kw_only=True)
class ReceiverTestPlan:
    """The plan of a receiver test.

    Attributes:
        url: where the receiver accepts deliveries.
        acted: a URL or a file that shows the identifiers of the events that it has acted on, each as often as
            it has acted.
        secret: its secret.
        old_secret: a secret that it must no longer accept; None if it never had another one.
        command: starts the receiver; without one it is running, and is not killed.
        wait_seconds: how long it may take to act.
        kills: how often it is killed and started again.
    """

    url: str
    acted: str
    secret: str = field(repr=False)
    old_secret: str | None = field(default=None, repr=False)
    command: tuple[str, ...] = ()
    seed: int = 0
    wait_seconds: float = 10.0
    kills: int = 8


@frozen(kw_only=True)
class Miss:
    """What a receiver did wrong: a sentence, and the request that shows it."""

    sentence: str
    request: dict[str, Any]


@frozen(kw_only=True)
class ReceiverCheck:
    """The result of one check; it has passed without misses."""

    check: str
    misses: tuple[Miss, ...]


@frozen(kw_only=True)
class Report:
    """The results of all checks."""

    seed: int
    results: tuple[ReceiverCheck, ...]

    @property
    def has_passed(self) -> bool:
        """Whether nothing was missed."""
        return not any(result.misses for result in self.results)


@frozen
class _Expectation:
    check: str
    event: SampleEvent
    sent: DeliveryRequest
    cause: str
    times: int


class ReceiverTest:
    """One test of a receiver."""

    def __init__(self, plan: ReceiverTestPlan, say: Callable[[str], None]) -> None:
        self.events = Events(plan.seed, deliveries.now())
        self.secret = plan.secret
        self.old_secret = plan.old_secret
        self._plan = plan
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._check = ""
        self._misses: dict[str, list[Miss]] = {}
        self._expected: dict[str, _Expectation] = {}

    async def run(self) -> Report:
        """Run all checks.

        Raises:
            ReceiverError: it does not start, or does not show what it has acted on.
        """
        async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as self._http:
            try:
                if self._plan.command:
                    await self._start()
                before = await self._acted()
                for check in CHECKS:
                    if check.__name__ == "old_secret" and self.old_secret is None:
                        continue
                    self._begin(title_of(check))
                    await check(self)
                if self._plan.command and self._plan.kills:
                    self._begin(KILLED)
                    await self._kills()
                await self._judge(before)
            finally:
                self._stop()
        results = tuple(
            ReceiverCheck(check=name, misses=tuple(found)) for name, found in self._misses.items()
        )
        return Report(seed=self._plan.seed, results=results)

    def _begin(self, check: str) -> None:
        self._check = check
        self._misses[check] = []
        self._say(check)

    # --- For the checks

    async def deliver(self, sent: DeliveryRequest) -> int | None:
        """Make a delivery; return the status, or None without a response in 10 seconds."""
        headers = [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in sent.headers.items()
        ]
        try:
            async with (
                asyncio.timeout(_TIMEOUT_SECONDS),
                # The body does not count, and may have no end.
                self._http.stream("POST", self._plan.url, content=sent.body, headers=headers) as response,
            ):
                return response.status_code
        except (httpx.HTTPError, TimeoutError):
            return None

    def miss(self, sentence: str, sent: DeliveryRequest) -> None:
        """Note what the receiver did wrong, once for each sentence of a check."""
        found = self._misses[self._check]
        if sentence not in [each.sentence for each in found]:
            found.append(Miss(sentence=sentence, request=sent.shown))

    def acts_once(self, event: SampleEvent, sent: DeliveryRequest, cause: str) -> None:
        """Expect that the event is acted on exactly once."""
        self._expected[event.id] = _Expectation(self._check, event, sent, cause, 1)

    def never_acts(self, event: SampleEvent, sent: DeliveryRequest, cause: str) -> None:
        """Expect that the event is never acted on."""
        self._expected[event.id] = _Expectation(self._check, event, sent, cause, 0)

    # --- Kills

    async def _kills(self) -> None:
        """Kill the receiver during a delivery, or right after its response, and start it again."""
        for number in range(self._plan.kills):
            event = self.events.settled()
            sent = delivery(event, self.secret)
            if number % 2:
                # A 2xx ends the delivery: from then on the event is the receiver's.
                status = await self.deliver(sent)
                self._kill()
                await self._start()
                if status is not None and 200 <= status < 300:
                    self.acts_once(event, sent, "an event to which it had responded before it was killed")
                    continue
            else:
                posting = asyncio.create_task(self.deliver(sent))
                await asyncio.sleep(0.002 * (number + 1))
                self._kill()
                status = await posting
                await self._start()
            # The service repeats what was not acknowledged.
            again = delivery(event, self.secret, attempt=2)
            if status is None or not 200 <= status < 300:
                await self.deliver(again)
            self.acts_once(event, again, "an event that was repeated after it was killed")

    async def _start(self) -> None:
        await self._await_free_port()
        self._process = _started(self._plan.command, self.secret)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            code = self._process.poll()
            if code is not None:
                raise ReceiverError(f"the receiver ended with exit code {code} when it was started")
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS), self._http.stream("GET", self._plan.url):
                    return
            except (httpx.HTTPError, TimeoutError):
                await asyncio.sleep(_POLL_SECONDS)
        raise ReceiverError(f"nothing listens at {self._plan.url} after {_START_SECONDS:.0f} seconds")

    async def _await_free_port(self) -> None:
        """Wait until nothing listens: what does would be tested in place of the receiver."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            try:
                async with asyncio.timeout(_END_SECONDS), self._http.stream("GET", self._plan.url):
                    pass
            except httpx.ConnectError:
                return
            except (httpx.HTTPError, TimeoutError):
                # It listens, and does not respond.
                pass
            if time.monotonic() >= deadline:
                what = "survives the end of the receiver" if self._process else "listens there already"
                raise ReceiverError(f"a process {what}, at {self._plan.url}: end it, or pass no COMMAND")
            await asyncio.sleep(_POLL_SECONDS)

    def _kill(self) -> None:
        if self._process is not None:
            # Its children too: a shell may have started it.
            _kill_group(self._process)
            self._process.wait()

    def _stop(self) -> None:
        self._kill()
        self._process = None

    # --- The verdict

    async def _acted(self) -> Counter[str]:
        """Return how often the receiver has acted on each event."""
        source = self._plan.acted
        try:
            if source.startswith(("http://", "https://")):
                shown = await self._shown(source)
            else:
                shown = _content_of(Path(source))
        except (httpx.HTTPError, OSError) as error:
            # A TimeoutError has no text.
            why = str(error) or f"no complete response within {_TIMEOUT_SECONDS:.0f} seconds"
            raise ReceiverError(f"{source} does not show what was acted on: {why}") from None
        if len(shown) > _ACTED_BYTES:
            raise ReceiverError(f"{source} shows more than {_ACTED_BYTES} bytes: start with an empty one")
        return Counter(_EVENT.findall(shown.decode("utf-8", "replace")))

    async def _shown(self, url: str) -> bytes:
        shown = b""
        async with asyncio.timeout(_TIMEOUT_SECONDS), self._http.stream("GET", url) as response:
            response.raise_for_status()
            async for chunk in response.aiter_bytes():
                shown += chunk
                if len(shown) > _ACTED_BYTES:
                    break
        return shown

    async def _judge(self, before: Counter[str]) -> None:
        self._say("waiting for it to act")
        deadline = time.monotonic() + self._plan.wait_seconds
        while True:
            acted = await self._acted() - before
            is_complete = all(acted[each.event.id] >= each.times for each in self._expected.values())
            if is_complete or time.monotonic() >= deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.sleep(_GRACE_SECONDS)
        acted = await self._acted() - before
        for each in self._expected.values():
            times = acted[each.event.id]
            if times != each.times:
                self._check = each.check
                self.miss(_sentence(each, times), each.sent)


def _sentence(expected: _Expectation, times: int) -> str:
    if not expected.times:
        return f"It acted on {expected.cause}."
    if not times:
        return f"It never acted on {expected.cause}."
    return f"It acted {times} times on {expected.cause}."


def _content_of(path: Path) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(_ACTED_BYTES + 1)


def _started(command: Sequence[str], secret: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, SECRET_VARIABLE: secret}
    try:
        return subprocess.Popen(  # noqa: S603 - the caller's command
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            # Standard output is the report's.
            stdout=_STANDARD_ERROR,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ReceiverError(f"the receiver cannot be started: {error}") from None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        import signal  # noqa: PLC0415 - not everywhere

        # Its children too, if it has ended and they have not.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def shown_lines(report: Report) -> Sequence[str]:
    """Return a report as lines for people."""
    lines = []
    for result in report.results:
        lines.append(f"{'missed' if result.misses else 'ok':>7}  {result.check}")
        for miss in result.misses:
            lines.append(f"         {miss.sentence}")
            lines += [f"           {name}: {value[:120]}" for name, value in miss.request["headers"].items()]
            lines.append(f"           {miss.request['body'][:200]}")
    passed = sum(not result.misses for result in report.results)
    lines.append(f"{passed} of {len(report.results)} checks passed (seed {report.seed})")
    return lines
