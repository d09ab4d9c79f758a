"""One key, one purchase, whatever is asked for: raced on two servers, and in any order across kills.

An opening with its voucher is one purchase.
"""

import itertools
import tempfile
from asyncio import gather
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import worlds
from attrs import define, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from sellers import Seller
from session_sellers import SessionSeller, opening_in
from two_servers import both
from worlds import Answer, Party, World

from agentpay_server.chain.protocol import ChainUnreachableError

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

KEY = "invoice-117"
KINDS = ("transfer", "payment", "opening", "voucher", "session")
ROUNDS = 2


@define
class Buyer:
    """An account that buys in every way, and whom it pays; all sellers survive its servers."""

    payer: Party
    payee: Party
    exact: Seller
    seller: SessionSeller

    async def ask(self, world: World, kind: str, key: str, shop: str = "https://api.example.com") -> Answer:
        """Send the request that buys in this way; `shop` is the origin of a new channel."""
        account = {"account_id": self.payer.account_id, "idempotency_key": key}
        if kind == "transfer":
            return await world.transfer(key, self.payer, self.payee, "0.5")
        if kind == "session":
            return await world.open_session(key, self.payer, self.payee, "0.25")
        body: dict[str, Any] = {"origin": shop, **account}
        if kind == "payment":
            return await world.request("POST", "/ext/v1/payments", {**body, **self.exact.ask()})
        chain = world.chain
        blockhash = (await chain.latest_blockhash()).value
        slot = await chain.blockhash_slot(blockhash)
        assert slot is not None
        offer = self.seller.offer_session(blockhash, slot)
        answer = await world.request("POST", "/ext/v1/payments", {**body, **offer, "session_cap": "0.1"})
        if answer.status == 201 and answer.body["step"] == "voucher":
            # No voucher stays in flight.
            path = f"/ext/v1/payments/{answer.body['charge_id']}/outcome"
            await world.request("POST", path, {"status_code": 200})
        return answer

    async def accept(self, world: World, header: dict[str, str]) -> None:
        """Let the seller open a channel."""
        self.seller.opening = opening_in(self.seller.payload_in(header))
        with suppress(ChainUnreachableError):
            await world.chain.send(self.seller.cosigned(header))


async def buyer_of(world: World) -> Buyer:
    payer, payee = await world.account("1000"), await world.account()
    chain, signer = world.chain, world.runtime.context.signer
    exact = Seller(chain, signer, lambda _: None)
    session = SessionSeller(chain, signer, lambda _: None)
    await exact._open()
    await session._open()
    return Buyer(payer, payee, exact, session)


async def bought(world: World, key: str) -> set[str]:
    """Return what a key has paid, or may pay."""
    rows = [
        (each["transfer_id"], each["status"]) for each in await world.rows("transfers", idempotency_key=key)
    ]
    found = {name for name, status in rows if status not in {"rejected", "failed"}}
    for session in await world.rows("sessions", idempotency_key=key):
        if session["status"] != "failed":
            found.add("channel" if session["channel"] else session["session_id"])
    return found | {"channel" for _ in await world.rows("vouchers", idempotency_key=key)}


class TestTwoServers:
    """Two servers on one PostgreSQL."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """A loop whose time is real: both wait for PostgreSQL."""
        return "asyncio"

    @pytest.fixture
    async def servers(self) -> AsyncIterator[tuple[World, World]]:
        async with both() as servers:
            yield servers

    async def test_each_pair_of_kinds_pays_once_if_raced(self, servers: tuple[World, World]) -> None:
        first, second = servers
        buyer = await buyer_of(first)
        opened = await buyer.ask(first, "opening", "opens")
        await buyer.accept(first, opened.body["header"])
        while (await buyer.ask(first, "voucher", "opens")).body.get("step") != "voucher":
            await first.advance()
        for number, (one, other) in enumerate(itertools.permutations(KINDS, 2)):
            for turn in range(ROUNDS):
                key = f"key {number} {turn}"

                def ask(
                    world: World, kind: str, key: str = key, shop: str = f"https://{number}-{turn}.example"
                ) -> Any:
                    return buyer.ask(world, kind, key, *([shop] if kind == "opening" else []))

                answers = await gather(ask(first, one), ask(second, other))
                statuses = sorted(answer.status for answer in answers)
                assert statuses in ([200, 409], [201, 409]), (one, other, answers)
                (refused,) = (answer for answer in answers if answer.status == 409)
                assert refused.error == "idempotency_conflict"
                (paid,) = (answer.body for answer in answers if answer.status != 409)
                names = {refused.body.get(name) for name in ("transfer_id", "session_id", "charge_id")}
                assert names - {None} <= {
                    paid.get("charge_id"),
                    paid.get("transfer_id"),
                    paid.get("session_id"),
                }
                assert len(names) == 2, refused
                assert len(await bought(first, key)) == 1


@frozen
class Step:
    """A request under the key; `units` of work until its server is killed, if it is; hours pass before."""

    kind: str
    units: int | None
    hours: float
    is_presented: bool


STEPS = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(KINDS),
        units=st.none() | st.integers(1, 8),
        hours=st.sampled_from([0.0, 0.0, 0.01, 3.0]),
        is_presented=st.booleans(),
    ),
    min_size=2,
    max_size=7,
)


@settings(max_examples=15, deadline=None)
@given(steps=STEPS)
def test_any_sequence_of_kinds_under_one_key_pays_once(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        worlds.run(lambda: play(steps, Path(directory)))


async def play(steps: list[Step], directory: Path) -> None:
    """Within 24 hours of the end of a transfer, one server after the other is asked."""
    world = await worlds.started(data_dir=directory)
    buyer = await buyer_of(world)
    for step in steps:
        await world.advance(step.hours * 3600)
        if step.units is not None:
            await world.cut_off(buyer.ask(world, step.kind, KEY), step.units)
            world = await worlds.started(data_dir=directory, after=world)
            await world.look_back()
            continue
        answer = await buyer.ask(world, step.kind, KEY)
        assert answer.status in {200, 201, 409}, answer
        header = answer.body.get("header")
        if header is not None and step.is_presented and answer.body.get("step") != "voucher":
            if step.kind == "payment":
                await world.chain.send(buyer.exact.cosigned(header))
            else:
                await buyer.accept(world, header)
        assert len(await bought(world, KEY)) <= 1
    assert len(await bought(world, KEY)) <= 1
    spent = 1_000_000_000 - world.balance(buyer.payer)
    await world.stop()
    # A transfer, or a payment or an opening that its seller has landed, or an escrow: each another amount.
    assert spent in {0, 500_000, 1_000, 100_000, 250_000}
