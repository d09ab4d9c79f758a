"""A server on a data directory or on PostgreSQL: what it finds again, and when it refuses to start."""

import asyncio
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bounds
import pytest
import sealed
import stores
from absent import make_absent
from attrs import frozen

from agentpay.errors import AuthenticationError
from agentpay_server import AgentPayServer, StartRefusedError

START = datetime(2026, 1, 1, tzinfo=UTC)


@frozen
class Place:
    """Where servers of a test keep their data, one after the other."""

    where: dict[str, Any]

    def server(self, **options: Any) -> AgentPayServer:
        return AgentPayServer(**{"clock": START, **self.where, **options})

    def spoil(self, statement: str) -> None:
        """Change the store behind the server's back."""
        if "data_dir" in self.where:
            with sqlite3.connect(self.where["data_dir"] / "store.sqlite3") as plain:
                plain.execute(statement)
            plain.close()
        else:
            asyncio.run(stores.administer(self.where["database_url"], statement))

    def column(self, query: str) -> list[Any]:
        """Return the first column of what a query finds in the store."""
        if "data_dir" not in self.where:
            return asyncio.run(stores.fetch(self.where["database_url"], query))
        with closing(sqlite3.connect(self.where["data_dir"] / "store.sqlite3")) as plain:
            return [row[0] for row in plain.execute(query)]


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.delenv("AGENTPAY_SERVER_ENCRYPTION_KEY", raising=False)
    if request.param == "file":
        data = tmp_path / "data"
        data.mkdir(mode=0o700)
        asyncio.run(stores.lay_out(data))
        yield Place({"data_dir": data})
        return
    url = asyncio.run(stores.fresh_url())
    monkeypatch.setenv("AGENTPAY_SERVER_ENCRYPTION_KEY", stores.KEY.hex())
    yield Place({"database_url": url})
    stores.run.free.append(url)


def test_all_data_is_available_after_a_restart(place: Place) -> None:
    with place.server() as first:
        client = first.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        first.sandbox.fund(payer.account_id, 10)
        sent = client.transfers.create(
            from_=payer.account_id, to=payee.account_id, amount=3, idempotency_key="one"
        )
        key = first.operator_key
        policy = client.policies.update(payer.account_id, max_daily_spend=5)
        first.sandbox.clock.advance(90)
    with place.server(operator_key=key) as second:
        client = second.client()
        assert second.operator_key == key
        assert second.sandbox.clock.now() == START + timedelta(seconds=90)
        assert client.transfers.get(sent.transfer_id).tx_signature == sent.tx_signature
        assert client.policies.get(payer.account_id) == policy
        again = client.transfers.create(
            from_=payer.account_id, to=payee.account_id, amount=3, idempotency_key="one"
        )
        assert again == sent
        more = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=2)
        assert more.tx_signature != sent.tx_signature
        assert str(client.accounts.balance(payer.account_id).balance_usdc) == "5.000000"
        assert str(client.accounts.balance(payee.account_id).balance_usdc) == "5.000000"


def test_a_manual_clock_continues_no_earlier_than_a_server_on_the_systems_clock_signed(place: Place) -> None:
    with place.server() as first:
        key = first.operator_key
    with place.server(operator_key=key, clock="system") as second:
        client = second.client()
        payer, payee = client.accounts.create(name="Payer"), client.accounts.create(name="Payee")
        second.sandbox.fund(payer.account_id, 10)
        sent = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=3)
    with place.server(operator_key=key) as third:
        resumed = third.sandbox.clock.now()
        assert sent.settled_at is not None
        assert sent.settled_at - timedelta(seconds=60) < resumed
        later = third.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount=3)
        assert later.settled_at == resumed
        third.sandbox.clock.advance(90)
    with place.server(operator_key=key) as fourth:
        assert fourth.sandbox.clock.now() == resumed + timedelta(seconds=90)


def test_a_later_start_creates_no_operator(place: Place) -> None:
    with place.server() as first:
        key = first.operator_key
        account = first.client().accounts.create(name="Mine")
    with place.server() as second:
        lent = second.operator_key
        assert lent != key
        assert [found.account_id for found in second.client().accounts.list()] == [account.account_id]
        assert [found.account_id for found in second.client(api_key=key).accounts.list()] == [
            account.account_id
        ]
    with place.server() as third, pytest.raises(AuthenticationError):
        third.client(api_key=lent).accounts.get(account.account_id)


def test_a_further_operator_key_can_be_given_when_the_first_was_lost(place: Place) -> None:
    with AgentPayServer() as elsewhere:
        further = elsewhere.operator_key
    with place.server() as first:
        account = first.client().accounts.create(name="Mine")
    for _ in range(2):
        with place.server(operator_key=further) as later:
            assert later.operator_key == further
            assert later.client().accounts.get(account.account_id).name == "Mine"


def test_the_key_of_another_operator_is_refused(place: Place) -> None:
    with place.server() as first:
        other = first.sandbox.create_operator("Other").key
    with pytest.raises(ValueError, match="another operator"):
        place.server(operator_key=other).start()


def test_a_seed_gives_different_identifiers_at_the_next_start(place: Place) -> None:
    names = []
    for _ in range(3):
        with place.server(seed=7) as server:
            names.append(server.client().accounts.create(name="A").account_id)
    assert len(set(names)) == 3


