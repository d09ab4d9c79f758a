"""False responses about a transaction book nothing: each key lands once, with exact books (P8, P23).

One method of a node reports something false, once or for a while: that a transaction failed or succeeded, or
that it is unknown, another error. The other methods are honest.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import bounds
import cluster_worlds
import pytest
from attrs import frozen
from cluster_worlds import ClusterWorld
from clusters import DEVNET, NEVER, Change, Cluster
from sellers import ORIGIN, Seller
from solders.signature import Signature
from worlds import Answer, Party

pytestmark = pytest.mark.anyio

LATE_SECONDS = 20.0
SHORTFALL = {"InstructionError": [0, {"Custom": 1}]}
MICRO = 1_000_000


# --- What nodes report


def reporting(error: Any) -> Change:
    """Let every transaction have ended irreversibly: with an error, or successfully."""

    def change(reply: Any, cluster: Cluster) -> Any:
        status = {"slot": cluster.final_slot(), "err": error, "confirmationStatus": "finalized"}
        return {**reply, "value": [status for _ in reply["value"]]}

    return change


def unknown_status(reply: Any, _: Cluster) -> Any:
    return {**reply, "value": [None for _ in reply["value"]]}


def nothing(reply: Any, _: Cluster) -> Any:
    return None


def with_another_error(reply: Any, _: Cluster) -> Any:
    if reply is None:
        return None
    error = SHORTFALL if reply["meta"]["err"] is None else None
    return {**reply, "meta": {**reply["meta"], "err": error}}


def with_opposite_errors(reply: Any, _: Cluster) -> Any:
    return [{**line, "err": SHORTFALL if line["err"] is None else None} for line in reply]


LIES: dict[str, tuple[str, Change]] = {
    "status: failed": ("getSignatureStatuses", reporting(SHORTFALL)),
    "status: succeeded": ("getSignatureStatuses", reporting(None)),
    "status: unknown": ("getSignatureStatuses", unknown_status),
    "transaction: unknown": ("getTransaction", nothing),
    "transaction: another error": ("getTransaction", with_another_error),
    "history: empty": ("getSignaturesForAddress", lambda reply, _: []),
    "history: opposite errors": ("getSignaturesForAddress", with_opposite_errors),
}
DURATIONS = {"once": None, "for 15 s": 15.0, "for 200 s": 200.0}


def tell(cluster: Cluster, lie: str, duration: str) -> None:
    method, change = LIES[lie]
    cluster.tell(method, change, seconds=DURATIONS[duration])


# --- What is done with money


async def until_done(request: Callable[[], Awaitable[Answer]], *, within_seconds: int = 500) -> Answer:
    """Repeat a request with its key until it succeeds, as an agent does that wants it done."""
    for _ in range(within_seconds):
        answer = await request()
        if answer.status < 300:
            return answer
        await asyncio.sleep(1)
    raise AssertionError(f"no end in sight: {answer}")


@frozen
class Deal:
    """An operation between two accounts, repeated with its keys until it is done.

    Attributes:
        landings: how many transactions land.
        charged: how much moves from the source to the payee, in USDC.
    """

    do: Callable[[ClusterWorld, Party, Party], Awaitable[object]]
    prepare: Callable[[ClusterWorld, Party, Party], Awaitable[object]] | None = None
    landings: int = 1
    charged: int = 1


async def pay(world: ClusterWorld, source: Party, to: Party) -> Answer:
    return await until_done(lambda: world.transfer("pay", source, to, "1"))


async def open_session(world: ClusterWorld, source: Party, to: Party) -> Answer:
    return await until_done(lambda: world.open_session("open", source, to, "3"))


async def use_session(world: ClusterWorld, source: Party, to: Party) -> None:
    opened = await open_session(world, source, to)
    await until_done(lambda: world.charge("charge", opened.body["session_id"], "1"))


async def close_session(world: ClusterWorld, source: Party, to: Party) -> Answer:
    (session,) = await world.rows("sessions")
    return await until_done(lambda: world.close_session(session["session_id"]))


DEALS = {
    "transfer": Deal(pay),
    "opening": Deal(open_session, charged=3),
    "close": Deal(close_session, use_session, landings=2),
}


@frozen
class Scene:
    world: ClusterWorld
    source: Party
    to: Party

    async def assert_exact(self, deal: Deal) -> None:
        """Check that a deal was done once, and that the books agree with the chain."""
        world = self.world
        world.cluster.tell_the_truth()
        await world.rest()
        landings = world.cluster.landings.values()
        assert sum(each.about.subject != "" and each.error is None for each in landings) == deal.landings
        left = (10 - deal.charged) * MICRO
        assert world.balance(self.source) == left
        (account,) = await world.rows("accounts", account_id=self.source.account_id)
        assert (account["balance"], account["in_flight"], account["suspended_us"]) == (left, 0, None)
        for table in ("transfers", "sessions"):
            assert {row["status"] for row in await world.rows(table)} <= {"settled", "open"}
        assert (await world.http.get("/readyz")).status_code == 200


async def play(
    monkeypatch: pytest.MonkeyPatch, name: str, lie: Callable[[Cluster], None], *, delay: float = LATE_SECONDS
) -> None:
    """Do a deal whose next transaction lands after a delay, while a node lies."""
    deal = DEALS[name]
    async with cluster_worlds.serving(monkeypatch, cluster_worlds.new_cluster(genesis_hash=DEVNET)) as world:
        scene = Scene(world, await world.account("10"), await world.account())
        if deal.prepare is not None:
            await deal.prepare(world, scene.source, scene.to)
        await world.rest()
        world.cluster.delays.append(delay)
        lie(world.cluster)
        await deal.do(world, scene.source, scene.to)
        await scene.assert_exact(deal)


@pytest.mark.parametrize("delay", [LATE_SECONDS, 0.4], ids=["late", "prompt"])
@pytest.mark.parametrize("name", DEALS)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "duration", [each if each == "once" else pytest.param(each, marks=pytest.mark.deep) for each in DURATIONS]
)
async def test_one_false_method_never_books_an_outcome(
    monkeypatch: pytest.MonkeyPatch, name: str, lie: str, duration: str, delay: float
) -> None:
    await play(monkeypatch, name, lambda cluster: tell(cluster, lie, duration), delay=delay)


@pytest.mark.parametrize("name", DEALS)
async def test_a_landed_transaction_that_no_status_shows_for_longer_than_a_blockhash_lives_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def hide(cluster: Cluster) -> None:
        tell(cluster, "status: unknown", "for 200 s")
        tell(cluster, "transaction: unknown", "for 200 s")

    await play(monkeypatch, name, hide)


async def test_a_landed_transfer_that_no_record_of_a_node_shows_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hide(cluster: Cluster) -> None:
        tell(cluster, "status: unknown", "for 200 s")
        tell(cluster, "transaction: unknown", "for 200 s")
        tell(cluster, "history: empty", "for 200 s")

    await play(monkeypatch, "transfer", hide)


@pytest.mark.parametrize("name", DEALS)
@pytest.mark.parametrize("lie", ["status: succeeded", "status: failed"])
async def test_a_false_outcome_of_a_transaction_that_never_lands_is_not_posted(
    monkeypatch: pytest.MonkeyPatch, name: str, lie: str
) -> None:
    await play(monkeypatch, name, lambda cluster: tell(cluster, lie, "for 15 s"), delay=NEVER)


@pytest.mark.parametrize("name", DEALS)
@pytest.mark.parametrize("seconds", [0.0, 5.0])
async def test_a_transaction_that_is_returned_after_its_status_settles_then(
    monkeypatch: pytest.MonkeyPatch, name: str, seconds: float
) -> None:
    def lag(cluster: Cluster) -> None:
        cluster.tell("getTransaction", nothing, replies=3)
        if seconds:
            cluster.tell("getTransaction", nothing, seconds=seconds)

    await play(monkeypatch, name, lag, delay=0.4)


# --- Payments behind 402


@pytest.mark.parametrize("duration", ["once", "for 15 s"])
@pytest.mark.parametrize("lie", LIES)
async def test_one_false_method_never_books_an_outcome_of_a_payment(
    monkeypatch: pytest.MonkeyPatch, lie: str, duration: str
) -> None:
    price = 300_000
    async with cluster_worlds.serving(monkeypatch, cluster_worlds.new_cluster(genesis_hash=DEVNET)) as world:
        payer = await world.account("10")
        await world.policy(payer, max_daily_spend=0.3)
        seller = Seller(world.runtime.context.chain, world.runtime.context.signer, lambda _: None)
        await seller._open()

        async def buy(key: str) -> Answer:
            body = {"account_id": payer.account_id, "idempotency_key": key, "origin": ORIGIN}
            return await world.request("POST", "/ext/v1/payments", {**body, **seller.ask("x402_v2", price)})

        bought = await buy("first")
        assert bought.status == 201, bought
        world.cluster.submit(seller.cosigned(bought.body["header"]))
        await asyncio.sleep(1)
        tell(world.cluster, lie, duration)
        await asyncio.sleep(20)
        # The limit counts the payment, whatever a node says.
        refused = await buy("second")
        assert (refused.status, refused.error) == (402, "policy_violation")
        world.cluster.tell_the_truth()
        await world.rest()
        (transfer,) = await world.rows("transfers", idempotency_key="first")
        assert transfer["status"] == "settled"
        (account,) = await world.rows("accounts", account_id=payer.account_id)
        assert account["balance"] == world.balance(payer) == 10 * MICRO - price
        assert (account["in_flight"], account["suspended_us"]) == (0, None)


# --- Deposits of others


def swapped(meta: Any) -> Any:
    return {
        **meta,
        "preTokenBalances": meta["postTokenBalances"],
        "postTokenBalances": meta["preTokenBalances"],
    }


def doubled(meta: Any) -> Any:
    def twice(line: Any) -> Any:
        amount = line["uiTokenAmount"]
        return {**line, "uiTokenAmount": {**amount, "amount": str(2 * int(amount["amount"]))}}

    return {**meta, "postTokenBalances": [twice(line) for line in meta["postTokenBalances"]]}


@pytest.mark.parametrize(
    ("amounts", "seconds"),
    [(swapped, None), (swapped, 40.0), (doubled, None)],
    ids=["taken, in one reply", "taken, for 40 s", "doubled, in one reply"],
)
async def test_false_amounts_of_a_deposit_are_not_posted(
    monkeypatch: pytest.MonkeyPatch, amounts: Callable[[Any], Any], seconds: float | None
) -> None:
    def change(reply: Any, _: Cluster) -> Any:
        return reply if reply is None or "meta" not in reply else {**reply, "meta": amounts(reply["meta"])}

    async with cluster_worlds.serving(monkeypatch) as world:
        account, to = await world.account("10"), await world.account()
        await asyncio.sleep(30)
        world.cluster.tell("getTransaction", change, seconds=seconds)
        await world.mint(account, "3")
        await asyncio.sleep(45)
        world.cluster.tell_the_truth()
        await world.rest()
        (row,) = await world.rows("accounts", account_id=account.account_id)
        assert (row["balance"], row["suspended_us"]) == (13 * MICRO, None)
        assert [entry["amount"] for entry in await world.entries(account)] == [10 * MICRO, 3 * MICRO]
        assert (await world.transfer("key", account, to, "13")).status == 200


# --- What a false history hides


async def test_a_deposit_that_a_history_left_out_is_posted_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_worlds.serving(monkeypatch) as world:
        account = await world.account("10")

        async def posted() -> list[int]:
            return [entry["amount"] for entry in await world.entries(account)]

        hidden = await world.mint(account, "1")
        world.cluster.unlisted.add(hidden)
        await world.mint(account, "2")
        await asyncio.sleep(30)
        # The node has shown what came after it, so the search goes on from there.
        assert await posted() == [10 * MICRO, 2 * MICRO]
        world.cluster.unlisted.clear()
        await world.rest()
        assert await posted() == [10 * MICRO, 2 * MICRO, 1 * MICRO]
        (row,) = await world.rows("accounts", account_id=account.account_id)
        assert row["balance"] == world.balance(account) == 13 * MICRO
        lines = [record.getMessage() for record in caplog.records]
        assert [account.account_id in line for line in lines if "deposits.read_again" in line] == [True]


async def test_a_whole_history_is_read_again_without_the_transactions_that_are_posted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A history that takes several scans, of which the newest entries do not tell.
    bounds.shorten(
        monkeypatch, posted_batches_of_deposits=2, newest_deposits_read=2, history_batch_of_deposits=2
    )
    async with cluster_worlds.serving(monkeypatch) as world:
        account = await world.account("10")
        for _ in range(12):
            await world.mint(account, "1")
        hidden = await world.mint(account, "1")
        world.cluster.unlisted.add(hidden)
        await world.mint(account, "2")
        await world.rest()
        world.cluster.unlisted.clear()
        world.cluster.calls.clear()
        await world.rest()
        await world.rest()
        (row,) = await world.rows("accounts", account_id=account.account_id)
        assert row["balance"] == world.balance(account) == 25 * MICRO
        # The hidden one; and the last, because the balance is right again by then. Each is read twice.
        assert world.cluster.calls["getTransaction"] <= 4


@pytest.mark.parametrize("is_landing", [True, False], ids=["it lands", "it never lands"])
async def test_a_payment_ends_although_a_node_invented_where_its_search_begins(
    monkeypatch: pytest.MonkeyPatch, is_landing: bool
) -> None:
    price = 300_000
    invented = str(Signature.from_bytes(bytes(range(64))))
    async with cluster_worlds.serving(monkeypatch, cluster_worlds.new_cluster(genesis_hash=DEVNET)) as world:
        payer = await world.account("10")
        seller = Seller(world.runtime.context.chain, world.runtime.context.signer, lambda _: None)
        await seller._open()
        await asyncio.sleep(30)
        world.cluster.tell(
            "getSignaturesForAddress",
            lambda reply, _: [{**line, "signature": invented} for line in reply],
            seconds=5,
        )
        body = {"account_id": payer.account_id, "idempotency_key": "key", "origin": ORIGIN}
        bought = await world.request("POST", "/ext/v1/payments", {**body, **seller.ask("x402_v2", price)})
        assert bought.status == 201, bought
        (row,) = await world.rows("chain_transactions", kind="payment")
        assert invented in row["detail"]
        world.cluster.tell_the_truth()
        if is_landing:
            world.cluster.submit(seller.cosigned(bought.body["header"]))
        await world.rest()
        await world.rest()
        (transfer,) = await world.rows("transfers", idempotency_key="key")
        assert transfer["status"] == ("settled" if is_landing else "failed")
        (account,) = await world.rows("accounts", account_id=payer.account_id)
        assert account["balance"] == world.balance(payer) == 10 * MICRO - (price if is_landing else 0)
        assert (account["in_flight"], account["suspended_us"]) == (0, None)
