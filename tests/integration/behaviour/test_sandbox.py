"""The sandbox: test money, tenants, outside recipients, the clock (interface SB1 to SB5)."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
import rpc_world
from server_world import START, UNKNOWN_ACCOUNT, faults, raw_client, refused
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from agentpay import AgentPay, ConflictError, InvalidRequestError
from agentpay_server import AgentPayServer


def test_funding_mints_and_returns_the_balance(http: httpx.Client, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id

    first = http.post(f"/ext/v1/sandbox/accounts/{account_id}/fund", json={"amount": "1.5"})
    second = http.post(f"/ext/v1/sandbox/accounts/{account_id}/fund", json={"amount": "1.5"})

    assert first.status_code == 200
    assert set(first.json()) == {"tx_signature", "balance_usdc"}
    assert (first.json()["balance_usdc"], second.json()["balance_usdc"]) == ("1.500000", "3.000000")
    assert first.json()["tx_signature"] != second.json()["tx_signature"]


def test_funding_an_unknown_account_is_404(http: httpx.Client):
    refused(http.post(f"/ext/v1/sandbox/accounts/{UNKNOWN_ACCOUNT}/fund", json={"amount": "1"}), "not_found")


def test_a_tenant_gets_a_key_that_works(server: AgentPayServer, http: httpx.Client):
    made = http.post("/ext/v1/sandbox/operators", json={"name": "Second"})

    assert made.status_code == 201
    assert set(made.json()) == {"operator_id", "key"}
    assert made.json()["operator_id"].startswith("op_")
    with raw_client(server, made.json()["key"]) as neighbour:
        assert neighbour.get("/v1/accounts").json()["data"] == []
        assert neighbour.post("/v1/accounts", json={"name": "x"}).status_code == 201


def test_an_outside_recipient_can_be_paid(server: AgentPayServer, http: httpx.Client, client: AgentPay):
    made = [http.post("/ext/v1/sandbox/token-accounts").json() for _ in range(2)]
    account_id = client.accounts.create(name="a").account_id
    server.sandbox.fund(account_id, 5)

    assert made[0] != made[1]
    for outside in made:
        assert set(outside) == {"owner", "usdc_token_account"}
        assert Pubkey.from_string(outside["owner"]) != Pubkey.from_string(outside["usdc_token_account"])
        transfer = client.transfers.create(from_=account_id, to=outside["usdc_token_account"], amount="1")
        assert transfer.status == "settled"


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


def test_new_objects_have_the_time_of_the_clock(server: AgentPayServer, client: AgentPay):
    server.sandbox.clock.advance(days=365)

    account = client.accounts.create(name="a")

    assert account.created_at == START + timedelta(days=365)
    assert client.policies.get(account.account_id).updated_at == START + timedelta(days=365)
    assert account.account_id > f"acct_{'0' * 26}"


def test_the_clock_is_advanced_in_any_unit(server: AgentPayServer):
    now = server.sandbox.clock.advance(1, minutes=2, hours=3, days=4)

    assert now == server.sandbox.clock.now() == START + timedelta(days=4, hours=3, minutes=2, seconds=1)


def test_the_clock_does_not_go_back(server: AgentPayServer):
    with pytest.raises(InvalidRequestError):
        server.sandbox.clock.advance(-1)

    assert server.sandbox.clock.now() == START


def test_a_running_clock_is_not_advanced():
    with AgentPayServer(clock="system") as server, raw_client(server) as http:
        refused(http.post("/ext/v1/sandbox/clock/advance", json={"seconds": 1}), "clock_not_manual")
        with pytest.raises(ConflictError):
            server.sandbox.clock.advance(1)

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
