"""Scenes on a running server, by HTTP, SDK and command: what is built, and what a failure leaves."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import CommandLine, next_json, processing
from server_world import faults, raw_client, refused

from agentpay import AgentPay, AgentPayError, ConflictError, OutcomeUnknownError
from agentpay_server import AgentPayServer, Sandbox, Settings

pytestmark = pytest.mark.embedded_chain("a scene is rehearsed on it")

SCENES = "/ext/v1/sandbox/scenes"
TWO = """
[accounts.agent]
name = "Agent"
balance_usdc = "4"
policy = {max_daily_spend = 9, allowed_counterparties = ["shop", "outside-1"]}
keys = [{name = "one"}, {name = "two", max_total_usdc = "2"}]

[accounts.shop]
name = "Shop"
balance_usdc = "2"
"""
HOOK = '[[webhooks]]\nurl = "http://127.0.0.1:9/"\nevents = ["transfer.settled"]\naccounts = ["agent"]\n'
PAYS = '[[history]]\nfrom = "agent"\nto = "%s"\namount = "1"\n'
TIME = "[[history]]\nadvance_seconds = 1\n"
HISTORY = HOOK + PAYS % "shop" + PAYS % "outside-1"


@pytest.fixture
def operator(server: AgentPayServer) -> httpx.Client:
    return raw_client(server)


def is_empty(server: AgentPayServer) -> bool:
    client = server.client()
    stored = [client.accounts, client.agent_keys, client.webhooks, client.sellers, client.transfers]
    return not any(list(each.list()) for each in stored)


def test_a_document_is_built_with_what_it_says(server: AgentPayServer) -> None:
    created = server.sandbox.create_scene(document=TWO + HISTORY)
    client = server.client()
    agent = created.accounts["agent"]
    assert [client.accounts.balance(each).balance_usdc for each in created.accounts.values()] == [4, 2]
    assert client.policies.get(agent).max_daily_spend == 9
    first, second = (server.client(api_key=key) for key in created.agent_keys["agent"])
    assert created.agent_keys["shop"] == ()
    assert (first.whoami().account_id, second.whoami().max_total_usdc) == (agent, Decimal(2))
    assert [client.transfers.get(each or "").status for each in created.history] == ["settled"] * 2
    (webhook,) = client.webhooks.list()
    assert created.webhook_ids == (webhook.webhook_id,)
    assert created.webhook_secrets[0].startswith("whsec_")
    assert "ap_agent_" not in repr(created)
    assert "whsec_" not in repr(created)


def test_each_listed_scene_is_built_by_its_name(server: AgentPayServer) -> None:
    scenes = list(server.sandbox.scenes(limit=5))
    names = [scene.name for scene in scenes]
    assert names == sorted(names)
    assert {"paused_account", "pending_approval", "transfer.settled"} <= set(names)
    assert not {"demo", "low_balance", "undelivered_webhook"} & set(names)
    for scene in scenes:
        assert scene.document.startswith(f"# {scene.description}\n")
        assert server.sandbox.create_scene(scene.name).accounts


def test_equal_requests_create_new_accounts(server: AgentPayServer) -> None:
    first, second = (server.sandbox.create_scene("paused_account").accounts for _ in range(2))
    assert not set(first.values()) & set(second.values())


@pytest.mark.anyio
async def test_the_async_client_builds_and_lists(server: AgentPayServer) -> None:
    created = await server.async_sandbox.create_scene("pending_approval")
    assert [each.transfer_id for each in server.client().approvals.list()] == list(created.history)
    assert "pending_approval" in [scene.name async for scene in server.async_sandbox.scenes()]


def test_a_key_of_an_agent_is_refused(server: AgentPayServer) -> None:
    account_id = server.client().accounts.create(name="Agent").account_id
    agent = raw_client(server, server.agent_keys.create(account_id).key)
    refused(agent.post(SCENES, json={"name": "paused_account"}), "forbidden")
    refused(agent.get(SCENES), "forbidden")
    assert len(server.client().accounts.list().data) == 1


A = '[accounts.a]\nname = "A"\n'
FAULTS: dict[str, tuple[str, str]] = {
    "a = [": ("document", "is not TOML: Invalid value (at end of document)"),
    "[" * 55_000: ("document", "is not TOML"),
    "a = " + "[" * 55_000: ("document", "nests deeper than 16 levels"),
    "a = " + "{b = " * 10_000: ("document", "nests deeper than 16 levels"),
    A + "metadata = {x = " + "[" * 20 + "]" * 20 + "}": ("document.accounts.a.metadata.x[0]", "nests deeper"),
    "a" + ".a" * 27_000 + " = 1": ("document", "has a key of more than 16 parts"),
    "[a" + ".a" * 27_000 + "]": ("document", "has a key of more than 16 parts"),
    "a = " + "9" * 55_000: ("document", "is not TOML: Exceeds the limit"),
    A + "balance_usdc = 0x" + "f" * 55_000: ("document.accounts.a.balance_usdc", "at most 64 bits"),
    A + "metadata = {on = 2026-01-31}": ("document.accounts.a.metadata.on", 'a string, "2026-01-31"'),
    A + "balance_usdc = nan": ("document.accounts.a.balance_usdc", "must be a finite number"),
    A + A: ("document", "is not TOML: Cannot declare ('accounts', 'a') twice"),
    A + "color = 1": ("document.accounts.a.color", "(line 3) is unknown; allowed: name"),
    "".join(f"x{number} = 1\n" for number in range(6000)): ("document.accounts", "is required"),
    A + '[[webhooks]]\nurl = "inbox"\nevents = ["transfer.settled"]': ("document.webhooks[0].url", "needs"),
    A + '[[sellers]]\nname = "s"\nprice = 1': ("document.sellers[0]", "is a local seller"),
    TWO + PAYS % "nowhere": ("document.history[0].to", "must name an account of the scene, or begin with"),
    A + TWO.replace("agent", "b") + '[[history]]\nfrom = "a"\nto = "b"\namount = 9': (
        "document.accounts.b.balance_usdc",
        "too little",
    ),
    TWO + PAYS % "shop" + 'status = "rejected"': (
        "document.history[0].status",
        "but the transfer is settled",
    ),
    TWO + HOOK.replace("http", "ftp"): ("document.webhooks[0]", "the server refuses it: 400 invalid_request"),
}


@pytest.mark.parametrize("document", FAULTS, ids=range(len(FAULTS)))
def test_a_faulty_document_names_the_place_and_stores_nothing(
    server: AgentPayServer, operator: httpx.Client, document: str
) -> None:
    started = time.monotonic()
    response = operator.post(SCENES, json={"document": document})
    refused(response, "invalid_request")
    place, message = FAULTS[document]
    assert [each for each in faults(response).items() if each[0].startswith(place) and message in each[1]]
    assert len(response.content) < 25_000
    assert is_empty(server)
    # No document of this size takes the parser minutes.
    assert time.monotonic() - started < 30


def test_a_missing_key_has_no_line_since_other_tables_have_it(operator: httpx.Client) -> None:
    response = operator.post(SCENES, json={"document": A + "[accounts.b]"})
    assert faults(response) == {"document.accounts.b.name": "is required"}


@pytest.mark.parametrize(
    "body",
    [{}, {"name": "paused_account", "document": A}, {"name": "demo"}, {"name": "../demo"}, {"name": None}],
    ids=str,
)
def test_a_request_needs_one_known_name_or_one_document(
    server: AgentPayServer, operator: httpx.Client, body: dict[str, Any]
) -> None:
    response = operator.post(SCENES, json=body)
    refused(response, "invalid_request")
    assert list(faults(response)) == ["name"]
    assert is_empty(server)
    if None not in body.values() and len(body) != 1:
        with pytest.raises(ValueError, match="either"):
            server.sandbox.create_scene(**body)


def test_a_document_of_more_than_64_kib_is_too_large(operator: httpx.Client) -> None:
    refused(operator.post(SCENES, json={"document": "#" * 65_536}), "payload_too_large")


def test_an_account_of_another_operator_is_no_payee(server: AgentPayServer, operator: httpx.Client) -> None:
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    theirs = other.accounts.create(name="Theirs")
    for payee in (theirs.account_id, theirs.usdc_token_account):
        response = operator.post(SCENES, json={"document": TWO + PAYS % payee})
        assert "must name an account of the scene" in faults(response)["document.history[0].to"]
    assert is_empty(server)
    # Each operator builds with its own key.
    Sandbox(other).create_scene("paused_account")
    assert is_empty(server)


def test_time_passes_only_by_a_manual_clock(operator: httpx.Client, server: AgentPayServer) -> None:
    before = server.sandbox.clock.now()
    created = server.sandbox.create_scene(document=TWO + PAYS % "shop" + TIME)
    assert created.history[1] is None
    assert (server.sandbox.clock.now() - before).total_seconds() == 1
    with AgentPayServer(clock="system") as running:
        response = raw_client(running).post(SCENES, json={"document": TWO + PAYS % "shop" + TIME})
        assert "clock_not_manual" in faults(response)["document.history[1]"]
        assert is_empty(running)


def test_scenes_that_are_built_at_once_do_not_mix(server: AgentPayServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        document = TWO + HISTORY
        built = list(pool.map(lambda _: server.sandbox.create_scene(document=document), range(4)))
    accounts = [account_id for each in built for account_id in each.accounts.values()]
    assert len(set(accounts)) == 8
    balances = [server.client().accounts.balance(each).balance_usdc for each in accounts]
    assert balances == [4, 2] * 4


def test_a_chain_that_is_down_at_the_beginning_leaves_nothing(
    server: AgentPayServer, operator: httpx.Client
) -> None:
    server.sandbox.set_fault("chain_down")
    response = operator.post(SCENES, json={"document": TWO + HISTORY})
    refused(response, "chain_unavailable")
    assert is_empty(server)


def during(server: AgentPayServer, act: Callable[[], Awaitable[None]]) -> None:
    """Act when the second step of a scene lets time pass, while the server delivers the first one's event."""

    async def receiver(scope: Any, receive: Any, send: Any) -> None:
        await act()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    server.deliver_to(receiver, events=["transfer.settled"])


