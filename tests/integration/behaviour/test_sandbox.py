"""The sandbox: test money, tenants, outside recipients, the clock (interface SB1 to SB5)."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
import rpc_world
from server_world import START, faults, raw_client, refused
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from agentpay import AgentPay, ConflictError, InvalidRequestError
from agentpay_server import AgentPayServer


def test_a_token_account_is_created_for_a_given_owner(
    server: AgentPayServer, http: httpx.Client, client: AgentPay
):
    owner = str(Keypair().pubkey())
    address = str(get_associated_token_address(Pubkey.from_string(owner), Pubkey.from_string(rpc_world.USDC)))
    first = http.post("/ext/v1/sandbox/token-accounts", json={"owner": owner})
    assert (first.status_code, first.json()) == (201, {"owner": owner, "usdc_token_account": address})

    account = client.accounts.create(name="a")
    server.sandbox.fund(account.account_id, 5)
    client.transfers.create(from_=account.account_id, to=address, amount="1")
    again = server.sandbox.create_token_account(owner=owner)
    assert (again.owner, again.usdc_token_account) == (owner, address)
    client.transfers.create(from_=account.account_id, to=address, amount="1")
    own = server.sandbox.create_token_account(owner=account.chain_address)
    assert own.usdc_token_account == account.usdc_token_account
    assert client.accounts.balance(account.account_id).balance_usdc == 3


@pytest.mark.parametrize("owner", ["", "somebody", "0" * 44, 7])
def test_an_owner_that_is_no_address_is_refused(http: httpx.Client, owner: object):
    body = refused(http.post("/ext/v1/sandbox/token-accounts", json={"owner": owner}), "invalid_request")
    assert [fault["field"] for fault in body["details"]] == ["owner"]


# --- The clock --------------------------------------------------------------------------------------------


def test_a_manual_clock_is_paused_until_it_is_advanced(http: httpx.Client):
    readings = {http.get("/ext/v1/sandbox/clock").text for _ in range(3)}
    assert readings == {'{"now":"2026-01-01T00:00:00.000Z"}'}

    for seconds, now in (("1.5", "00:00:01.500"), ("0", "00:00:01.500"), ("86400", None), ("0.001", None)):
        answer = http.post("/ext/v1/sandbox/clock/advance", content=f'{{"seconds":{seconds}}}')
        assert answer.status_code == 200
        assert set(answer.json()) == {"now"}
        if now:
            assert answer.json()["now"] == f"2026-01-01T{now}Z"
    assert http.get("/ext/v1/sandbox/clock").json() == {"now": "2026-01-02T00:00:01.501Z"}


LATER = START + timedelta(days=40, milliseconds=1)


@pytest.mark.anyio
async def test_the_clock_is_advanced_in_any_unit_and_travels_to_any_moment(server: AgentPayServer):
    clock = server.sandbox.clock
    later = START + timedelta(days=4, hours=3, minutes=2, seconds=1)
    assert clock.advance(1, minutes=2, hours=3, days=4) == clock.now() == later
    assert clock.travel_to(later) == later
    assert clock.travel_to(LATER) == LATER == clock.now()
    later += timedelta(days=40)
    assert clock.travel_to(later.astimezone(timezone(timedelta(hours=-5)))) == later
    assert await server.async_sandbox.clock.travel_to("2026-03-10T00:00:00.001Z") == clock.now()


@pytest.mark.parametrize(
    ("moment", "error", "why"),
    [
        (
            START - timedelta(microseconds=1),
            ValueError,
            r"the clock is at 2026-01-01T00:00:00\+00:00 and cannot",
        ),
        (datetime(2027, 1, 1), ValueError, "UTC offset"),  # noqa: DTZ001 - what is refused
        ("2027-01-01T00:00:00", ValueError, "UTC offset"),
        ("tomorrow", ValueError, "must be an ISO 8601 timestamp"),
        ("2036-01-02T00:00:00Z", InvalidRequestError, "seconds"),
        (5, TypeError, "moment must be a datetime with a UTC offset, or a string, not int"),
    ],
)
def test_an_invalid_moment_is_refused(server: AgentPayServer, moment: Any, error: type[Exception], why: str):
    with pytest.raises(error, match=why):
        server.sandbox.clock.travel_to(moment)
    assert server.sandbox.clock.now() == START


@pytest.mark.parametrize("seconds", [1e300, float("inf"), float("nan")])
def test_a_duration_that_no_timedelta_has_is_a_value_error(server: AgentPayServer, seconds: float):
    with pytest.raises(ValueError, match=r"duration|NaN"):
        server.sandbox.clock.advance(seconds)


def test_a_running_clock_neither_advances_nor_travels():
    with AgentPayServer(clock="system") as server, raw_client(server) as http:
        refused(http.post("/ext/v1/sandbox/clock/advance", json={"seconds": 1}), "clock_not_manual")
        with pytest.raises(ConflictError):
            server.sandbox.clock.travel_to(datetime.now(UTC) + timedelta(days=1))

        assert abs(server.sandbox.clock.now() - datetime.now(UTC)) < timedelta(seconds=60)


def test_the_clock_cannot_be_advanced_beyond_year_9999():
    with (
        AgentPayServer(clock=datetime(9999, 12, 31, 23, 59, 58, tzinfo=UTC)) as server,
        raw_client(server) as http,
    ):
        assert http.post("/ext/v1/sandbox/clock/advance", json={"seconds": 1}).status_code == 200
        found = faults(http.post("/ext/v1/sandbox/clock/advance", json={"seconds": 1}))

        assert found == {"seconds": "must not lead beyond the year 9999"}
        assert http.post("/v1/accounts", json={"name": "a"}).status_code == 201


def test_a_clock_starts_at_a_moment_with_an_offset():
    with pytest.raises(ValueError, match="UTC offset"):
        AgentPayServer(clock=START.replace(tzinfo=None))
    with pytest.raises(ValueError, match="clock is 'manual'"):
        AgentPayServer(clock="sundial")  # type: ignore[arg-type]


def test_closing_from_the_server_s_thread_is_refused():
    server = AgentPayServer().start()

    async def close() -> None:
        server.close()

    with pytest.raises(RuntimeError, match="own thread"):
        server._running._owner.call(close())
    server.close()
