"""The server in process: its life, its ways in, its threads, and callers who hang up."""

import asyncio
import concurrent.futures
import gc
import logging
import os
import pickle
import select
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext

import anyio
import httpx
import pytest
from server_world import START, raw_client

import agentpay
from agentpay import AgentPay, APIConnectionError, APITimeoutError, AsyncAgentPay, AuthenticationError
from agentpay_server import AgentPayServer, CannotListenError, Settings
from agentpay_server.credentials import KeyKind, new_key
from agentpay_server.embedded import owner_thread as owner_module

KEY = new_key(KeyKind.OPERATOR, bytes(range(32)))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "agentpay-server"]


# --- Life -------------------------------------------------------------------------------------------------


def test_a_server_starts_once():
    server = AgentPayServer()
    with server, pytest.raises(RuntimeError, match="can start only once"):
        server.start()
    with pytest.raises(RuntimeError, match="can start only once"):
        server.start()


def test_an_unstarted_or_closed_server_raises():
    server = AgentPayServer()
    for state in ("new", "closed"):
        for use in (
            server.client,
            server.async_client,
            lambda: server.operator_key,
            lambda: server.base_url,
            lambda: server.console,
            lambda: server.sandbox,
            server.listen,
            lambda: server.agent_client("acct_x"),
        ):
            with pytest.raises(RuntimeError, match="not running"):
                use()
        assert repr(server) == "<AgentPayServer not running>"
        if state == "new":
            server.start()
            server.close()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"settings": {}}, TypeError, r"settings must be Settings, not dict: pass Settings\("),
        ({"settings": {"policy_update": "merge"}}, TypeError, "settings must be Settings, not dict"),
        ({"data_dir": ""}, ValueError, "data_dir is empty: pass a directory, or None"),
    ],
)
def test_an_invalid_argument_is_refused_with_what_to_pass(arguments, kind, message):
    with pytest.raises(kind, match=message):
        AgentPayServer(**arguments)


@pytest.mark.parametrize("name", ["policy_update", "onchain_memo"])
def test_an_unknown_choice_of_a_setting_is_refused_with_the_available_ones(name):
    with pytest.raises(ValueError, match=r"'x' is no \w+; available: \w+, \w+$"):
        Settings(**{name: "x"})


def test_a_port_and_hosts_of_wrong_types_are_named(server: AgentPayServer):
    with pytest.raises(TypeError, match="port must be an integer, not str"):
        server.listen(port="8402")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"allowed_hosts is a list of strings, .*: write \['pay.example'\]"):
        server.listen(allowed_hosts="pay.example")


def test_closing_twice_does_nothing_and_ends_the_thread():
    before = len(threads())
    server = AgentPayServer().start()
    assert len(threads()) == before + 1

    server.close()
    server.close()

    assert len(threads()) == before


def test_a_client_of_a_closed_server_raises():
    with AgentPayServer() as server:
        client = server.client()
        client.accounts.create(name="a")
    with pytest.raises((RuntimeError, agentpay.AgentPayError), match="closed"):
        client.accounts.list().data  # noqa: B018 - fetching is what fails


def test_a_failed_start_leaves_no_thread():
    before = len(threads())
    for key in ("x", "ap_operator_x", new_key(KeyKind.AGENT, bytes(32))):
        with pytest.raises(ValueError, match="operator key"):
            AgentPayServer(operator_key=key).start()

    assert len(threads()) == before


def test_a_server_that_is_never_closed_or_never_started_leaves_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AgentPayServer()
        server = AgentPayServer().start()
        server.close()
        del server
        gc.collect()


def test_a_given_operator_key_is_used():
    with AgentPayServer(operator_key=KEY) as server:
        assert server.operator_key == KEY
        assert server.client(api_key=KEY).accounts.create(name="a").name == "a"