def test_a_chain_that_goes_down_in_the_middle_leaves_what_the_response_lists(
    server: AgentPayServer, operator: httpx.Client
) -> None:
    async def break_chain() -> None:
        await server.async_sandbox.set_fault("chain_down")

    during(server, break_chain)
    hooks = {each.webhook_id for each in server.client().webhooks.list()}
    pin = '[[sellers]]\norigin = "https://api.example.com"\nblocked = true\n'
    response = operator.post(
        SCENES, json={"document": TWO + pin + HOOK + PAYS % "shop" + TIME + PAYS % "shop"}
    )
    server.sandbox.clear_faults()
    body = refused(response, "scene_incomplete")
    assert "history[2]: the server refuses it: 503 chain_unavailable" in body["message"]
    client = server.client()
    accounts = {each.name: each.account_id for each in client.accounts.list()}
    (transfer,) = client.transfers.list()
    assert {each["field"]: each["message"] for each in body["details"]} == {
        "document.accounts.agent": f"remains as {accounts['Agent']}",
        "document.accounts.shop": f"remains as {accounts['Shop']}",
        "document.sellers[0]": "remains as the pin of https://api.example.com",
        "document.history[0]": f"remains as {transfer.transfer_id}",
    }
    assert {each.webhook_id for each in client.webhooks.list()} == hooks
    assert not list(client.agent_keys.list())
    # The next one is built.
    server.sandbox.create_scene("paused_account")


