"""Snapshots, restore and reset: all state is restored, and work continues from there as before."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import books
import bounds
import chain_facts
import httpx
import money
import pytest
from server_world import START, raw_client, refused, state_of

from agentpay import AuthenticationError, ConflictError, NotFoundError
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer, Settings

pytestmark = [
    pytest.mark.in_memory("nothing else can be brought back"),
    pytest.mark.embedded_chain("no other chain can be brought back"),
]


@pytest.fixture
def seeded() -> Iterator[AgentPayServer]:
    with AgentPayServer(clock=START, seed=7) as running:
        yield running


def prepared(server: AgentPayServer) -> tuple[Account, Account]:
    client = server.client()
    payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
    server.sandbox.fund(payer.account_id, 100)
    return payer, payee


def pay(server: AgentPayServer, payer: Account, to: str, key: str, amount: str = "5") -> Any:
    return server.client().transfers.create(from_=payer.account_id, to=to, amount=amount, idempotency_key=key)


def run(server: AgentPayServer, payer: Account, payee: Account) -> list[object]:
    """Do a little of everything, and return all that was answered."""
    client = server.client()
    outside = server.sandbox.create_token_account()
    answers: list[object] = [
        outside,
        pay(server, payer, payee.account_id, "after-1"),
        pay(server, payer, outside.usdc_token_account, "after-2"),
        client.accounts.create(name="Third"),
        server.sandbox.fund(payee.account_id, 3),
        server.agent_keys.create(payer.account_id, name="Laptop").name,
        client.policies.update(payer.account_id, max_single_transfer=50),
        server.sandbox.clock.advance(hours=1),
        pay(server, payer, payee.account_id, "after-3"),
        [client.accounts.balance(account.account_id) for account in (payer, payee)],
        [list(client.accounts.transactions(account.account_id)) for account in (payer, payee)],
        [event.id for event in server.events.list()],
    ]
    return answers


def kept(server: AgentPayServer) -> tuple[Any, ...]:
    """Return what a restore brings back: not keys, and not the audit trail, which contains the restore."""
    rows = {name: money.rows(server, name) for name in books.NAMES if name not in ("audit", "api_keys")}
    return rows, chain_facts.everything(server), server.sandbox.clock.now()


def test_a_restore_brings_back_the_whole_state(server: AgentPayServer):
    payer, payee = prepared(server)
    snapshot = server.sandbox.snapshot()
    before = kept(server)
    asked = server.requests.where(path="/v1/accounts")

    run(server, payer, payee)
    assert kept(server) != before
    server.sandbox.restore(snapshot)

    assert kept(server) == before
    assert server.requests.where(path="/v1/accounts") == asked
    assert snapshot.snapshot_id.startswith("snap_")
    assert snapshot.created_at == START
    assert server.sandbox.snapshot().snapshot_id != snapshot.snapshot_id


def unsigned(answer: Any) -> Any:
    """Return an answer without the signatures in it, which differ after each restore."""
    if isinstance(answer, list | tuple):
        return [unsigned(item) for item in answer]
    if not attrs.has(type(answer)):
        return answer
    return {
        name: unsigned(value)
        for name, value in attrs.asdict(answer, recurse=False).items()
        if name not in ("tx_signature", "chain_explorer_url")
    }


def test_the_same_operations_after_each_restore_give_the_same_identifiers_and_new_signatures(
    seeded: AgentPayServer,
):
    payer, payee = prepared(seeded)
    pay(seeded, payer, payee.account_id, "before")
    snapshot = seeded.sandbox.snapshot()

    answers = [run(seeded, payer, payee)]
    for _ in range(3):
        seeded.sandbox.restore(snapshot)
        answers.append(run(seeded, payer, payee))
    assert [unsigned(answer) for answer in answers] == [unsigned(answers[0])] * 4
    assert len({answer[1].tx_signature for answer in answers}) == 4  # type: ignore[attr-defined]


def test_a_transaction_of_a_snapshot_never_executes_again_and_one_signed_before_lands_after_every_restore(
    server: AgentPayServer,
):
    """The machine would refuse the very same transaction, had it not forgotten it."""
    payer, payee = prepared(server)
    done, unsent = (signed_by(server, payer, payee, memo) for memo in ("done", "unsent"))
    send(server, done)
    snapshot = server.sandbox.snapshot()
    for _ in range(3):
        send(server, done)
        assert money.held(server, payee.usdc_token_account) == 1_000_000
        for _ in range(2):
            send(server, unsent)
            assert money.held(server, payee.usdc_token_account) == 2_000_000
        server.sandbox.restore(snapshot)


def signed_by(server: AgentPayServer, payer: Account, payee: Account, memo: str = "held back") -> bytes:
    """Return a payment of one USDC that is signed, and not sent."""
    return money.signed_elsewhere(server, payer, payee.usdc_token_account, 1_000_000, memo)


def send(server: AgentPayServer, raw: bytes) -> None:
    async def work(context: Any) -> None:
        await context.chain.inner.send(raw)

    money.on_owner(server, work)


def test_transactions_signed_after_a_snapshot_never_land_after_its_restore(server: AgentPayServer):
    payer, payee = prepared(server)
    snapshot = server.sandbox.snapshot()
    handed_out = []
    for _ in range(3):
        handed_out.append(signed_by(server, payer, payee))
        server.sandbox.clock.advance(60)
        handed_out.append(signed_by(server, payer, payee))
        server.sandbox.restore(snapshot)
    # Whatever the height is by then.
    for seconds in (0, 0.4, 60, 0.4, 60):
        server.sandbox.clock.advance(seconds)
        for raw in handed_out:
            send(server, raw)
    assert money.held(server, payee.usdc_token_account) == 0
    pay(server, payer, payee.account_id, "key")
    assert money.held(server, payee.usdc_token_account) == 5_000_000


def test_snapshots_are_restored_in_any_order(server: AgentPayServer):
    payer, payee = prepared(server)
    states = {}
    for number in range(4):
        snapshot = server.sandbox.snapshot()
        states[snapshot.snapshot_id] = kept(server)
        pay(server, payer, payee.account_id, f"key-{number}")
        server.sandbox.clock.advance(60)
    names = list(states)

    for name in [names[2], names[0], names[3], names[1], names[1], names[3]]:
        server.sandbox.restore(name)
        assert kept(server) == states[name]


def test_reset_is_the_state_right_after_the_start(seeded: AgentPayServer):
    start = kept(seeded)
    first = [*prepared(seeded), seeded.sandbox.clock.advance(5)]
    snapshot, before = seeded.sandbox.snapshot(), kept(seeded)

    seeded.sandbox.reset()

    assert kept(seeded) == start
    assert [*prepared(seeded), seeded.sandbox.clock.advance(5)] == first
    # A snapshot survives it.
    seeded.sandbox.restore(snapshot)
    assert kept(seeded) == before


# --- What vanishes ----------------------------------------------------------------------------------------


def works(server: AgentPayServer, key: str) -> bool:
    with raw_client(server, key) as http:
        status = http.get("/ext/v1/whoami").status_code
    assert status in (200, 401)
    return status == 200


@pytest.mark.parametrize("seed", [None, 7])
def test_a_restore_revives_no_revoked_key_of_any_operator(seed: int | None):
    with AgentPayServer(clock=START, seed=seed) as server:
        mine, tenant = server.client(), server.client(api_key=server.sandbox.create_operator("Second").key)
        revoked: list[str] = []

        def revoke(client: Any) -> None:
            account = client.accounts.create(name="Agent").account_id
            for keys, made in (
                (client.agent_keys, client.agent_keys.create(account)),
                (client.operator_keys, client.operator_keys.create(name="spare")),
            ):
                if snapshots:
                    snapshots.append(server.sandbox.snapshot())
                keys.revoke(made.key_id)
                revoked.append(made.key)

        snapshots: list[Any] = []
        revoke(mine)
        snapshots.append(server.sandbox.snapshot())
        for client in (mine, tenant):
            revoke(client)
        # Each was alive in one of the snapshots, or is unknown to it.
        for snapshot in (*snapshots, *reversed(snapshots)):
            server.sandbox.restore(snapshot)
            assert [works(server, key) for key in revoked] == [False] * 6
            assert mine.whoami()
            assert tenant.whoami()
        server.sandbox.reset()
        assert [works(server, key) for key in revoked] == [False] * 6
        # The same key is not created again either.
        account = mine.accounts.create(name="Agent").account_id
        assert mine.agent_keys.create(account).key not in revoked


@pytest.mark.parametrize("seed", [None, 7])
def test_a_newer_key_stays_if_its_account_is_in_the_snapshot_and_is_revoked_if_not(seed: int | None):
    with AgentPayServer(clock=START, seed=seed) as server:
        payer, _ = prepared(server)
        snapshot = server.sandbox.snapshot()
        client = server.client()
        server.sandbox.clock.advance(hours=1)
        newer = client.agent_keys.create(payer.account_id, name="newer", expires_in=600, max_total_usdc=5)
        operators = client.operator_keys.create(name="spare").key
        account = client.accounts.create(name="Since")
        gone = [client.agent_keys.create(account.account_id).key, server.sandbox.create_operator("Since").key]
        later = server.sandbox.snapshot()
        server.sandbox.clock.advance(100)

        server.sandbox.restore(snapshot)

        assert [works(server, key) for key in (newer.key, operators, *gone)] == [True, True, False, False]
        (listed,) = client.agent_keys.list()
        assert (listed.key_id, listed.name, listed.max_total_usdc) == (newer.key_id, "newer", 5)
        assert listed.expires_at == START + timedelta(seconds=500), "the time that it had left"
        # Their accounts come back, and they do not.
        server.sandbox.restore(later)
        assert client.accounts.get(account.account_id).name == "Since"
        assert [works(server, key) for key in (newer.key, operators, *gone)] == [True, True, False, False]


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "expired"])
def test_a_sign_in_code_that_was_used_or_expired_is_not_valid_after_a_restore(
    server: AgentPayServer, is_used: bool
):
    code = server.console.create_sign_in_code().code
    snapshot = server.sandbox.snapshot()
    if is_used:
        server.console.sign_in(code)
    else:
        server.sandbox.clock.advance(hours=1)
    server.sandbox.restore(snapshot)
    with pytest.raises(AuthenticationError):
        server.console.sign_in(code)


def test_an_expired_key_stays_so_after_every_restore(server: AgentPayServer):
    payer, _ = prepared(server)
    start = server.sandbox.snapshot()
    expiring, lasting = (
        server.agent_keys.create(payer.account_id, expires_in=seconds).key for seconds in (60, 600)
    )
    created = server.sandbox.snapshot()
    server.sandbox.clock.advance(60)
    expired = server.sandbox.snapshot()
    for snapshot in (created, start, created, expired, created):
        server.sandbox.restore(snapshot)
        assert [works(server, key) for key in (expiring, lasting)] == [False, True]


def test_inboxes_are_restored_and_later_ones_get_nothing(server: AgentPayServer):
    payer, payee = prepared(server)
    inbox = server.webhook_inbox(events=["transfer.settled"])
    pay(server, payer, payee.account_id, "before")
    inbox.wait_for("transfer.settled")
    snapshot = server.sandbox.snapshot()
    inbox.fail_next(times=3)
    late = server.webhook_inbox(events=["transfer.settled"])
    pay(server, payer, payee.account_id, "since")
    late.wait_for("transfer.settled")
    heard = len(late.receipts)

    server.sandbox.restore(snapshot)

    assert len(inbox.receipts) == 1
    assert len(list(server.webhooks.list())) == 1
    again = pay(server, payer, payee.account_id, "again")
    inbox.wait_for("transfer.settled", where=lambda event: event.data.transfer_id == again.transfer_id)
    assert [receipt.status_code for receipt in inbox.receipts] == [200, 200]
    assert len(late.receipts) == heard
    assert server.webhook_inbox().url == late.url


def test_armed_faults_are_restored(server: AgentPayServer):
    server.sandbox.set_fault("chain_slow", 3)
    server.sandbox.set_fault("http:GET /v1/accounts", 2, effect="internal_error")
    armed = list(server.sandbox.faults())
    snapshot = server.sandbox.snapshot()
    server.sandbox.clear_faults()
    server.sandbox.set_fault("chain_down")
    server.sandbox.set_fault("http:POST /v1/accounts", effect="reset")

    server.sandbox.restore(snapshot)

    assert list(server.sandbox.faults()) == armed
    server.sandbox.reset()
    assert list(server.sandbox.faults()) == []


def test_the_rate_limit_is_restored():
    limited = AgentPayServer(clock=START, settings=Settings(rate_limit_per_minute=4))
    with limited as server, raw_client(server) as http:
        snapshot_id = http.post("/ext/v1/sandbox/snapshots").json()["snapshot_id"]
        for _ in range(2):
            http.get("/v1/accounts")
        assert http.post(f"/ext/v1/sandbox/snapshots/{snapshot_id}/restore").status_code == 200
        assert [http.get("/v1/accounts").status_code for _ in range(4)] == [200, 200, 200, 429]


# --- Who may, and where it cannot be done -----------------------------------------------------------------


def test_an_unknown_snapshot_and_that_of_another_operator_are_404(server: AgentPayServer, http: httpx.Client):
    second = server.sandbox.create_operator("Second")
    snapshot_id = http.post("/ext/v1/sandbox/snapshots").json()["snapshot_id"]
    with raw_client(server, second.key) as neighbour:
        theirs = refused(neighbour.post(f"/ext/v1/sandbox/snapshots/{snapshot_id}/restore"), "not_found")
    unknown = refused(http.post("/ext/v1/sandbox/snapshots/snap_x/restore"), "not_found")
    assert theirs["message"].replace(snapshot_id, "snap_x") == unknown["message"]
    with pytest.raises(NotFoundError):
        server.sandbox.restore("snap_x")


def test_snapshots_are_refused_with_a_data_directory(tmp_path: Path):
    with AgentPayServer(clock=START, data_dir=tmp_path / "data") as server:
        before = state_of(server)
        with raw_client(server) as http:
            for path in (
                "/ext/v1/sandbox/snapshots",
                "/ext/v1/sandbox/snapshots/snap_x/restore",
                "/ext/v1/sandbox/reset",
            ):
                assert "--in-memory" in refused(http.post(path), "not_in_memory")["message"]
        with pytest.raises(ConflictError):
            server.sandbox.snapshot()
        assert state_of(server) == before


def test_the_least_recently_used_snapshot_is_evicted(server: AgentPayServer, monkeypatch: pytest.MonkeyPatch):
    bounds.shorten(monkeypatch, snapshots_kept=2)
    first, second = server.sandbox.snapshot(), server.sandbox.snapshot()
    server.sandbox.restore(first)
    third = server.sandbox.snapshot()
    for known in (first, third):
        server.sandbox.restore(known)
    with pytest.raises(NotFoundError):
        server.sandbox.restore(second)


# --- Work in progress -------------------------------------------------------------------------------------


@pytest.fixture
def hasty() -> Iterator[AgentPayServer]:
    with AgentPayServer(clock=START, settings=Settings(settlement_wait_seconds=0.05)) as running:
        yield running


def test_no_snapshot_is_taken_while_money_is_in_flight(
    hasty: AgentPayServer, monkeypatch: pytest.MonkeyPatch
):
    bounds.shorten(monkeypatch, snapshot_rest_seconds=0.05)
    payer, payee = prepared(hasty)
    with raw_client(hasty) as http:
        with hasty.sandbox.fault("chain_never_lands"):
            unknown = money.post(http, money.order(payer, payee.account_id))
            assert unknown.json()["status"] == "submitted"
            refused(http.post("/ext/v1/sandbox/snapshots"), "not_at_rest")
        monkeypatch.undo()
        assert http.post("/ext/v1/sandbox/snapshots").status_code == 201
        assert http.get(f"/v1/transfers/{unknown.json()['transfer_id']}").json()["status"] == "settled"


@pytest.mark.parametrize("fault", ["chain_never_lands", "chain_slow"])
def test_a_restore_cancels_money_in_flight_which_never_lands(hasty: AgentPayServer, fault: str):
    payer, payee = prepared(hasty)
    snapshot = hasty.sandbox.snapshot()
    before = kept(hasty)
    with raw_client(hasty) as http:
        hasty.sandbox.set_fault(fault)
        assert money.post(http, money.order(payer, payee.account_id)).status_code == 503
    hasty.sandbox.restore(snapshot)
    assert kept(hasty) == before

    async def under_way(context: Any) -> int:
        return len(context.tasks._tasks)

    assert money.on_owner(hasty, under_way) == 0
    assert money.held(hasty, payee.usdc_token_account) == 0
    assert pay(hasty, payer, payee.account_id, "key-1").status == "settled"
    assert money.held(hasty, payee.usdc_token_account) == 5_000_000


def test_callers_of_cancelled_work_get_no_response(server: AgentPayServer):
    payer, payee = prepared(server)
    snapshot = server.sandbox.snapshot()
    server.sandbox.set_fault("chain_never_lands")
    failures: list[Exception] = []

    def wait() -> None:
        with raw_client(server) as http:
            try:
                money.post(http, money.order(payer, payee.account_id))
            except httpx.TransportError as error:
                failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not money.rows(server, "transfers"):
        pass
    server.sandbox.restore(snapshot)
    waiting.join(timeout=120)
    assert [type(failure) for failure in failures] == [httpx.RemoteProtocolError]
    assert money.rows(server, "transfers") == []


# --- On a running clock -----------------------------------------------------------------------------------


def test_work_continues_automatically_after_a_restore():
    with AgentPayServer(clock="system") as server:
        payer, payee = prepared(server)
        inbox = server.webhook_inbox(events=["transfer.settled"])
        server.client().policies.update(payer.account_id, max_single_transfer=50)
        snapshot = server.sandbox.snapshot()
        for key in ("one", "two", "three"):
            paid = pay(server, payer, payee.account_id, key)
            inbox.wait_for(
                "transfer.settled", where=lambda event, paid=paid: event.data.transfer_id == paid.transfer_id
            )
            server.sandbox.restore(snapshot)
            assert inbox.receipts == []


def test_a_loop_survives_the_cancellation_of_its_work(server: AgentPayServer):
    """Records of policies are awaited by the loop that serves them; its own end would be the server's."""
    payer, _ = prepared(server)
    with server.sandbox.fault("chain_down"):
        server.client().policies.update(payer.account_id, max_single_transfer=50)
        server.sandbox.clock.advance(0)
    workers = server._running.server.services.schedule._scheduled
    records = next(worker for worker in workers if type(worker).__name__ == "PolicyRecords")
    server.sandbox.set_fault("chain_never_lands")

    async def cut_off(context: Any) -> bool:
        context.clock.move_to(context.clock.now_us() + 2_000_000)
        serving = asyncio.create_task(records.run_due())
        for _ in range(3):  # It reads what is due, and starts a writer.
            await asyncio.sleep(0)
        assert context.tasks._tasks
        assert await context.tasks.cancel_all(within_seconds=120)
        return bool(await serving)

    assert money.on_owner(server, cut_off)


def test_a_restore_is_refused_while_work_does_not_end(
    server: AgentPayServer, monkeypatch: pytest.MonkeyPatch
):
    bounds.shorten(monkeypatch, snapshot_rest_seconds=0.05)
    snapshot = server.sandbox.snapshot()
    prepared(server)

    async def stubborn(context: Any) -> Any:
        ended = asyncio.Event()

        async def work() -> None:
            while not ended.is_set():
                try:
                    await ended.wait()
                except asyncio.CancelledError:
                    continue

        context.tasks.start(work())
        return ended

    ended = money.on_owner(server, stubborn)
    before = kept(server)
    with pytest.raises(ConflictError, match="not_at_rest"):
        server.sandbox.restore(snapshot)
    assert kept(server) == before

    async def end(_: Any) -> None:
        ended.set()

    money.on_owner(server, end)
    server.sandbox.restore(snapshot)
    assert money.rows(server, "accounts") == []
