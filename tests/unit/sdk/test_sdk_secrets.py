"""The API key shows up nowhere: no repr, no log line, no pickle, no traceback with locals."""

import copy
import logging
import os
import pickle
import traceback
from pathlib import Path

import httpx
import pytest
from sdk_world import KEY, URL, WEBHOOK, answer, cancelled, hang, refusal

from agentpay import AgentPay, AsyncAgentPay, errors


@pytest.fixture(autouse=True)
def _key_in_environment(monkeypatch):
    # From the environment, so that no frame of a test holds it.
    monkeypatch.setenv("AGENTPAY_API_KEY", KEY)


def shown(error):
    """A traceback with locals, as a crash reporter would send it, without the frames of the tests."""
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    tests = str(Path(__file__).parent)
    for part in (report, report.__cause__, report.__context__):
        if part is not None:
            part.stack = traceback.StackSummary.from_list(
                [frame for frame in part.stack if not frame.filename.startswith(tests)]
            )
    return "".join(report.format())


def test_no_repr_shows_the_key(caller):
    caller.script(answer(200, b"{}"), api_key=None)
    with pytest.raises(errors.ResponseValidationError):
        caller(lambda c: c.accounts.get("acct_a"))
    parts = (caller.client, caller.client._http, caller.client.accounts, caller.client.transfers)
    assert "SECRET" not in "".join(f"{part!r} {vars(part)!r}" for part in parts)
    assert repr(caller.client) == f"<{caller.kind.__name__} {URL}>"


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy])
def test_neither_client_nor_key_is_pickled(caller, again):
    caller.script(api_key=None)
    with pytest.raises(TypeError, match="create it again"):
        again(caller.client)
    with pytest.raises(TypeError, match="cannot be pickled"):
        again(caller.client._settings.api_key)


FAILURES = {
    "an error of the service": lambda: refusal(500, "internal_error"),
    "an answer that cannot be read": lambda: answer(200, b"<html>"),
    "a lost connection": lambda: httpx.ReadError("reset"),
    "no connection": lambda: httpx.ConnectError("refused"),
    "a fault in a transport": lambda: RuntimeError("bug with " + os.environ["AGENTPAY_API_KEY"]),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_no_traceback_shows_the_key(caller, failure):
    caller.script(failure(), api_key=None, max_retries=0)
    with pytest.raises(errors.AgentPayError) as caught:
        caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=1))
    assert "in exchange" in shown(caught.value)
    assert "SECRET" not in shown(caught.value)


@pytest.mark.anyio
async def test_no_traceback_of_a_cancelled_call_shows_the_key():
    async with AsyncAgentPay(base_url=URL, transport=httpx.MockTransport(hang)) as client:
        error = await cancelled(lambda: client.transfers.create(from_="acct_a", to="acct_b", amount=1))
    assert "idempotency_key" in shown(error)
    assert "SECRET" not in shown(error)
    assert "/httpx/" not in shown(error), "its frames would hold the bytes that were sent"


@pytest.mark.parametrize("kind", [AgentPay, AsyncAgentPay])
@pytest.mark.parametrize(
    "settings", [{"base_url": "nowhere"}, {"timeout": -1}, {"base_url": "https://api.example.com/v1"}, None]
)
def test_no_traceback_of_a_wrong_setting_or_a_malformed_key_shows_the_key(kind, settings):
    def make():
        if settings is None:
            kind(base_url=URL).with_options(api_key=os.environ["AGENTPAY_API_KEY"] + "\n")
        kind(**{"api_key": os.environ["AGENTPAY_API_KEY"], "base_url": URL, **settings})

    with pytest.raises(errors.ConfigurationError) as caught:
        make()
    assert "settings.py" in shown(caught.value)
    assert "SECRET" not in shown(caught.value)


def test_no_log_line_shows_the_key_or_a_body(caller, caplog):
    caplog.set_level(logging.DEBUG)
    garbage = answer(200, b"<html>SECRET</html>", X_Request_Id="req_1")
    caller.script(answer(503), httpx.ReadTimeout(""), garbage, api_key=None)
    with pytest.raises(errors.TransferOutcomeUnknownError):
        caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=1, memo="SECRET memo"))
    own = [record.getMessage() for record in caplog.records if record.name == "agentpay"]
    assert any("[secure]" in line and "user-agent" in line.lower() for line in own)
    assert any("sending transfers.create again" in line for line in own)
    assert any("POST /v1/transfers: APITimeoutError" in line for line in own)
    assert any("POST /v1/transfers: 200" in line and "req_1" in line for line in own)
    assert "SECRET" not in caplog.text


def test_a_webhook_secret_is_returned_but_hidden_from_reprs_and_logs(caller):
    caller.script(answer(201, WEBHOOK), answer(201, {**WEBHOOK, "events": 5}), api_key=None)
    webhook = caller(lambda c: c.webhooks.create(url=WEBHOOK["url"], events=["transfer.settled"]))
    assert webhook.secret == WEBHOOK["secret"]
    assert "SECRET" not in repr(webhook)
    with pytest.raises(errors.OutcomeUnknownError, match="events must be an array") as caught:
        caller(lambda c: c.webhooks.create(url=WEBHOOK["url"], events=["transfer.settled"]))
    assert "whsec" not in shown(caught.value)