def test_the_sdk_raises_what_remains_and_does_not_retry(server: AgentPayServer) -> None:
    async def break_chain() -> None:
        await server.async_sandbox.set_fault("chain_down")

    during(server, break_chain)
    with pytest.raises(ConflictError) as caught:
        server.sandbox.create_scene(document=TWO + PAYS % "shop" + TIME + PAYS % "shop")
    assert (caught.value.retryable, caught.value.retries_made) == (False, 0)
    assert [fault.field for fault in caught.value.details] == [
        "document.accounts.agent",
        "document.accounts.shop",
        "document.history[0]",
    ]
    server.sandbox.clear_faults()
    assert len(server.client().accounts.list().data) == 2


def test_a_restore_ends_a_build_and_nothing_of_it_appears_later(server: AgentPayServer) -> None:
    delivering, go_on = threading.Event(), threading.Event()

    async def wait() -> None:
        delivering.set()
        await asyncio.to_thread(go_on.wait, 60)

    during(server, wait)
    snapshot = server.sandbox.snapshot()
    with ThreadPoolExecutor(1) as pool:
        document = TWO + PAYS % "shop" + TIME + PAYS % "shop"
        building = pool.submit(server.sandbox.create_scene, document=document)
        assert delivering.wait(60)
        server.sandbox.restore(snapshot)
        go_on.set()
        with pytest.raises(AgentPayError):
            building.result(60)
    assert not list(server.client().accounts.list())
    assert server.sandbox.create_scene("paused_account").accounts
    assert len(server.client().accounts.list().data) == 2


