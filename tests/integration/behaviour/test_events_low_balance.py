"""`balance.low_threshold`: once for each webhook, when the balance goes from at or above to below.

See interface EV4.
"""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_world import START, Funded

from agentpay import AgentPay
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

LOW = "balance.low_threshold"


def heard(inbox) -> list[str]:
    """The balances of which an inbox has heard."""
    inbox.drain()
    return [f"{event.data.balance_usdc.normalize():f}" for event in inbox.events if event.type == LOW]


@pytest.fixture
def pay(client: AgentPay, funded: Funded):
    sink = funded("0.000001", name="Sink").account_id

    def make(payer, amount: str, to: str | None = None) -> None:
        client.transfers.create(from_=payer.account_id, to=to or sink, amount=amount)

    return make


@pytest.mark.parametrize(
    ("held", "amounts", "expected"),
    [
        ("100", ["50"], []),
        ("100", ["50.000001"], ["49.999999"]),
        ("100", ["100"], ["0"]),
        ("50", ["0.000001"], ["49.999999"]),
        # Not again while it stays low, nor if it was low at the registration.
        ("100", ["20", "20", "20", "20"], ["40"]),
        ("40", ["1"], []),
    ],
)
def test_the_event_fires_once_below_the_threshold_and_not_at_it(
    server: AgentPayServer, funded, pay, held, amounts, expected
):
    payer = funded(held)
    inbox, deleted = (server.webhook_inbox(low_balance_threshold_usdc=50) for _ in range(2))
    server.webhooks.delete(deleted.webhook_id)

    for amount in amounts:
        pay(payer, amount)

    assert heard(inbox) == expected
    assert heard(deleted) == []


# --- Against a model --------------------------------------------------------------------------------------

AMOUNTS = st.integers(1, 6)
STEPS = st.lists(
    st.tuples(st.sampled_from(["fund", "pay"]), st.integers(0, 2), st.integers(0, 2), AMOUNTS), max_size=14
)
WEBHOOKS = st.lists(
    st.tuples(st.none() | st.integers(0, 8), st.sets(st.integers(0, 2)), st.booleans()),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25)
@given(webhooks=WEBHOOKS, steps=STEPS)
def test_any_history_fires_the_events_of_the_model(webhooks, steps):
    with AgentPayServer(clock=START) as server:
        client = server.client()
        accounts = [client.accounts.create(name=f"a{number}").account_id for number in range(3)]
        balances = [4, 4, 4]
        for account_id in accounts:
            server.sandbox.fund(account_id, 4)
        inboxes = [
            server.webhook_inbox(
                events=[LOW, "transfer.settled"] if has_type else ["transfer.settled"],
                account_ids=[accounts[place] for place in sorted(of)],
                low_balance_threshold_usdc=threshold,
            )
            for threshold, of, has_type in webhooks
        ]
        # Armed or not, for each webhook and account: what the server does without remembering.
        armed = [[threshold is not None and threshold <= 4 for _ in accounts] for threshold, _, _ in webhooks]
        expected: list[list[tuple[str, Decimal]]] = [[] for _ in webhooks]
        for kind, source, target, amount in steps:
            if kind == "fund":
                server.sandbox.fund(accounts[target], amount)
                changes = [(target, amount)]
            elif source == target or balances[source] < amount:
                continue
            else:
                client.transfers.create(from_=accounts[source], to=accounts[target], amount=amount)
                changes = [(source, -amount), (target, amount)]
            for place, change in changes:
                balances[place] += change
                for number, (threshold, of, has_type) in enumerate(webhooks):
                    if threshold is None or (of and place not in of):
                        continue
                    is_low = balances[place] < threshold
                    if is_low and armed[number][place] and has_type:
                        expected[number].append((accounts[place], Decimal(balances[place])))
                    armed[number][place] = not is_low
        server.sandbox.clock.advance(0)

        for inbox, lows in zip(inboxes, expected, strict=True):
            got = [(e.data.account_id, e.data.balance_usdc) for e in inbox.events if e.type == LOW]
            assert got == lows
