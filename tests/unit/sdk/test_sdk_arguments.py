"""Accepted arguments: equivalent objects of other libraries; others get an error with the remedy."""

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sdk_world import ACCOUNT, KEY, TRANSFER, URL, answer

from agentpay import AgentPay, errors, testing
from agentpay.contract import codec, json_text
from agentpay.contract.accounts import Account
from agentpay.contract.requests import MAX_NESTING
from agentpay.contract.transfers import Transfer


def model(kind, body):
    return codec.structure(json_text.parse_json(json.dumps(body).encode()), kind)


AN_ACCOUNT = model(Account, ACCOUNT)
A_TRANSFER = model(Transfer, TRANSFER)
A_UUID = UUID("8b7bcf3c-3f2b-4c53-9d3a-1f3f0d1e7e11")
PAYMENT = {"from_": "acct_a", "to": "acct_b", "amount": 1}


def pay(**wrong):
    return lambda c: c.transfers.create(**{**PAYMENT, **wrong})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (pay(from_=AN_ACCOUNT), "from_ must be an account_id, not Account: pass account.account_id"),
        (pay(to=AN_ACCOUNT), "to must be an account_id, not Account: pass account.account_id"),
        (pay(from_=A_TRANSFER), "from_ must be an account_id, not Transfer"),
        (pay(from_=None), "from_ must be an account_id, not NoneType"),
        (pay(memo=7), "memo must be a string, not int"),
        (
            pay(idempotency_key=A_UUID),
            "idempotency_key must be a string, not UUID: pass str(idempotency_key)",
        ),
        (
            pay(amount=0.1),
            "amount must be a Decimal, an int or a string, not float: write Decimal('0.1') or '0.1'",
        ),
        (pay(amount=b"1"), "amount must be a Decimal, an int or a string, not bytes"),
        (
            lambda c: c.accounts.get(AN_ACCOUNT),
            "account_id must be a string, not Account: pass account.account_id",
        ),
        (
            lambda c: c.transfers.get(A_TRANSFER),
            "transfer_id must be a string, not Transfer: pass transfer.transfer_id",
        ),
        (lambda c: c.accounts.create(name=7), "name must be a string, not int"),
        (lambda c: c.accounts.list(cursor=[1]), "cursor must be a string, not list"),
        (lambda c: c.accounts.list(limit="5"), "limit must be an integer, not str"),
        (lambda c: c.accounts.list(limit=2.5), "limit must be an integer, not float"),
        (lambda c: c.accounts.list(limit=True), "limit must be an integer, not bool"),
        (lambda c: c.accounts.list(status=5), "status must be a string, not int"),
        (
            lambda c: c.accounts.transactions("acct_a", since=1760000000),
            "since must be a datetime with a UTC offset, not int",
        ),
        (lambda c: c.transfers.list(account_id=AN_ACCOUNT), "account_id must be a string, not Account: pass"),
        (lambda c: c.transfers.list(idempotency_key=5), "idempotency_key must be a string, not int"),
        (
            lambda c: c.events.replay(testing.event("transfer.settled")),
            "event_id must be a string, not TransferSettled: pass event.id",
        ),
        (
            lambda c: c.webhooks.rotate_secret("wh_a", overlap_seconds="60"),
            "overlap_seconds must be an integer, not str",
        ),
        (
            lambda c: c.request("GET", "/v1/accounts", params={"limit": 2.5}),
            "limit must be a string, an integer, a Decimal, a boolean or a datetime, not float",
        ),
        (lambda c: c.policies.update("acct_a", paused="yes"), "paused must be True or False, not str"),
        (
            lambda c: c.policies.replace("acct_a", require_memo=1),
            "require_memo must be True or False, not int",
        ),
        (
            lambda c: c.policies.replace("acct_a", allowed_counterparties=["acct_b", AN_ACCOUNT]),
            "allowed_counterparties[1] must be an account_id, not Account: pass account.account_id",
        ),
        (
            lambda c: c.policies.replace("acct_a", max_daily_spend=0.5),
            "max_daily_spend must be a Decimal, an int or a string, not float: write Decimal('0.5')",
        ),
        (
            lambda c: c.webhooks.create(url=httpx.URL("https://example.com/"), events=["transfer.settled"]),
            "url must be a string, not URL: pass str(url)",
        ),
        (pay(amount=True), "amount must be a Decimal, an int or a string, not bool"),
        (pay(amount=None), "amount must be a Decimal, an int or a string, not NoneType"),
        (
            lambda c: c.sessions.open(account_id="acct_a", to="acct_b", cap_usdc=0.1),
            "cap_usdc must be a Decimal, an int or a string, not float",
        ),
        (
            lambda c: c.policies.update("acct_a", escalation_threshold=True),
            "escalation_threshold must be a Decimal, an int or a string, not bool",
        ),
        (lambda c: c.policies.get(None), "account_id must be a string, not NoneType"),
        (
            lambda c: c.policies.replace("acct_a", allowed_counterparties="acct_b"),
            "allowed_counterparties is a list of strings, not one string: write ['acct_b']",
        ),
        (lambda c: c.policies.update("acct_a", categories="data"), "categories is a list"),
        (lambda c: c.webhooks.create("https://a.example", events="transfer.settled"), "events is a list"),
        (
            lambda c: c.webhooks.create(url="https://example.com", events=["a"], account_ids=[AN_ACCOUNT]),
            "account_ids[0] must be an account_id, not Account: pass account.account_id",
        ),
        (
            lambda c: c.accounts.create(name="a", metadata={"a": {"b": [1, {2, 3}]}}),
            "metadata.a.b[1] must be a JSON value",
        ),
        (lambda c: c.accounts.create(name="a", metadata=["a"]), "metadata must be a mapping"),
        (
            lambda c: c.accounts.create(name="a", metadata={1: 2}),
            "a key of metadata must be a string, not int: 1",
        ),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_with_the_remedy(caller, call, sentence):
    script = caller.script(max_retries=0)
    with pytest.raises(errors.InvalidRequestError) as caught:
        caller(call)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)
    assert str(caught.value).startswith(sentence)
    assert (caught.value.outcome, caught.value.retryable, caught.value.code) == (
        "not_done",
        False,
        "invalid_request",
    )
    assert not script.requests


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda c, a: pay(amount=a)(c), "amount"),
        (lambda c, a: c.transfers.check(from_="acct_a", to="acct_b", amount=a), "amount"),
        (lambda c, a: c.sessions.open(account_id="acct_a", to="acct_b", cap_usdc=a), "cap_usdc"),
        (lambda c, a: c.sessions.charge("sess_a", amount=a), "amount"),
        (lambda c, a: c.policies.update("acct_a", max_daily_spend=a), "max_daily_spend"),
    ],
)
def test_an_amount_that_is_no_decimal_string_of_micro_usdc_is_refused(caller, call, name):
    script = caller.script(max_retries=0)
    with pytest.raises(
        errors.InvalidRequestError, match=f"^{name} must be a decimal number such as '25.50'$"
    ):
        caller(lambda c: call(c, "1_0"))
    for amount in ("1.2345678", "-1", "NaN", "Infinity", "one", Decimal("1e-7")):
        with pytest.raises(errors.InvalidRequestError, match=f"^{name} must"):
            caller(lambda c, amount=amount: call(c, amount))
    assert not script.requests


