"""Retries and final exceptions: only the generator, driven with data.

A scenario is a sequence of outcomes. Each is a reply or a failure, with what it says about the work: it was
not done (`nothing`), it may have been (`doubt`), or the service has decided (`settled`).
"""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sdk_world import ACCOUNT, TRANSFER

from agentpay import errors
from agentpay._calls.requests import PreparedRequest
from agentpay._calls.retries import BACKOFF_BASE, BACKOFF_CAP, RETRY_AFTER_CAP, Send, Sleep, attempts
from agentpay.contract.endpoints import CREATE_ACCOUNT, CREATE_TRANSFER, CREATE_WEBHOOK, GET_ACCOUNT
from agentpay.contract.responses import RawResponse

READ = PreparedRequest(endpoint=GET_ACCOUNT, target="/v1/accounts/acct_a")
CREATE = PreparedRequest(endpoint=CREATE_ACCOUNT, target="/v1/accounts")
PAY = PreparedRequest(endpoint=CREATE_TRANSFER, target="/v1/transfers", idempotency_key="key-1")


def reply(status, body=b"", **headers):
    return RawResponse(status, headers, body if isinstance(body, bytes) else json.dumps(body).encode())


def refusal(http_status, code, /, **fields):
    return reply(http_status, {"error": code, "message": "no", **fields})


def unsent():
    return errors.APIConnectionError("refused", may_have_been_processed=False)


def lost():
    return errors.APITimeoutError("no answer", may_have_been_processed=True)


@dataclass
class Run:
    """How a scenario went."""

    sent: int
    sleeps: list[float]
    result: object = None
    error: errors.AgentPayError | None = None


def play(request, outcomes, *, max_retries=2, random=lambda: 1.0, now=lambda: 0.0):
    """Drive the generator with these outcomes; all of them must be used."""
    flow = attempts(request, max_retries=max_retries, random=random, now=now)
    outcomes = list(outcomes)
    run = Run(sent=0, sleeps=[])
    try:
        step = next(flow)
        while True:
            if isinstance(step, Sleep):
                run.sleeps.append(step.seconds)
                step = next(flow)
            else:
                assert isinstance(step, Send)
                run.sent += 1
                step = flow.send(outcomes.pop(0))
    except StopIteration as done:
        run.result, _ = done.value
    except errors.AgentPayError as error:
        run.error = error
    assert not outcomes, "the generator stopped before the scenario did"
    return run


DONE = reply(200, TRANSFER)
BUSY = refusal(429, "rate_limited")
NO_CHAIN = refusal(503, "chain_unavailable")
NO_DATABASE = refusal(503, "service_unavailable")
UNFINISHED = refusal(503, "chain_unavailable", transfer_id="txn_a", status="submitted")
BAD_GATEWAY = reply(502, b"<html>")
GATEWAY_TIMEOUT = reply(504, b"<html>")
PROXY_503 = reply(503, b"upstream connect error or disconnect/reset before headers")
CRASH = refusal(500, "internal_error")
SLOW = refusal(408, "request_timeout")
UNAUTHORIZED = refusal(401, "unauthorized")
FORBIDDEN = refusal(403, "forbidden")
VIOLATION = refusal(402, "policy_violation", transfer_id="txn_a", status="rejected")
GARBAGE = reply(200, b"<html>")

UNKNOWN = errors.TransferOutcomeUnknownError