def test_without_a_given_key_every_server_has_a_different_one():
    with AgentPayServer() as one, AgentPayServer() as other:
        assert one.operator_key != other.operator_key
        with pytest.raises(AuthenticationError):
            other.client(api_key=one.operator_key).accounts.create(name="a")


def test_a_server_cannot_be_pickled():
    with AgentPayServer() as server, pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(server)


def test_concurrent_servers_share_nothing():
    servers = [AgentPayServer(clock=START + timedelta(days=number)).start() for number in range(8)]
    try:
        for number, server in enumerate(servers):
            account = server.client().accounts.create(name=f"{number}")
            server.sandbox.fund(account.account_id, number + 1)
        for number, server in enumerate(servers):
            (account,) = server.client().accounts.list()
            assert (account.name, account.balance_usdc) == (f"{number}", number + 1)
            assert server.sandbox.clock.now() == START + timedelta(days=number)
    finally:
        for server in servers:
            server.close()


def test_the_same_seed_makes_the_same_world():
    def story(seed):
        with AgentPayServer(clock=START, seed=seed) as server:
            client = server.client()
            payer, payee = (client.accounts.create(name=name) for name in ("a", "b"))
            server.sandbox.fund(payer.account_id, 5)
            client.transfers.create(
                from_=payer.account_id, to=payee.account_id, amount="1", idempotency_key="k"
            )
            server.console.agent_keys.create(payer.account_id)
            client.policies.pause(payer.account_id)
            entries = tuple(client.accounts.transactions(payer.account_id))
            return server.operator_key, tuple(client.accounts.list()), entries

    assert story(7) == story(7)
    assert story(7) != story(8)


def test_the_default_clock_is_paused_at_the_start():
    with AgentPayServer() as server:
        assert abs(server.sandbox.clock.now() - datetime.now(UTC)) < timedelta(seconds=60)
        assert server.sandbox.clock.now() == server.sandbox.clock.now()


# --- Threads ----------------------------------------------------------------------------------------------


def test_a_call_from_the_servers_own_thread_raises_at_once(server: AgentPayServer):
    async def inside():
        with pytest.raises((RuntimeError, agentpay.APIConnectionError), match="wait for its own thread"):
            server.client().accounts.create(name="a")
        with pytest.raises((RuntimeError, agentpay.APIConnectionError), match="wait for its own thread"):
            server.sandbox.clock.advance(1)
        with pytest.raises((RuntimeError, agentpay.APIConnectionError), match="wait for its own thread"):
            server.console.accounts.get("acct_x")
        return True

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert server._running._owner.call(inside())


def test_an_async_call_from_the_servers_own_loop_is_awaited(server: AgentPayServer):
    async def inside():
        return await server.async_client().accounts.create(name="a")

    assert server._running._owner.call(inside()).name == "a"


def test_a_server_is_used_from_any_thread(server: AgentPayServer):
    client = server.client()

    def work(number):
        account = client.accounts.create(name=f"{number}")
        server.sandbox.fund(account.account_id, number + 1)
        return client.accounts.get(account.account_id).balance_usdc

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [number + 1 for number in range(16)]