def test_a_build_whose_caller_has_gone_stops_and_leaves_no_keys_and_webhooks(server: AgentPayServer) -> None:
    delivering, go_on = threading.Event(), threading.Event()

    async def wait() -> None:
        delivering.set()
        await asyncio.to_thread(go_on.wait, 60)

    during(server, wait)
    hooks = {each.webhook_id for each in server.client().webhooks.list()}
    base_url, document = server.listen(), TWO + HOOK + PAYS % "shop" + TIME + PAYS % "shop"
    with raw_client(server) as operator:
        headers = {"Authorization": operator.headers["Authorization"]}
    with httpx.Client(base_url=base_url, headers=headers) as caller:
        with ThreadPoolExecutor(1) as pool:

            async def gone() -> None:
                async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=60) as client:
                    asked = asyncio.ensure_future(client.post(SCENES, json={"document": document}))
                    assert await asyncio.to_thread(delivering.wait, 60)
                    asked.cancel()

            pool.submit(asyncio.run, gone()).result(60)
        # The server has read that the connection is closed before it responds to a later one.
        for _ in range(2):
            assert caller.get("/healthz").is_success
        go_on.set()
        # One scene is built at a time, so this one waits for the end of the other.
        created = caller.post(SCENES, json={"name": "paused_account"}).json()
    client = server.client()
    assert len([each for each in client.transfers.list() if each.status == "settled"]) == 1
    assert {each.webhook_id for each in client.webhooks.list()} == hooks
    assert {each.account_id for each in client.agent_keys.list()} <= set(created["accounts"].values())


def test_a_server_that_is_killed_in_a_build_continues_with_what_is_stored(tmp_path: Path) -> None:
    arguments = ["serve", "--port", "0", "--data-dir", str(tmp_path / "data"), "--clock", "manual"]
    with processing(*arguments) as process:
        told = next_json(process)
        with AgentPay(api_key=told["operator_key"], base_url=told["base_url"], max_retries=0) as client:
            # The rehearsal, in the same process, passes it.
            Sandbox(client).set_fault("crash_at:transfer.signed")
            with pytest.raises(OutcomeUnknownError):
                Sandbox(client).create_scene(document=TWO + HISTORY)
        assert process.wait(60) != 0
    with processing(*arguments) as process:
        again = next_json(process)
        with AgentPay(api_key=told["operator_key"], base_url=again["base_url"]) as client:
            Sandbox(client).clock.advance(60)
            assert [each.status for each in client.transfers.list()] == ["settled"]
            assert len(client.accounts.list().data) == 2
            assert len(list(client.agent_keys.list())) == 2
            assert len(Sandbox(client).create_scene(document=TWO + HISTORY).history) == 2
            assert len(client.accounts.list().data) == 4


def test_a_build_counts_toward_the_rate_limit_but_its_rehearsal_does_not() -> None:
    with AgentPayServer(settings=Settings(rate_limit_per_minute=12)) as server:
        assert server.sandbox.create_scene("pending_approval").accounts


# --- Commands


def test_the_commands_list_and_build_scenes(server: AgentPayServer, tmp_path: Path) -> None:
    commands = CommandLine(server)
    listed = commands.shown("scene", "list")
    assert "pending_approval" in listed
    assert "A transfer waits for approval." in listed
    shown = commands.shown("scene", "build", "pending_approval")
    (waiting,) = server.client().approvals.list()
    assert waiting.transfer_id in shown
    path = tmp_path / "mine.toml"
    path.write_text(TWO + HISTORY, "utf-8")
    built = commands.json("scene", "build", str(path), "--json")
    assert (
        server.client(api_key=built["agent_keys"]["agent"][0]).whoami().account_id
        == built["accounts"]["agent"]
    )
    quiet = commands.shown("scene", "build", "paused_account", "--quiet").split()
    assert quiet == [each.account_id for each in reversed(server.client().accounts.list(limit=2).data)]


def test_the_command_names_the_fault_of_a_scene(server: AgentPayServer, tmp_path: Path) -> None:
    commands = CommandLine(server)
    path = tmp_path / "mine.toml"
    path.write_text(A + "color = 1", "utf-8")
    failed = commands.run("scene", "build", str(path))
    assert failed.exit_code == 1
    assert "document.accounts.a.color (line 3) is unknown" in " ".join(failed.output.split())
    missing = commands.run("scene", "build", str(tmp_path / "none.toml"))
    assert (missing.exit_code, "cannot read" in missing.output) == (2, True)
    path.write_bytes(b"\xff")
    binary = commands.run("scene", "build", str(path))
    assert (binary.exit_code, "is not UTF-8 text" in binary.output) == (2, True)
    unknown = commands.run("scene", "build", "none")
    assert (unknown.exit_code, "name must be one of" in " ".join(unknown.output.split())) == (1, True)
    assert is_empty(server)