PAYMENTS = [
    # The last response is returned, whatever came before.
    ("answered at once", [DONE], None),
    ("answered at the second attempt", [unsent(), DONE], None),
    ("answered after doubt", [lost(), BAD_GATEWAY, DONE], None),
    ("answered after an unfinished attempt", [UNFINISHED, DONE], None),
    ("answered after a crash", [CRASH, DONE], None),
    ("answered after a slow body", [SLOW, DONE], None),
    ("answered once the database is back", [NO_DATABASE, NO_DATABASE, DONE], None),
    # Nothing was done by any attempt: the plain error.
    ("never connected", [unsent(), unsent(), unsent()], errors.APIConnectionError),
    ("no chain", [NO_CHAIN, NO_CHAIN, NO_CHAIN], errors.ChainUnavailableError),
    ("busy", [BUSY, BUSY, BUSY], errors.RateLimitError),
    ("wrong key", [UNAUTHORIZED], errors.AuthenticationError),
    ("not allowed", [FORBIDDEN], errors.PermissionDeniedError),
    ("busy, then not connected", [BUSY, NO_CHAIN, unsent()], errors.APIConnectionError),
    ("a proxy's 404", [reply(404, b"<html>")], errors.NotFoundError),
    # The service has decided: its word, even after doubt.
    ("refused by policy", [VIOLATION], errors.PolicyViolationError),
    ("refused by policy after doubt", [lost(), VIOLATION], errors.PolicyViolationError),
    ("too poor after doubt", [lost(), refusal(402, "insufficient_balance")], errors.InsufficientBalanceError),
    ("invalid after doubt", [lost(), refusal(400, "invalid_request")], errors.InvalidRequestError),
    ("unknown source after doubt", [lost(), refusal(404, "not_found")], errors.NotFoundError),
    ("conflict after doubt", [lost(), refusal(409, "idempotency_conflict")], errors.IdempotencyConflictError),
    (
        "invalid recipient after doubt",
        [lost(), refusal(422, "invalid_recipient")],
        errors.InvalidRecipientError,
    ),
    ("too large", [refusal(413, "payload_too_large")], errors.InvalidRequestError),
    ("not JSON", [refusal(415, "unsupported_media_type")], errors.InvalidRequestError),
    # An attempt may have been processed, and no later response decided it.
    ("lost", [lost(), lost(), lost()], UNKNOWN),
    ("lost once, then not connected", [lost(), unsent(), unsent()], UNKNOWN),
    ("lost once, then busy", [lost(), BUSY, BUSY], UNKNOWN),
    ("lost once, then no chain", [lost(), NO_CHAIN, NO_CHAIN], UNKNOWN),
    ("lost once, then the key was revoked", [lost(), UNAUTHORIZED], UNKNOWN),
    ("lost once, then forbidden", [lost(), FORBIDDEN], UNKNOWN),
    ("lost once, then a proxy's 404", [lost(), reply(404, b"<html>")], UNKNOWN),
    ("lost once, then a proxy's 413", [lost(), reply(413, b"<html>")], UNKNOWN),
    ("bad gateway", [BAD_GATEWAY, BAD_GATEWAY, BAD_GATEWAY], UNKNOWN),
    ("gateway timeout", [GATEWAY_TIMEOUT, NO_CHAIN, unsent()], UNKNOWN),
    ("a 503 that is not the service's", [PROXY_503, PROXY_503, PROXY_503], UNKNOWN),
    ("no database", [NO_DATABASE, NO_DATABASE, NO_DATABASE], UNKNOWN),
    ("no database, then no chain", [NO_DATABASE, NO_CHAIN, NO_CHAIN], UNKNOWN),
    ("not finished in time", [UNFINISHED, UNFINISHED, UNFINISHED], UNKNOWN),
    ("the service crashes", [CRASH, CRASH, CRASH], UNKNOWN),
    ("the body came too slowly", [SLOW, SLOW, SLOW], UNKNOWN),
    ("a 5xx of a proxy", [reply(520), reply(599), reply(507)], UNKNOWN),
    ("not implemented", [reply(501)], UNKNOWN),
    ("closed after doubt", [lost(), errors.ClosedClientError()], UNKNOWN),
    ("forked after doubt", [lost(), errors.ConfigurationError("made before a fork")], UNKNOWN),
    ("closed", [errors.ClosedClientError()], errors.ClosedClientError),
    ("a success that cannot be read", [GARBAGE], UNKNOWN),
    ("a redirect", [reply(302)], UNKNOWN),
    ("an empty 204", [reply(204)], UNKNOWN),
]


@pytest.mark.parametrize(("outcomes", "kind"), [case[1:] for case in PAYMENTS], ids=[c[0] for c in PAYMENTS])
def test_a_payment_ends_in_its_outcome_or_in_an_unknown_outcome(outcomes, kind):
    run = play(PAY, outcomes)
    assert run.sent == len(outcomes)
    if kind is None:
        assert run.error is None
        assert run.result.transfer_id == "txn_a"
    else:
        assert type(run.error) is kind


def test_an_unknown_outcome_carries_the_key_the_transfer_and_the_last_error():
    run = play(PAY, [UNFINISHED, lost(), BUSY])
    assert run.error.idempotency_key == "key-1"
    assert run.error.transfer_id == "txn_a"
    assert isinstance(run.error.__cause__, errors.RateLimitError)
    assert "Do not pay again under a new key" in str(run.error)
    assert "idempotency_key='key-1'" in str(run.error)