@pytest.mark.parametrize(
    ("since", "problem"),
    [
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), "lie within the years 1 to 9999 in UTC"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), "lie within the years 1 to 9999 in UTC"),
        (datetime(2026, 1, 31, 12), r"have a UTC offset: use datetime\(\.\.\., tzinfo=UTC\)"),  # noqa: DTZ001 - what is refused
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda c, **o: c.accounts.transactions("acct_a", **o),
        lambda c, **o: c.transfers.list(**o),
        lambda c, **o: c.deliveries.replay(**o),
        lambda c, **o: c.console.spend_report(**o),
    ],
)
def test_a_time_that_is_no_moment_of_utc_is_refused(caller, call, since, problem):
    script = caller.script(max_retries=0)
    with pytest.raises(errors.InvalidRequestError, match=f"^since must {problem}$"):
        caller(lambda c: call(c, since=since))
    assert not script.requests


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda c, t: c.console.search(t), "q"),
        (lambda c, t: c.accounts.list(cursor=t), "cursor"),
        (lambda c, t: c.accounts.transactions("acct_a", since=t), "since"),
        (lambda c, t: c.payments.list(origin=t), "origin"),
        (lambda c, t: c.sellers.get(f"https://{t}.example"), "origin"),
        (lambda c, t: c.accounts.get(t), "account_id"),
        (lambda c, t: pay(memo=t)(c), "memo"),
        (lambda c, t: pay(idempotency_key=t)(c), "idempotency_key"),
        (lambda c, t: c.sellers.put("https://a.example", recipients=[t]), r"recipients\[0\]"),
        (lambda c, t: c.request("GET", "/v1/accounts", params={"name": t}), "name"),
        (lambda c, t: c.request("GET", "/v1/accounts", params={t: "name"}), "a name of the query"),
        (lambda c, t: c.accounts.list(extra_query={"name": t}), "name"),
        (lambda c, t: c.console.search(t * 70_000), "q"),
        (lambda c, _: c.console.search("t" * 70_000), "an argument of console.search is too long"),
    ],
)
def test_text_that_cannot_be_encoded_is_refused(caller, call, name):
    script = caller.script(max_retries=0)
    with pytest.raises(errors.InvalidRequestError, match=f"^{name}"):
        caller(lambda c: call(c, "Caf\udce9"))
    assert not script.requests


