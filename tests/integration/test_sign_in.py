"""Signing in to the console: links with one-use codes, and the keys of browsers (CO18 to CO20)."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest
from money import rows
from server_world import START, made_code, raw_client, refused

from agentpay import AgentPay, AuthenticationError
from agentpay_server import AgentPayServer, Settings

SIGN_IN, KEYS = "/ext/v1/console/sign-in", "/ext/v1/console/operator-keys"


@pytest.fixture
def link(server: AgentPayServer) -> httpx.URL:
    """A sign-in link of a server that listens."""
    server.listen()
    return httpx.URL(server.console_url)


@pytest.fixture
def browser(link: httpx.URL) -> Iterator[httpx.Client]:
    """A client without a key."""
    with httpx.Client(base_url=f"{link.scheme}://{link.netloc.decode('ascii')}") as client:
        yield client


def code_of(link: httpx.URL | str) -> str:
    return httpx.URL(link).fragment.removeprefix("code=")


def signed_in(server: AgentPayServer, link: httpx.URL | str) -> AgentPay:
    """A client with the key that a link gives."""
    return server.client(api_key=server.console.sign_in(code_of(link)).key)


def test_a_link_is_exchanged_once_without_a_key(
    server: AgentPayServer, browser: httpx.Client, link: httpx.URL
) -> None:
    assert str(link).startswith(f"{server.base_url}/dashboard#code=ap_code_")
    first = browser.post(SIGN_IN, json={"code": code_of(link)})

    body = first.json()
    assert first.status_code == 201
    assert set(body) == {"key_id", "key", "expires_at"}
    assert body["key"].startswith("ap_console_")
    assert body["expires_at"] == "2026-01-01T12:00:00.000Z"
    again = refused(browser.post(SIGN_IN, json={"code": code_of(link)}), "unauthorized")
    assert "console-link" in again["message"]
    who = browser.get("/ext/v1/whoami", headers={"Authorization": f"Bearer {body['key']}"}).json()
    assert (who["kind"], who["key_id"], who["account_id"]) == ("operator", body["key_id"], None)
    assert who["operator_id"] == server.client().whoami().operator_id


def test_concurrent_exchanges_of_one_code_succeed_once(browser: httpx.Client, link: httpx.URL) -> None:
    with ThreadPoolExecutor(8) as tabs:
        answers = tabs.map(lambda _: browser.post(SIGN_IN, json={"code": code_of(link)}), range(8))
    assert sorted(answer.status_code for answer in answers) == [201] + [401] * 7


@pytest.mark.parametrize("code", ["x", "ap_code_" + "0" * 49, made_code(), "ap_operator_" + "0" * 49])
def test_an_unknown_code_is_401(browser: httpx.Client, code: str) -> None:
    answer = browser.post(SIGN_IN, json={"code": code})
    refused(answer, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_codes_and_keys_are_not_interchangeable(server: AgentPayServer, link: httpx.URL) -> None:
    with raw_client(server, code_of(link)) as bearer:
        refused(bearer.get("/ext/v1/whoami"), "unauthorized")
    with pytest.raises(AuthenticationError):
        server.console.sign_in(server.operator_key)


def test_a_code_expires_after_ten_minutes(server: AgentPayServer, link: httpx.URL) -> None:
    late = server.console_url
    server.sandbox.clock.advance(599)
    signed_in(server, link)
    server.sandbox.clock.advance(1)
    with pytest.raises(AuthenticationError):
        signed_in(server, late)
    server.console.create_sign_in_code()
    assert len(rows(server, "sign_in_codes")) == 1, "the expired code is forgotten"


def test_a_console_key_expires_after_twelve_hours(server: AgentPayServer, link: httpx.URL) -> None:
    console = signed_in(server, link)
    server.sandbox.clock.advance(timedelta(hours=12).total_seconds() - 1)
    console.accounts.create(name="In time")
    assert [key.kind for key in server.operator_keys.list()] == ["console", "operator"]
    server.sandbox.clock.advance(1)
    with pytest.raises(AuthenticationError):
        console.whoami()
    assert [key.kind for key in server.operator_keys.list()] == ["operator"]


def test_a_console_key_has_operator_rights_except_managing_keys_and_sign_in_codes(
    server: AgentPayServer, link: httpx.URL
) -> None:
    made = server.console.sign_in(code_of(link))
    account = server.client(api_key=made.key).accounts.create(name="a")
    with raw_client(server, made.key) as console:
        assert console.get(KEYS).json()["data"][0] == {
            "key_id": made.key_id,
            "name": "Console",
            "created_at": "2026-01-01T00:00:00.000Z",
            "kind": "console",
            "expires_at": "2026-01-01T12:00:00.000Z",
        }
        assert console.put(f"/v1/accounts/{account.account_id}/policy", json={"paused": True}).is_success
        for answer in (
            console.post(KEYS, json={"name": "more"}),
            console.post(KEYS, content=b"{"),
            console.delete(f"{KEYS}/{server.client().whoami().key_id}"),
            console.delete(f"{KEYS}/key_unknown"),
            console.post("/ext/v1/console/sign-in-code"),
        ):
            assert "requires an operator key" in refused(answer, "forbidden")["message"]


def test_a_console_key_does_not_count_as_the_last_one(server: AgentPayServer, link: httpx.URL) -> None:
    console = server.console.sign_in(code_of(link))
    with raw_client(server, server.operator_key) as http:
        refused(http.delete(f"{KEYS}/{server.client().whoami().key_id}"), "last_operator_key")
        assert http.delete(f"{KEYS}/{console.key_id}").status_code == 204
    with pytest.raises(AuthenticationError):
        server.client(api_key=console.key).whoami()


@pytest.mark.in_memory("snapshots are taken in memory")
def test_advancing_and_restoring_from_the_console_keep_it_signed_in(
    server: AgentPayServer, link: httpx.URL
) -> None:
    snapshot = server.sandbox.snapshot()
    made = server.console.sign_in(code_of(link))
    with raw_client(server, made.key) as console:
        assert console.post("/ext/v1/sandbox/clock/advance", json={"seconds": 13 * 3600}).is_success
        (kept,) = [key for key in server.operator_keys.list() if key.kind == "console"]
        assert kept.expires_at == START + timedelta(hours=25)
        assert console.post(f"/ext/v1/sandbox/snapshots/{snapshot.snapshot_id}/restore").is_success
        (kept,) = [key for key in server.operator_keys.list() if key.kind == "console"]
        assert kept.expires_at == START + timedelta(hours=12), "the time that it had left"
        assert console.post("/ext/v1/sandbox/reset").status_code == 204
        assert console.get("/ext/v1/whoami").is_success


def test_codes_and_keys_are_in_no_log_no_record_and_no_repr(
    server: AgentPayServer, browser: httpx.Client, link: httpx.URL, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        key = browser.post(SIGN_IN, json={"code": code_of(link)}).json()["key"]
        fresh = server.console.create_sign_in_code()
        made = server.console.sign_in(fresh.code)
    texts = [caplog.text, str(server.requests), server.timeline(), repr(fresh), repr(made), repr(server)]
    texts.append(str(rows(server, "sign_in_codes")) + str(rows(server, "api_keys")))
    for secret in (code_of(link), key, fresh.code, made.key):
        for text in texts:
            assert secret[-20:] not in text


def test_a_seed_does_not_determine_sign_in_codes() -> None:
    codes = []
    for _ in range(2):
        with AgentPayServer(clock=START, seed=7) as server:
            codes.append(
                (server.console.create_sign_in_code().code, server.client().accounts.create(name="a"))
            )
    (one, account), (other, same) = codes
    assert one != other
    assert account.account_id == same.account_id


def test_wrong_codes_are_rate_limited_by_address_and_refuse_no_valid_one() -> None:
    with AgentPayServer(settings=Settings(rate_limit_per_minute=30)) as server:
        with httpx.Client(base_url=server.listen()) as browser:
            codes = ["x", made_code()] * 20
            statuses = [browser.post(SIGN_IN, json={"code": code}).status_code for code in codes]
            assert statuses == [401] * 30 + [429] * 10
            valid = browser.post(SIGN_IN, json={"code": code_of(server.console_url)})
            assert valid.status_code == 201
            assert browser.post(SIGN_IN, json={"code": "x"}).status_code == 429
        assert server.client().whoami()


def test_a_code_belongs_to_the_operator_that_asked_for_it(server: AgentPayServer) -> None:
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    key = server.console.sign_in(other.console.create_sign_in_code().code)
    assert server.client(api_key=key.key).whoami().operator_id == other.whoami().operator_id
    assert json.loads(key.to_json())["key_id"] == key.key_id
