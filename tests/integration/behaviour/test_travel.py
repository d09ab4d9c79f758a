"""Travelling: the clock is moved to a moment, and all that falls due on the way has run."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from server_world import START, Funded

from agentpay import AgentPay, ConflictError, InvalidRequestError
from agentpay_server import AgentPayServer

LATER = START + timedelta(days=40, milliseconds=1)


@pytest.mark.parametrize(
    "moment",
    [LATER, LATER.astimezone(timezone(timedelta(hours=-5))), "2026-02-10T00:00:00.001Z"],
    ids=["utc", "offset", "text"],
)
def test_travel_to_sets_the_clock(server: AgentPayServer, moment: datetime | str) -> None:
    assert server.sandbox.clock.travel_to(moment) == LATER == server.sandbox.clock.now()


@pytest.mark.anyio
async def test_the_async_sandbox_travels_too(server: AgentPayServer) -> None:
    assert await server.async_sandbox.clock.travel_to("2026-02-10T00:00:00.001Z") == LATER


def test_work_that_falls_due_runs_in_order(server: AgentPayServer, client: AgentPay, funded: Funded) -> None:
    inbox = server.webhook_inbox()
    payer, payee = funded("10").account_id, client.accounts.create(name="Payee").account_id
    client.policies.update(payer, escalation_threshold=5)
    inbox.fail_next(times=2)
    asked = client.transfers.create(from_=payer, to=payee, amount=5)
    server.sandbox.clock.travel_to(START + timedelta(days=1))
    assert [event.type for event in inbox.events] == ["escalation.required", "transfer.rejected"]
    assert client.transfers.get(asked.transfer_id).error == "escalation_expired"
    first, second, third = server.deliveries.one(event_type="escalation.required").attempts
    assert [first.at - START, second.at - START, third.at - START] == [
        timedelta(0),
        timedelta(seconds=30),
        timedelta(seconds=330),
    ]


def test_travelling_to_now_runs_what_is_due_now(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    inbox = server.webhook_inbox(events=["transfer.settled"])
    payer, payee = funded("10").account_id, client.accounts.create(name="Payee").account_id
    client.transfers.create(from_=payer, to=payee, amount=5)
    assert inbox.receipts == []
    assert server.sandbox.clock.travel_to(START) == START
    assert len(inbox.receipts) == 1


def test_travelling_to_the_past_is_refused(server: AgentPayServer) -> None:
    server.sandbox.clock.advance(days=1)
    with pytest.raises(ValueError, match=r"the clock is at 2026-01-02T00:00:00\+00:00 and cannot go back"):
        server.sandbox.clock.travel_to(START + timedelta(days=1, microseconds=-1))
    assert server.sandbox.clock.now() == START + timedelta(days=1)


@pytest.mark.parametrize(
    ("moment", "why"),
    [
        (datetime(2027, 1, 1), "UTC offset"),  # noqa: DTZ001 - what is refused
        ("2027-01-01T00:00:00", "UTC offset"),
        ("2027-01-01", "must be an ISO 8601 timestamp"),
        ("tomorrow", "must be an ISO 8601 timestamp"),
    ],
)
def test_an_invalid_moment_is_refused(server: AgentPayServer, moment: datetime | str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        server.sandbox.clock.travel_to(moment)


def test_a_running_clock_cannot_travel() -> None:
    with AgentPayServer(clock="system") as server, pytest.raises(ConflictError):
        server.sandbox.clock.travel_to(datetime.now(UTC) + timedelta(days=1))


def test_travelling_more_than_ten_years_is_refused(server: AgentPayServer) -> None:
    with pytest.raises(InvalidRequestError, match="seconds"):
        server.sandbox.clock.travel_to("2036-01-02T00:00:00Z")


@pytest.mark.parametrize("seconds", [1e300, float("inf"), float("nan")])
def test_a_duration_that_no_timedelta_has_is_a_value_error(server: AgentPayServer, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"duration|NaN"):
        server.sandbox.clock.advance(seconds)


def test_a_moment_of_a_wrong_type_is_named(server: AgentPayServer) -> None:
    with pytest.raises(TypeError, match="moment must be a datetime with a UTC offset, or a string, not int"):
        server.sandbox.clock.travel_to(5)  # type: ignore[arg-type]
