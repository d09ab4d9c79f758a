"""Ciphertexts open only where they were stored."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stores
from attrs import frozen
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from server_world import START
from sqlalchemy import select, update

from agentpay.contract.deliveries import Delivery
from agentpay_server import AgentPayServer, RpcSettings, Settings
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.identity import WrongKeyError
from agentpay_server.assembly.storage import open_storage
from agentpay_server.database import tables
from agentpay_server.database.connection import Connection
from agentpay_server.platform.vault import Place as PlaceOfSecret
from agentpay_server.platform.vault import Vault

SETTINGS = Settings(encryption_key=stores.KEY)
SEED = "custody_seed"
ELSEWHERE = RpcSettings(url="http://node.invalid")
"""A chain outside the server's directory, so that the server's own stays untouched."""


@frozen
class Place:
    """Where servers of a test keep their data, one after the other."""

    where: dict[str, Any]

    def server(self, **options: Any) -> AgentPayServer:
        return AgentPayServer(**{"clock": START, "settings": SETTINGS, **self.where, **options})

    def run(self, unit: Any) -> Any:
        """Run a unit of work on the data, with no server on it."""

        async def work() -> Any:
            storage = await open_storage(ServerConfig(settings=SETTINGS, rpc=ELSEWHERE, **self.where))
            try:
                return await storage.database.run(unit)
            finally:
                await storage.close()

        return asyncio.run(work())


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        data = tmp_path / "data"
        data.mkdir(mode=0o700)
        asyncio.run(stores.lay_out(data))
        yield Place({"data_dir": data})
        return
    url = asyncio.run(stores.fresh_url())
    yield Place({"database_url": url})
    stores.run.free.append(url)


def sealed_for_row(plaintext: str, row: str) -> bytes:
    """Return a ciphertext that is bound to the row, and to neither table nor column."""
    nonce = bytes(12)
    return nonce + AESGCM(stores.KEY).encrypt(nonce, plaintext.encode(), row.encode())


def ciphertexts(connection: Connection) -> dict[tuple[str, str, str], bytes]:
    """Return everything that is sealed, by table, column and row."""
    found: dict[tuple[str, str, str], bytes] = {}
    for webhook_id, secret, next_secret in connection.execute(
        select(tables.webhooks.c.webhook_id, tables.webhooks.c.secret, tables.webhooks.c.next_secret)
    ):
        found["webhooks", "secret", webhook_id] = secret
        if next_secret is not None:
            found["webhooks", "next_secret", webhook_id] = next_secret
    (seed,) = connection.execute(
        select(tables.server_state.c.value).where(tables.server_state.c.name == SEED)
    ).scalars()
    return {**found, ("server_state", "value", SEED): seed}


def put(connection: Connection, where: tuple[str, str, str], sealed: bytes) -> None:
    """Store a ciphertext."""
    table, column, row = where
    found = tables.metadata.tables[table]
    name = found.c.name if table == "server_state" else found.c.webhook_id
    connection.execute(update(found).where(name == row).values({column: sealed}))


def opened(found: dict[tuple[str, str, str], bytes]) -> dict[tuple[str, str, str], str]:
    vault = Vault(stores.KEY)
    return {
        (table, column, row): vault.open(sealed, PlaceOfSecret(table=table, column=column, row=row))
        for (table, column, row), sealed in found.items()
    }


def rotating(server: AgentPayServer) -> str:
    """Return a webhook amid a rotation, so that both of its columns hold a secret."""
    webhook = server.client().webhooks.create(url="http://127.0.0.1:9/never", events=["transfer.settled"])
    assert webhook.webhook_id is not None
    server.webhooks.rotate_secret(webhook.webhook_id)
    return webhook.webhook_id


def attempted(server: AgentPayServer) -> Delivery:
    """Cause an event, and return how its first delivery has gone."""
    payer, payee = (server.client().accounts.create(name=name).account_id for name in ("a", "b"))
    server.sandbox.fund(payer, 1)
    server.client().transfers.create(from_=payer, to=payee, amount=1)
    server.sandbox.clock.advance(0)
    return server.deliveries.list().data[0]


SWAPS = {
    "the two columns of a webhook": lambda one, _: [(one, "secret"), (one, "next_secret")],
    "two webhooks": lambda one, other: [(one, "secret"), (other, "secret")],
    "two webhooks and their columns": lambda one, other: [(one, "secret"), (other, "next_secret")],
}


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_no_two_ciphertexts_can_be_swapped(place: Place, swap: Any) -> None:
    with place.server() as server:
        webhook_ids = rotating(server), rotating(server)
    (one, first), (other, second) = swap(*webhook_ids)

    def swapped(connection: Connection) -> None:
        found = ciphertexts(connection)
        put(connection, ("webhooks", first, one), found["webhooks", second, other])
        put(connection, ("webhooks", second, other), found["webhooks", first, one])

    place.run(swapped)
    with place.server() as server:
        attempted(server)
        for delivery in server.deliveries.list(webhook_id=one):
            (attempt,) = delivery.attempts
            assert "cannot be decrypted" in (attempt.error or "")


def test_a_webhook_secret_cannot_replace_the_server_seed(place: Place) -> None:
    with place.server() as server:
        webhook_id = rotating(server)

    def swapped(connection: Connection) -> None:
        found = ciphertexts(connection)
        put(connection, ("server_state", "value", SEED), found["webhooks", "secret", webhook_id])

    place.run(swapped)
    with pytest.raises(WrongKeyError):
        place.server().start()


def test_a_ciphertext_that_is_bound_to_its_row_alone_is_not_accepted(place: Place) -> None:
    with place.server() as server:
        webhook_id = rotating(server)
    secrets = opened(place.run(ciphertexts))
    where = ("webhooks", "secret", webhook_id)
    place.run(lambda connection: put(connection, where, sealed_for_row(secrets[where], webhook_id)))

    with place.server() as server:
        (attempt,) = attempted(server).attempts
        assert "cannot be decrypted" in (attempt.error or "")

    where = ("server_state", "value", SEED)
    place.run(lambda connection: put(connection, where, sealed_for_row(secrets[where], SEED)))
    with pytest.raises(WrongKeyError):
        place.server().start()


def test_a_start_with_another_key_changes_nothing(place: Place) -> None:
    with place.server() as server:
        rotating(server)
    before = place.run(ciphertexts)

    with pytest.raises(WrongKeyError):
        place.server(settings=Settings(encryption_key=bytes(32))).start()
    assert place.run(ciphertexts) == before


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_rotation_moves_the_secret_in_use_to_its_own_column(place: Place, is_damaged: bool) -> None:
    with place.server() as server:
        webhook_id = rotating(server)
        server.sandbox.clock.advance(hours=24)
    where = ("webhooks", "next_secret", webhook_id)
    in_use = opened(place.run(ciphertexts))[where]
    if is_damaged:
        place.run(lambda connection: put(connection, where, b"damaged" * 9))

    with place.server() as server:
        newest = server.webhooks.rotate_secret(webhook_id).secret

    found = opened(place.run(ciphertexts))
    # A secret that does not open signs nothing, so the new one applies at once.
    assert found["webhooks", "secret", webhook_id] == (newest if is_damaged else in_use)
    assert found.get(where) == (None if is_damaged else newest)