# --- Async ------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_server_is_an_async_context_manager():
    before = len(threads())
    async with AgentPayServer(clock=START) as server:
        client = server.async_client()
        assert isinstance(client, AsyncAgentPay)
        payer, payee = await client.accounts.create(name="a"), await client.accounts.create(name="b")
        await server.async_sandbox.fund(payer.account_id, 5)
        agent = server.async_client(
            api_key=(await server.async_console.agent_keys.create(payer.account_id)).key
        )
        transfer = await agent.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
        assert transfer.status == "settled"
        assert await server.async_sandbox.clock.advance(60) == START + timedelta(minutes=1)
        assert server.client().accounts.get(payee.account_id).balance_usdc == 1

    assert len(threads()) == before


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_async_tests_use_a_server_and_its_inbox_on_each_event_loop(backend):
    async def pay():
        async with AgentPayServer() as server:
            client = server.async_client()
            payer, payee = [(await client.accounts.create(name=name)).account_id for name in ("a", "b")]
            await server.async_sandbox.fund(payer, 1)
            inbox = server.webhook_inbox(events=["transfer.settled"])
            transfer = await client.transfers.create(from_=payer, to=payee, amount=1)
            event = await inbox.wait_for_async("transfer.settled")
            assert event.data.transfer_id == transfer.transfer_id
            await inbox.drain_async()
            assert (await inbox.send_again_async(inbox.receipts[0])).status_code == 200
        return server

    assert not anyio.run(pay, backend=backend).is_running


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_server_started_on_each_event_loop_delivers_to_a_port(backend):
    async def pay():
        async with AgentPayServer() as server, AgentPayServer() as receiver:
            client = server.async_client()
            payer, payee = [(await client.accounts.create(name=name)).account_id for name in ("a", "b")]
            await server.async_sandbox.fund(payer, 1)
            url = f"{receiver.listen()}/healthz"
            await client.webhooks.create(url=url, events=["transfer.settled"])
            await client.transfers.create(from_=payer, to=payee, amount=1)
            await server.async_sandbox.clock.advance(0)
            return server.deliveries.one(event_type="transfer.settled").attempts[0].status_code

    assert anyio.run(pay, backend=backend) == 405  # an HTTP response: the path accepts only GET


def test_amounts_are_exact_whatever_the_decimal_context_of_the_caller():
    with localcontext() as context, AgentPayServer() as server:
        context.prec = 3
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("a", "b"))
        server.sandbox.fund(payer, "12345.678901")
        client.policies.update(payer, max_daily_spend=Decimal("1234.567891"))
        assert (
            str(client.transfers.create(from_=payer, to=payee, amount="123.456789").amount_usdc)
            == "123.456789"
        )
        assert str(client.accounts.balance(payer).balance_usdc) == "12222.222112"
        assert str(client.accounts.budget(payer).remaining_usdc) == "1111.111102"
        assert server.requests.one(path="/v1/transfers").body["amount"] == "123.456789"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_block_closes_its_server_and_disarms_its_fault(backend):
    async def cancelled():
        with anyio.CancelScope() as scope:
            async with AgentPayServer() as server:
                with anyio.CancelScope() as inner:
                    async with server.async_sandbox.fault("chain_down"):
                        inner.cancel()
                        await anyio.sleep_forever()
                faults = await server.async_sandbox.faults()
                scope.cancel()
                await anyio.sleep_forever()
        return server.is_running, faults.data

    assert anyio.run(cancelled, backend=backend) == (False, ())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_the_servers_thread_and_can_start_its_own(server: AgentPayServer):
    client = server.client()

    def child() -> str:
        with pytest.raises(APIConnectionError, match="create a server here"):
            client.with_options(max_retries=0).accounts.list()
        with pytest.raises(RuntimeError, match="create a server here"):
            _ = server.events
        server.close()
        with AgentPayServer() as own:
            return own.client().accounts.create(name="of the child").name

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, child().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        is_answered = select.select([pipe], [], [], 30)[0]
        if not is_answered:
            os.kill(pid, signal.SIGKILL)
        assert (pipe.read(), os.waitpid(pid, 0)[1]) == ("of the child", 0)
    assert client.accounts.list().data == ()


@pytest.mark.anyio
async def test_async_calls_run_concurrently(server: AgentPayServer):
    client = server.async_client()

    made = await asyncio.gather(*(client.accounts.create(name=f"{number}") for number in range(20)))

    assert len({account.account_id for account in made}) == 20


def test_one_async_client_serves_several_event_loops(server: AgentPayServer):
    client = server.async_client()

    async def create(name):
        return (await client.accounts.create(name=name)).name

    assert [asyncio.run(create(name)) for name in ("a", "b")] == ["a", "b"]