def test_a_second_server_is_refused_and_the_first_continues(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds.shorten(monkeypatch, database_lock_wait_seconds=0)
    with place.server() as first:
        with pytest.raises(StartRefusedError, match="another server"):
            place.server().start()
        first.client().accounts.create(name="Still here")
    with place.server():
        pass


def test_another_chain_is_refused(place: Place) -> None:
    with place.server():
        pass
    place.spoil("DELETE FROM server_state WHERE name = 'genesis'")
    with place.server():
        pass
    name = "genesis"
    place.spoil(f"UPDATE server_state SET value = {_bytes(place, b'another')} WHERE name = '{name}'")
    with pytest.raises(StartRefusedError, match="belongs to the chain another"):
        place.server().start()


def _bytes(place: Place, value: bytes) -> str:
    return f"x'{value.hex()}'" if "data_dir" in place.where else f"'\\x{value.hex()}'"


@pytest.mark.parametrize(
    ("lost", "says"),
    [("chain", "this database belongs to the chain"), ("store", "belongs to a chain with other keys")],
)
def test_a_missing_database_of_a_directory_is_detected(tmp_path: Path, lost: str, says: str) -> None:
    with AgentPayServer(data_dir=tmp_path, clock=START) as first:
        first.client().accounts.create(name="Mine")
    (tmp_path / f"{lost}.sqlite3").unlink()
    with pytest.raises(StartRefusedError, match=says):
        AgentPayServer(data_dir=tmp_path).start()


def test_a_directory_s_key_is_readable_only_by_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTPAY_SERVER_ENCRYPTION_KEY", raising=False)
    directory = tmp_path / "not" / "there"
    with AgentPayServer(data_dir=directory):
        key = directory / "key"
        assert re.fullmatch(r"[0-9a-f]{64}\n", key.read_text())
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {path.name.partition("-")[0] for path in directory.iterdir()} == {
            "key",
            "store.sqlite3",
            "chain.sqlite3",
        }
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    kept = key.read_text()
    with AgentPayServer(data_dir=directory):
        assert key.read_text() == kept


def test_a_missing_key_is_refused_and_not_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTPAY_SERVER_ENCRYPTION_KEY", raising=False)
    with AgentPayServer(data_dir=tmp_path):
        key = (tmp_path / "key").read_text()
    (tmp_path / "key").unlink()

    with pytest.raises(StartRefusedError, match="restore the file"):
        AgentPayServer(data_dir=tmp_path).start()
    assert not (tmp_path / "key").exists()

    (tmp_path / "key").write_text(key)
    with AgentPayServer(data_dir=tmp_path):
        pass


def test_a_key_that_is_given_is_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTPAY_SERVER_ENCRYPTION_KEY", stores.KEY.hex())
    with AgentPayServer(data_dir=tmp_path):
        assert not (tmp_path / "key").exists()
    monkeypatch.setenv("AGENTPAY_SERVER_ENCRYPTION_KEY", bytes(32).hex())
    with pytest.raises(StartRefusedError, match="encryption key is not the one"):
        AgentPayServer(data_dir=tmp_path).start()


@pytest.mark.parametrize("text", ["00", "x" * 64, "00" * 33])
def test_a_key_of_another_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("AGENTPAY_SERVER_ENCRYPTION_KEY", text)
    with pytest.raises(StartRefusedError, match="64 hexadecimal digits") as refusal:
        AgentPayServer(data_dir=tmp_path).start()
    assert text not in str(refusal.value).replace("AGENTPAY_SERVER_ENCRYPTION_KEY", "")


def test_data_dir_and_database_url_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not in both"):
        AgentPayServer(data_dir=tmp_path, database_url="postgresql://localhost/x")


def test_a_refused_start_releases_the_directory(place: Place) -> None:
    with pytest.raises(ValueError, match="ap_operator_"):
        place.server(operator_key="hunter2").start()
    with place.server() as server:
        server.client().accounts.create(name="A")


def test_postgresql_without_a_key_is_refused_before_it_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTPAY_SERVER_ENCRYPTION_KEY", raising=False)
    with pytest.raises(StartRefusedError, match="AGENTPAY_SERVER_ENCRYPTION_KEY"):
        AgentPayServer(database_url="postgresql://nobody@nowhere.invalid/x").start()


def test_the_files_hold_neither_seed_nor_keys(tmp_path: Path) -> None:
    with AgentPayServer(data_dir=tmp_path) as server:
        webhook = server.client().webhooks.create(url="http://receiver.invalid", events=["transfer.settled"])
        agent = server.client().accounts.create(name="A")
        key = server.agent_keys.create(agent.account_id).key
        sealed_under = (tmp_path / "key").read_text().strip()
        secrets = [webhook.secret, server.operator_key, key, sealed_under]
        seed = bytes.fromhex(sealed.seed_of(server))
        while_running = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.name != "key")
    at_rest = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.name != "key")
    for content in (while_running, at_rest):
        assert b"receiver.invalid" in content
        assert bytes.fromhex(sealed_under) not in content
        assert seed not in content
        assert seed.hex().encode() not in content
        for secret in secrets:
            assert secret.encode() not in content


# --- A directory that others can write to -----------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o722, 0o777, 0o1777, 0o2775])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    with pytest.raises(StartRefusedError, match=f"chmod go-w {data}$"):
        AgentPayServer(data_dir=data).start()
    assert list(data.iterdir()) == []
    data.chmod(0o755)
    with AgentPayServer(data_dir=data):
        pass


# --- Without an extra -------------------------------------------------------------------------------------


def test_a_missing_driver_is_refused_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTPAY_SERVER_ENCRYPTION_KEY", stores.KEY.hex())
    make_absent(monkeypatch, "asyncpg")
    with pytest.raises(StartRefusedError, match=r"PostgreSQL needs asyncpg, .*: pip install .*\[postgres\]"):
        AgentPayServer(database_url="postgresql://nobody@localhost/nothing").start()