def test_a_time_may_be_given_as_text(caller):
    script = caller.script(answer(200, {"data": [], "cursor": "", "has_more": False}))
    caller(lambda c: c.accounts.transactions("acct_a", since="2026-01-31T12:00:00Z"))
    assert script.requests[0].url.params["since"] == "2026-01-31T12:00:00Z"


class TestMetadata:
    def test_metadata_accepts_any_json(self, caller):
        script = caller.script(answer(201, ACCOUNT))
        given = {
            "n": 0.1,
            "d": Decimal("0.30"),
            "i": 10**30,
            "t": (1, None, True),
            "o": {"e": 1e300, "s": "ü"},
        }
        caller(lambda c: c.accounts.create(name="Agent", metadata=given))
        sent = json.loads(script.requests[0].content, parse_float=Decimal)["metadata"]
        assert sent == {
            "n": Decimal("0.1"),
            "d": Decimal("0.3"),
            "i": 10**30,
            "t": [1, None, True],
            "o": {"e": Decimal("1e300"), "s": "ü"},
        }

    @pytest.mark.parametrize("number", [float("nan"), float("inf"), Decimal("-Infinity")])
    def test_a_number_without_a_json_form_is_refused(self, caller, number):
        caller.script()
        with pytest.raises(ValueError, match=r"metadata\.a\[0\] must be a finite number"):
            caller(lambda c: c.accounts.create(name="Agent", metadata={"a": [number]}))

    def test_circular_metadata_is_refused(self, caller):
        caller.script()
        loop = {}
        loop["again"] = loop
        with pytest.raises(ValueError, match=f"nests deeper than the {MAX_NESTING} levels"):
            caller(lambda c: c.accounts.create(name="Agent", metadata=loop))

    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_a_float_in_metadata_round_trips(self, number):
        sent = []

        def answered(request):
            sent.append(json.loads(request.content))
            return httpx.Response(404)

        client = AgentPay(api_key=KEY, base_url=URL, transport=httpx.MockTransport(answered))
        with pytest.raises(errors.NotFoundError):
            client.accounts.create(name="Agent", metadata={"n": number})
        assert float(sent[0]["metadata"]["n"]) == number
