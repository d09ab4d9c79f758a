"""`agentpay listen`: what is printed, what is forwarded, and how it ends."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest
from command_line import WAIT_SECONDS, CommandLine, next_json, processing
from receivers import Receiver, closed_port, drop, hang
from server_world import Funded

from agentpay import testing, webhooks
from agentpay.cli.connection import ServerAccess
from agentpay.cli.forwarding import Forward, Forwarder
from agentpay.cli.listening import EventListener
from agentpay.cli.output import Output
from agentpay.contract.events import EVENTS
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.anyio

SECRET = "whsec_of_a_test"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


class Account:
    """An account of the test's, by which events happen."""

    def __init__(self, server: AgentPayServer, funded: Funded) -> None:
        self._server = server
        self.account_id = funded().account_id
        self._payee = server.client().accounts.create(name="Payee").account_id

    def pay(self, amount: str = "1") -> str:
        transfer = self._server.client().transfers.create(
            from_=self.account_id, to=self._payee, amount=amount, memo="to be heard"
        )
        return transfer.transfer_id


@pytest.fixture
def account(server: AgentPayServer, funded: Funded) -> Account:
    return Account(server, funded)


class Heard:
    """The output of a listener within the test, line by line."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._lines: list[str] = []
        self.stderr = ""

    async def _until(self, is_told: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not is_told():
                captured = self._capsys.readouterr()
                self._lines += captured.out.splitlines()
                self.stderr += captured.err
                await asyncio.sleep(0)

    async def line(self) -> str:
        await self._until(lambda: bool(self._lines))
        return self._lines.pop(0)

    async def told(self, text: str) -> None:
        """Return once a note has been printed on standard error."""
        await self._until(lambda: text in self.stderr)

    async def json(self, kind: str) -> Any:
        """Return the next line, which must be of that kind."""
        (item,) = json.loads(await self.line()).items()
        assert item[0] == kind, item
        return item[1]


Listening = Callable[..., AbstractAsyncContextManager[Heard]]


@pytest.fixture
def listening(commands: CommandLine, capsys: pytest.CaptureFixture[str]) -> Listening:
    """Starts a listener within the test, which looks as often as it can."""

    @asynccontextmanager
    async def listening(
        *, forward_to: str | None = None, secret: str | None = None, is_json: bool = True, **chosen: Any
    ) -> AsyncIterator[Heard]:
        url, key = (commands.environment[f"AGENTPAY_{name}"] for name in ("BASE_URL", "API_KEY"))
        choice = {"types": frozenset(EVENTS), "account_id": None, **chosen}
        address, output = ServerAccess(url=url, key=key), Output(is_json=is_json)
        listener = EventListener(address, output, **choice, interval_seconds=0.01)
        task = asyncio.create_task(listener.run(forward_to, secret))
        try:
            yield Heard(capsys)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    return listening


@pytest.mark.parametrize("chosen", [False, True])
async def test_only_new_events_of_the_chosen_types_and_account_are_printed(
    listening: Listening, commands: CommandLine, account: Account, chosen: bool
) -> None:
    account.pay()
    settled, other = frozenset({"transfer.settled"}), Account(commands.server, commands.funded)
    choice: dict[str, Any] = {"types": settled, "account_id": account.account_id} if chosen else {}
    async with listening(**choice) as heard:
        assert await heard.json("listening") == {
            "base_url": commands.environment["AGENTPAY_BASE_URL"],
            "forward_to": None,
            "secret": None,
        }
        transfers = [other.pay(), account.pay()]
        types = ["transfer.initiated", "transfer.settled"]
        expected = [(kind, transfer_id) for transfer_id in transfers for kind in types]
        for kind, transfer_id in expected[3:] if chosen else expected:
            event = await heard.json("event")
            assert (event["type"], event["data"]["transfer_id"]) == (kind, transfer_id)


async def test_more_than_a_page_at_once_is_printed_in_order_and_once(
    listening: Listening, account: Account
) -> None:
    async with listening(types=frozenset({"transfer.settled"})) as heard:
        await heard.json("listening")
        # Nothing runs between these: the listener shares the loop that they hold up.
        expected = [account.pay("0.01") for _ in range(120)]
        assert [(await heard.json("event"))["data"]["transfer_id"] for _ in expected] == expected


@pytest.mark.in_memory("nothing else can be brought back")
async def test_listening_continues_after_a_restore(
    listening: Listening, commands: CommandLine, account: Account
) -> None:
    snapshot = commands.server.sandbox.snapshot()
    async with listening(types=frozenset({"transfer.settled"})) as heard:
        await heard.json("listening")
        for _ in range(3):
            transfer_id = account.pay()
            assert (await heard.json("event"))["data"]["transfer_id"] == transfer_id
            commands.server.sandbox.restore(snapshot)


# --- Forwarding


async def test_forwarded_events_equal_those_of_a_webhook(
    listening: Listening, commands: CommandLine, account: Account, receiver: Receiver
) -> None:
    with Receiver() as registered:
        webhook = commands.server.client().webhooks.create(url=registered.url, events=["escalation.required"])
        commands.server.client().policies.update(account.account_id, escalation_threshold="0.5")
        async with listening(forward_to=receiver.url) as heard:
            secret = (await heard.json("listening"))["secret"]
            transfer_id = account.pay()
            assert (await heard.json("event"))["data"]["transfer_id"] == transfer_id
            forward = await heard.json("forward")
            assert (forward["status_code"], forward["attempt"], forward["status"]) == (200, 1, "delivered")
        commands.server.sandbox.clock.advance(0)
        (ours,), (theirs,) = receiver.wait_for(1), registered.wait_for(1)
    assert ours.body == theirs.body
    own = {"host", "x-service-signature"}  # the receiver's, and the secret's
    assert ours.headers.keys() == theirs.headers.keys()
    assert {ours.headers[name] == theirs.headers[name] for name in ours.headers.keys() - own} == {True}
    event = webhooks.unwrap(ours.body, ours.headers, secret)
    assert isinstance(event, webhooks.EscalationRequired)
    assert event == webhooks.unwrap(theirs.body, theirs.headers, webhook.secret)


@pytest.mark.parametrize("is_forwarded", [True, False])
async def test_the_terminal_shows_one_line_per_event_or_forward_and_the_secret(
    listening: Listening, account: Account, receiver: Receiver, is_forwarded: bool
) -> None:
    types = frozenset({"transfer.settled"})
    receiver.next(503)
    url = receiver.url if is_forwarded else None
    async with listening(forward_to=url, types=types, is_json=False) as heard:
        await heard.told(f"Forwarding to {url}, signed with whsec_" if is_forwarded else "Listening to ")
        transfer_id = account.pay()
        line = await heard.line()
    pattern = (
        r"\d\d:\d\d:\d\d \[503\] +\d+ ms transfer\.settled +evt_\w{26} retry in 30 s"
        if is_forwarded
        else rf"\d\d:\d\d:\d\d transfer\.settled +evt_\w{{26}} 1\.000000 USDC {transfer_id}"
    )
    assert re.fullmatch(pattern, line), line


async def test_a_given_secret_signs_and_is_not_printed(
    listening: Listening, account: Account, receiver: Receiver
) -> None:
    async with listening(forward_to=receiver.url, secret=SECRET) as heard:
        assert (await heard.json("listening"))["secret"] is None
        account.pay()
        while "event" in json.loads(await heard.line()):
            pass
    webhooks.verify(receiver.posts[0].body, receiver.posts[0].headers, SECRET)


@pytest.mark.parametrize(
    ("acts", "told", "waits"),
    [
        ([500, drop, 302, 204], [500, None, 302, 204], [30, 300, 1800]),
        ([500] * 5, [500] * 5, [30, 300, 1800, 7200]),
    ],
)
async def test_a_failing_receiver_is_retried_on_the_service_schedule_and_then_abandoned(
    receiver: Receiver, acts: list[Any], told: list[int | None], waits: list[float]
) -> None:
    forwards: list[Forward] = []
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    receiver.next(*acts)
    forwarder = Forwarder(receiver.url, webhooks.WebhookSecrets(SECRET), forwards.append, sleep=sleep)
    await forwarder.forward(testing.event("transfer.settled"))
    await forwarder.close()
    last = "delivered" if told[-1] == 204 else "undelivered"
    assert [(each.attempt, each.status_code, each.status) for each in forwards] == [
        (number, code, last if number == len(told) else "retrying") for number, code in enumerate(told, 1)
    ]
    assert waited == waits
    assert forwards[-1].retry_seconds is None
    assert len({post.body for post in receiver.posts}) == 1
    numbers = [post.headers["x-service-delivery-attempt"] for post in receiver.posts]
    assert numbers == [str(number) for number in range(1, len(told) + 1)]


# --- Troubles


async def test_an_outage_is_reported_once_and_no_event_is_missed(
    listening: Listening, commands: CommandLine, account: Account
) -> None:
    types = frozenset({"transfer.settled"})
    async with listening(types=types, is_json=False) as heard:
        await heard.told("Listening to ")
        commands.server.sandbox.set_fault("http:GET /ext/v1/console/events", effect="internal_error")
        transfer_id = account.pay()
        await heard.told("Cannot read events from ")
        commands.server.sandbox.clear_faults()
        assert transfer_id in await heard.line()
        assert heard.stderr.count("retrying") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--events", "transfer.settled,transfer.lost"], "'transfer.lost'; available: transfer.initiated"),
        (["--forward-to", "localhost:3000"], "--forward-to"),
        (["--forward-to", "http://user:secret@localhost/"], "--forward-to"),
        (["--forward-to", "http://localhost/", "--secret", " x"], "white space"),
        (["--interval", "0"], "--interval"),
    ],
)
def test_invalid_options_are_refused(commands: CommandLine, arguments: list[str], says: str) -> None:
    result = commands.run("listen", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_listening_to_an_unreachable_server_fails_at_once(commands: CommandLine) -> None:
    said = commands.refused("listen", "--url", f"http://127.0.0.1:{closed_port()}")
    assert "no server responds" in said
    assert "unauthorized" in commands.refused("listen", "--key", "ap_operator_wrong")


# --- The process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_0(
    commands: CommandLine, account: Account, receiver: Receiver, number: signal.Signals
) -> None:
    with commands.process(
        "listen", "--json", "--interval", "0.05", "--events", "transfer.settled", "--forward-to", receiver.url
    ) as process:
        assert next_json(process)["listening"]["forward_to"] == receiver.url
        receiver.default = 500
        transfer_id = account.pay()
        assert next_json(process)["event"]["data"]["transfer_id"] == transfer_id
        assert next_json(process)["forward"]["status"] == "retrying"
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_SECONDS)
        assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("is_json", [False, True])
def test_a_closed_output_pipe_ends_listening_silently(
    commands: CommandLine, account: Account, *, is_json: bool
) -> None:
    arguments = ["listen", "--interval", "0.05", *(["--json"] if is_json else [])]
    with commands.process(*arguments, is_fresh=is_json) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if is_json:
            next_json(process)
        else:
            assert "Listening" in process.stderr.readline()
        process.stdout.close()
        account.pay()
        assert process.wait(WAIT_SECONDS) == 1
        assert process.stderr.read() == ""


def test_an_interrupted_command_exits_silently_with_130(receiver: Receiver) -> None:
    receiver.default = hang
    address = f"http://{receiver.host}:{receiver.port}"
    options = ("--url", address, "--key", "ap_operator_any")
    with processing("keys", "list", *options, is_fresh=True) as process:
        (asked,) = receiver.wait_for(1, WAIT_SECONDS)
        assert "keys" in asked.line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_SECONDS)
        assert (process.returncode, out, err) == (130, "", "")