@pytest.mark.anyio
async def test_a_disconnecting_caller_cancels_nothing(server: AgentPayServer):
    client, sync = server.async_client(), server.client()
    payer, payee = sync.accounts.create(name="a"), sync.accounts.create(name="b")
    server.sandbox.fund(payer.account_id, 100)

    for steps in range(12):
        key = f"key-{steps}"
        call = asyncio.ensure_future(
            client.transfers.create(
                from_=payer.account_id, to=payee.account_id, amount="1", idempotency_key=key
            )
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call

        # Whatever became of it, the key is all that is needed to go on: once, and once only.
        again = await client.transfers.create(
            from_=payer.account_id, to=payee.account_id, amount="1", idempotency_key=key
        )
        assert again.status == "settled"

    assert sync.accounts.get(payee.account_id).balance_usdc == 12


# --- A port -----------------------------------------------------------------------------------------------


def test_a_port_serves_the_same_state_as_in_process_clients(server: AgentPayServer, client: AgentPay):
    account = client.accounts.create(name="a")

    base_url = server.listen()

    assert server.base_url == base_url
    assert base_url.startswith("http://127.0.0.1:")
    headers = {"Authorization": f"Bearer {server.operator_key}"}
    answer = httpx.get(f"{base_url}/v1/accounts/{account.account_id}", headers=headers)
    assert answer.status_code == 200
    assert answer.json()["account_id"] == account.account_id
    assert answer.headers["x-request-id"].startswith("req_")
    with AgentPay(api_key=server.operator_key, base_url=base_url) as over_a_port:
        assert over_a_port.accounts.create(name="b").name == "b"
    assert len(client.accounts.list().data) == 2
    assert base_url in repr(server)


def test_a_server_listens_once_and_releases_the_port():
    with AgentPayServer() as server:
        base_url = server.listen()
        with pytest.raises(RuntimeError, match="already listening"):
            server.listen()
    with pytest.raises(httpx.ConnectError):
        httpx.get(base_url)
    port = int(base_url.rpartition(":")[2])
    with AgentPayServer() as server:
        assert server.listen(port=port) == base_url


def test_a_port_that_is_taken_is_a_declared_error(server: AgentPayServer):
    port = int(server.listen().rpartition(":")[2])

    with AgentPayServer() as other:
        with pytest.raises(
            CannotListenError, match=f"^cannot listen on 127.0.0.1 port {port}: .*in use; pass"
        ):
            other.listen(port=port)
        assert other.client().accounts.create(name="a").name == "a"
        assert other.listen() != server.base_url


@pytest.mark.parametrize("port", [-1, 65536])
def test_an_invalid_port_is_a_declared_error(server: AgentPayServer, port: int):
    with pytest.raises(ValueError, match=f"port must be between 0 and 65535, not {port}"):
        server.listen(port=port)
    assert server.listen()


def test_errors_over_a_port_equal_errors_in_process(server: AgentPayServer):
    base_url = server.listen()
    headers = {"Authorization": f"Bearer {server.operator_key}"}
    key, large = headers["Authorization"], b" " * (64 * 1024 + 1)

    def chunks():
        yield from [b" " * 1024] * 65

    with (
        httpx.Client(base_url=base_url) as anonymous,
        httpx.Client(base_url=base_url, headers=headers) as http,
    ):
        expected = [
            (401, anonymous.get("/v1/accounts")),
            (401, anonymous.get("/nowhere")),
            (401, anonymous.get("/v1/accounts", headers=[("Authorization", key)] * 2)),
            (404, http.get("/nowhere")),
            (404, http.get("/v1/accounts/%00")),
            (404, http.get("/v1/accounts/%ff")),
            (405, http.delete("/v1/accounts")),
            (405, http.head("/v1/accounts")),
            (413, http.post("/v1/accounts", content=large)),
            (413, http.post("/v1/accounts", content=chunks())),
            (415, http.post("/v1/accounts", content=b"{}", headers={"Content-Type": "text/plain"})),
            (400, http.post("/v1/accounts", content=b"{")),
            (400, http.get("/v1/accounts", params={"limit": "0"})),
            (400, http.get("/v1/accounts?cursor=%ff")),
        ]
        for status, answer in expected:
            assert answer.status_code == status
            assert answer.headers["x-request-id"].startswith("req_")
            if answer.request.method != "HEAD":
                assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert http.get("/v1/accounts").json() == {"data": [], "cursor": "", "has_more": False}


def test_a_204_over_a_port_has_no_body(server: AgentPayServer, client: AgentPay):
    key = server.console.agent_keys.create(client.accounts.create(name="a").account_id)
    headers = {"Authorization": f"Bearer {server.operator_key}"}

    answer = httpx.delete(f"{server.listen()}/console/agent-keys/{key.key_id}", headers=headers)

    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.anyio
async def test_disconnecting_from_a_port_cancels_nothing(server: AgentPayServer, client: AgentPay):
    payer, payee = client.accounts.create(name="a"), client.accounts.create(name="b")
    server.sandbox.fund(payer.account_id, 5)
    base_url = server.listen()
    body = f'{{"from":"{payer.account_id}","to":"{payee.account_id}","amount":"1","idempotency_key":"k"}}'
    request = (
        "POST /v1/transfers HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {server.operator_key}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )

    stream = await anyio.connect_tcp("127.0.0.1", int(base_url.rpartition(":")[2]))
    await stream.send(request.encode())
    await stream.aclose()

    transfer = await server.async_client().transfers.create(
        from_=payer.account_id, to=payee.account_id, amount="1", idempotency_key="k"
    )
    assert transfer.status == "settled"
    assert client.accounts.get(payee.account_id).balance_usdc == 1


def test_an_aborted_request_leaves_the_port_working(server: AgentPayServer):
    port = int(server.listen().rpartition(":")[2])

    async def cut_off():
        for part in (
            b"",
            b"GE",
            b"POST /v1/accounts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{",
            b"\xff\r\n\r\n",
        ):
            stream = await anyio.connect_tcp("127.0.0.1", port)
            await stream.send(part) if part else None
            await stream.aclose()

    anyio.run(cut_off)

    with raw_client(server) as http:
        assert http.get("/v1/accounts").status_code == 200
    assert httpx.get(f"http://127.0.0.1:{port}/v1/accounts").status_code == 401


# --- Closing while others call ----------------------------------------------------------------------------


def test_calls_during_close_finish_or_raise(caplog: pytest.LogCaptureFixture):
    server = AgentPayServer().start()
    client, ends = server.client(), []
    begun = threading.Barrier(7)

    def call_until_the_end():
        begun.wait()
        try:
            while client.accounts.list().data is not None:
                pass
        except (RuntimeError, agentpay.APIConnectionError) as error:
            ends.append("this server is closed; create a new one" in str(error))

    callers = [threading.Thread(target=call_until_the_end, daemon=True) for _ in range(6)]
    for caller in callers:
        caller.start()
    begun.wait()
    client.accounts.create(name="a")
    server.close()
    for caller in callers:
        caller.join(10)

    assert ends == [True] * 6
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.anyio
async def test_async_calls_during_close_finish_or_raise(caplog: pytest.LogCaptureFixture):
    server = AgentPayServer().start()
    client, ends = server.async_client(), []

    async def call_until_the_end():
        try:
            while await client.accounts.create(name="a"):
                pass
        except (RuntimeError, agentpay.APIConnectionError) as error:
            ends.append("this server is closed; create a new one" in str(error))

    callers = [asyncio.ensure_future(call_until_the_end()) for _ in range(6)]
    await client.accounts.create(name="b")
    await asyncio.to_thread(server.close)

    await asyncio.wait_for(asyncio.gather(*callers), 10)
    assert ends == [True] * 6
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_server_is_not_closed_from_inside_itself():
    with AgentPayServer() as server:
        owner = server._running._owner

        async def inside():
            owner.stop()

        with pytest.raises((RuntimeError, agentpay.APIConnectionError), match="wait for its own thread"):
            owner.call(inside())
        assert server.client().accounts.create(name="a").name == "a"


# --- Slow responses ---------------------------------------------------------------------------------------


@pytest.fixture
def slow(server: AgentPayServer, monkeypatch: pytest.MonkeyPatch) -> AgentPayServer:
    """A server that never responds to the list of accounts."""

    async def never(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(server._running.server.services.accounts, "list", never)
    return server


def test_a_slow_call_times_out_and_the_server_continues(slow: AgentPayServer):
    client = slow.client().with_options(timeout=0.02, max_retries=0)

    with pytest.raises(APITimeoutError):
        client.accounts.list().data  # noqa: B018 - fetching is what takes too long
    assert slow.client().accounts.create(name="a").name == "a"


@pytest.mark.anyio
async def test_a_slow_async_call_times_out_and_the_server_continues(slow: AgentPayServer):
    client = slow.async_client().with_options(timeout=0.02, max_retries=0)

    with pytest.raises(APITimeoutError):
        await client.accounts.list()
    assert (await slow.async_client().accounts.create(name="a")).name == "a"


def test_endless_calls_are_cancelled_by_the_close(slow: AgentPayServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(owner_module, "_LAST_CALLS_SECONDS", 0.02)
    client, ends, under_way = slow.client(), [], threading.Event()

    def call():
        under_way.set()
        try:
            client.accounts.list().data  # noqa: B018 - fetching is what never ends
        except (RuntimeError, agentpay.APIConnectionError) as error:
            ends.append("this server is closed; create a new one" in str(error))

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    under_way.wait()
    slow.close()
    caller.join(10)

    assert ends == [True]


@pytest.mark.anyio
async def test_endless_async_calls_are_cancelled_by_the_close(
    slow: AgentPayServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(owner_module, "_LAST_CALLS_SECONDS", 0.02)
    call = asyncio.ensure_future(slow.async_client().accounts.list())
    await asyncio.sleep(0)

    await asyncio.to_thread(slow.close)

    with pytest.raises((RuntimeError, agentpay.APIConnectionError), match="this server is closed"):
        await asyncio.wait_for(call, 10)


def test_close_does_not_wait_for_a_cancelled_call(slow: AgentPayServer):
    call = slow._running._owner._submit(asyncio.sleep(3600))
    assert call.cancel()
    assert concurrent.futures.wait({call}, timeout=60).not_done == set()


# --- As an ASGI application -------------------------------------------------------------------------------


def asgi(server, scope, *received):
    """The messages that the application sends."""
    messages, sent = list(received), []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    world = server._running
    world._owner.call(world._app(scope, receive, send))
    return sent


def test_the_application_supports_the_asgi_lifespan(server: AgentPayServer):
    sent = asgi(server, {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})

    assert sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]


def test_a_websocket_is_refused(server: AgentPayServer):
    assert asgi(server, {"type": "websocket", "path": "/v1/accounts"}) == [
        {"type": "websocket.close", "code": 1000}
    ]


@pytest.mark.parametrize(
    ("method", "path", "part"),
    [
        ("POST", "/v1/accounts", b'{"name":"whole, but the caller says there is more"}'),
        ("POST", "/v1/accounts", b'{"na'),
        ("POST", "/sandbox/operators", b'{"name":"x"}'),
        ("POST", "/sandbox/token-accounts", b""),
        ("POST", "/console/agent-keys", b'{"account_id":"x"}'),
    ],
)
def test_an_incomplete_request_is_discarded(server: AgentPayServer, method: str, path: str, part: bytes):
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {server.operator_key}".encode())],
    }
    entries = [entry.action for entry in server.console.audit.list()]

    sent = asgi(
        server,
        scope,
        {"type": "http.request", "body": part, "more_body": True},
        {"type": "http.disconnect"},
    )

    assert sent == []
    assert [entry.action for entry in server.console.audit.list()] == entries