def test_a_read_is_retried_after_transient_failures_and_not_after_permanent_ones():
    statuses = [reply(status) for status in (408, 500, 502, 505, 507, 520, 529, 599)]
    transient = [BUSY, BAD_GATEWAY, PROXY_503, NO_CHAIN, NO_DATABASE, GATEWAY_TIMEOUT, CRASH, SLOW]
    for outcome in (unsent(), lost(), *transient, *statuses):
        run = play(READ, [outcome, outcome, reply(200, ACCOUNT)])
        assert run.error is None
        assert len(run.sleeps) == 2
    for outcome in (UNAUTHORIZED, GARBAGE, reply(404), reply(501), reply(302)):
        run = play(READ, [outcome])
        assert run.error is not None
        assert not isinstance(run.error, UNKNOWN)


@pytest.mark.parametrize(
    "request_", [CREATE, PreparedRequest(endpoint=CREATE_WEBHOOK, target="/v1/webhooks")]
)
def test_a_creation_is_retried_only_if_it_was_certainly_not_processed(request_):
    for outcome in (unsent(), BUSY, NO_CHAIN):
        assert play(request_, [outcome] * 3).sent == 3
    for outcome in (lost(), BAD_GATEWAY, GATEWAY_TIMEOUT, PROXY_503, NO_DATABASE, CRASH, UNFINISHED, SLOW):
        run = play(request_, [outcome])
        assert run.sent == 1
        assert not isinstance(run.error, UNKNOWN)


def test_pauses_are_drawn_below_a_doubling_limit():
    assert play(READ, [lost()] * 8, max_retries=7).sleeps == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert play(READ, [lost()] * 3, random=lambda: 0.0).sleeps == [0.0, 0.0]
    assert play(READ, [lost()], max_retries=0).sleeps == []
    # The doubling does not overflow.
    assert play(READ, [lost()] * 2001, max_retries=2000).sleeps[-1] == BACKOFF_CAP


def test_the_pause_is_at_least_retry_after():
    for status in (429, 503):
        assert play(READ, [reply(status, **{"retry-after": "12"})] * 3).sleeps == [12.0, 12.0]
    asked = reply(503, **{"retry-after": "Wed, 21 Oct 2015 07:28:20 GMT"})
    assert play(READ, [asked, reply(200, ACCOUNT)], now=lambda: 1445412480.0).sleeps == [20.0]


def test_a_retry_after_above_the_cap_ends_the_call():
    asked = reply(429, **{"retry-after": str(int(RETRY_AFTER_CAP) + 1)})
    run = play(READ, [asked])
    assert run.sleeps == []
    assert run.error.retry_after == RETRY_AFTER_CAP + 1
    assert play(PAY, [lost(), asked]).error.idempotency_key == "key-1"


OUTCOMES = {
    "nothing": [unsent, lambda: BUSY, lambda: NO_CHAIN, lambda: UNAUTHORIZED, lambda: FORBIDDEN],
    "doubt": [
        lost,
        lambda: BAD_GATEWAY,
        lambda: GATEWAY_TIMEOUT,
        lambda: PROXY_503,
        lambda: UNFINISHED,
        lambda: CRASH,
        lambda: GARBAGE,
    ],
    "settled": [lambda: DONE, lambda: VIOLATION, lambda: refusal(409, "idempotency_conflict")],
}
SCENARIOS = st.lists(
    st.sampled_from(sorted(OUTCOMES)).flatmap(
        lambda kind: st.sampled_from(OUTCOMES[kind]).map(lambda make: (kind, make))
    ),
    min_size=1,
    max_size=8,
)


@given(SCENARIOS, st.integers(0, 8), st.floats(0, 1, exclude_max=True))
def test_a_payment_is_reported_as_unknown_exactly_when_it_is(scenario, max_retries, draw):
    flow = attempts(PAY, max_retries=max_retries, random=lambda: draw, now=lambda: 0.0)
    seen, ended, unknown = [], False, False
    next(flow)
    try:
        for kind, make in scenario:
            seen.append(kind)
            step = flow.send(make())
            assert isinstance(step, Sleep)
            assert 0 <= step.seconds <= BACKOFF_BASE * 2 ** (len(seen) - 1)
            next(flow)
    except (StopIteration, errors.AgentPayError) as end:
        ended, unknown = True, isinstance(end, UNKNOWN)
    assert len(seen) <= max_retries + ended
    assert unknown == (ended and "doubt" in seen and seen[-1] != "settled")


@given(SCENARIOS, st.integers(0, 8))
def test_a_creation_is_never_resent_after_an_ambiguous_attempt(scenario, max_retries):
    flow = attempts(CREATE, max_retries=max_retries, random=lambda: 0.0, now=lambda: 0.0)
    seen = []
    next(flow)
    try:
        for kind, make in scenario:
            assert "doubt" not in seen
            seen.append(kind)
            flow.send(make())
            next(flow)
    except (StopIteration, errors.AgentPayError):
        pass
