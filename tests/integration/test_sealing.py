"""Ciphertexts open only where they were stored."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import books
import pytest
import sealed
import stores
from attrs import frozen
from server_world import START

from agentpay.contract.ext.deliveries import Delivery
from agentpay_server import AgentPayServer, Settings, StartRefusedError

SETTINGS = Settings(encryption_key=stores.KEY)
SEED = "custody_seed"


@frozen
class Place:
    """Where servers of a test keep their data, one after the other."""

    where: dict[str, Any]

    def server(self, **options: Any) -> AgentPayServer:
        return AgentPayServer(**{"clock": START, "settings": SETTINGS, **self.where, **options})

    def ciphertexts(self) -> dict[tuple[str, str, str], bytes]:
        """Return everything that is sealed, by table, column and row."""
        return asyncio.run(stores.on_data(self.where, _ciphertexts))

    def put(self, where: tuple[str, str, str], sealed: bytes) -> None:
        """Store a ciphertext."""
        table, column, row = where
        key = {"name" if table == "server_state" else "webhook_id": row}
        changed = partial(books.change, table=table, changed={column: sealed}, **key)
        asyncio.run(stores.on_data(self.where, changed))


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


async def _ciphertexts(database: Any) -> dict[tuple[str, str, str], bytes]:
    found: dict[tuple[str, str, str], bytes] = {}
    for webhook in await books.rows(database, "webhooks"):
        for column in ("secret", "next_secret"):
            if webhook[column] is not None:
                found["webhooks", column, webhook["webhook_id"]] = webhook[column]
    (seed,) = await books.rows(database, "server_state", name=SEED)
    return {**found, ("server_state", "value", SEED): seed["value"]}


def opened(found: dict[tuple[str, str, str], bytes]) -> dict[tuple[str, str, str], str]:
    return {
        (table, column, row): sealed.opened(content, table=table, column=column, row=row)
        for (table, column, row), content in found.items()
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
    found = place.ciphertexts()
    place.put(("webhooks", first, one), found["webhooks", second, other])
    place.put(("webhooks", second, other), found["webhooks", first, one])
    with place.server() as server:
        attempted(server)
        for delivery in server.deliveries.list(webhook_id=one):
            (attempt,) = delivery.attempts
            assert "cannot be decrypted" in (attempt.error or "")


def test_a_webhook_secret_cannot_replace_the_server_seed(place: Place) -> None:
    with place.server() as server:
        webhook_id = rotating(server)
    place.put(("server_state", "value", SEED), place.ciphertexts()["webhooks", "secret", webhook_id])
    with pytest.raises(StartRefusedError, match="encryption key"):
        place.server().start()


def test_a_start_with_another_key_changes_nothing(place: Place) -> None:
    with place.server() as server:
        rotating(server)
    before = place.ciphertexts()

    with pytest.raises(StartRefusedError, match="encryption key"):
        place.server(settings=Settings(encryption_key=bytes(32))).start()
    assert place.ciphertexts() == before


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_rotation_moves_the_secret_in_use_to_its_own_column(place: Place, is_damaged: bool) -> None:
    with place.server() as server:
        webhook_id = rotating(server)
        server.sandbox.clock.advance(hours=24)
    where = ("webhooks", "next_secret", webhook_id)
    in_use = opened(place.ciphertexts())[where]
    if is_damaged:
        place.put(where, b"damaged" * 9)

    with place.server() as server:
        newest = server.webhooks.rotate_secret(webhook_id).secret

    found = opened(place.ciphertexts())
    # A secret that does not open signs nothing, so the new one applies at once.
    assert found["webhooks", "secret", webhook_id] == (newest if is_damaged else in_use)
    assert found.get(where) == (None if is_damaged else newest)
