"""Waiting for a transfer: through both clients on a virtual clock, and only the generator, fed with data."""

import json
import math
import pickle

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sdk_world import KEY, PENDING, TRANSFER, URL, Clock, answer, refusal

from agentpay import AgentPay, Transfer, errors
from agentpay._calls.retries import Sleep
from agentpay._calls.waiting import LOOK_TIMEOUT_MIN, PAUSE_CAP, Look, looks
from agentpay.contract import codec, json_text

SUBMITTED = {**PENDING, "status": "submitted"}
REFUSED = {**PENDING, "status": "rejected", "error": "escalation_rejected", "message": "No."}


def wait(**options):
    return lambda client: client.transfers.wait("txn_a", **options)


# --- Through a client -------------------------------------------------------------------------------------


def test_waiting_ends_when_the_transfer_is_final(caller):
    """A status of a later version is waited for, and a refusal is returned with its reason."""
    unknown = {**PENDING, "status": "under_review"}
    script = caller.script(answer(200, PENDING), answer(200, unknown), answer(200, REFUSED))
    transfer = caller(wait())
    assert (transfer.status, transfer.error, transfer.message) == ("rejected", "escalation_rejected", "No.")
    assert [request.url.path for request in script.requests] == ["/v1/transfers/txn_a"] * 3
    first, second = caller.clock.sleeps
    assert 0.25 <= first <= 0.5
    assert 0.375 <= second <= 0.75


@pytest.mark.parametrize("status", ["settled", "rejected", "failed"])
def test_a_final_transfer_is_not_waited_for(caller, status):
    caller.script(answer(200, {**TRANSFER, "status": status}))
    assert caller(wait(total_timeout=0)).status == status
    assert caller.clock.sleeps == []


def test_a_wait_timeout_carries_the_last_transfer(caller):
    script = caller.script(*[answer(200, SUBMITTED) for _ in range(40)])
    with pytest.raises(errors.WaitTimeoutError, match="txn_a is submitted after 30 s") as caught:
        caller(wait(total_timeout=30, poll_interval=1))
    assert sum(caller.clock.sleeps) == pytest.approx(30)
    assert len(script.requests) == len(caller.clock.sleeps) + 1
    assert caught.value.transfer_id == "txn_a"
    assert caught.value.transfer.status == "submitted"
    assert "do not pay again" in str(caught.value)
    assert "operator" not in str(caught.value)


@pytest.mark.parametrize("max_retries", [0, 2])
def test_transient_failures_do_not_end_the_wait(caller, max_retries):
    failures = [answer(429), answer(502), answer(503), answer(504), refusal(503, "chain_unavailable")]
    lost = [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("disconnected"),
    ]
    script = caller.script(*failures, *lost, answer(200, TRANSFER), max_retries=max_retries)
    assert caller(wait()).status == "settled"
    assert len(script.requests) == len(caller.clock.sleeps) + 1 == len([*failures, *lost]) + 1


@pytest.mark.parametrize("seen", [True, False])
def test_a_wait_timeout_during_an_outage_has_the_last_transfer_if_one_was_seen(caller, seen):
    first = answer(200, PENDING) if seen else answer(503)
    caller.script(first, *[httpx.ConnectError("refused") for _ in range(40)])
    said = "approve or reject it" if seen else "txn_a could not be read within 10 s"
    with pytest.raises(errors.WaitTimeoutError, match=said) as caught:
        caller(wait(total_timeout=10))
    assert isinstance(caught.value, TimeoutError)
    status = caught.value.transfer and caught.value.transfer.status
    assert status == ("pending_approval" if seen else None)
    assert isinstance(caught.value.__cause__, errors.APIConnectionError)
    twin = pickle.loads(pickle.dumps(caught.value))
    assert vars(twin) == vars(caught.value)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, {"error": "not_found", "message": "no"}, errors.NotFoundError),
        (401, {"error": "unauthorized", "message": "no"}, errors.AuthenticationError),
        (501, b"", errors.ServerError),
        (200, b"<html>", errors.ResponseValidationError),
    ],
)
def test_permanent_failures_end_the_wait(caller, status, body, error):
    caller.script(answer(503), answer(status, body))
    with pytest.raises(error):
        caller(wait(total_timeout=None))
    assert len(caller.clock.sleeps) == 1


def test_a_wait_ends_after_as_many_failures_in_a_row_as_were_allowed(caller):
    failure = answer(503)
    caller.script(failure, failure, answer(200, PENDING), failure, failure, answer(200, TRANSFER))
    assert caller(wait(max_retries=2)).status == "settled"

    script = caller.script(failure, failure, failure, answer(200, TRANSFER))
    with pytest.raises(errors.ServerError):
        caller(wait(max_retries=2))
    assert len(script.requests) == 3


@pytest.mark.parametrize(
    ("clients", "own", "seconds"),
    [
        (4, {}, 4),
        (4, {"total_timeout": 6}, 6),
        (4, {"timeout": 1}, 4),
        (100, {}, 60),
        (4, {"total_timeout": 0}, 0),
        (4, {"total_timeout": None}, None),
    ],
)
def test_a_wait_ends_after_a_minute_or_the_total_timeout_of_the_client_or_of_the_call(
    caller, clients, own, seconds
):
    script = caller.script(*[answer(200, PENDING) for _ in range(200)], total_timeout=clients)
    script.steps.append(answer(200, TRANSFER))
    if seconds is None:
        assert caller(wait(**own)).status == "settled"
        assert sum(caller.clock.sleeps) > 400
    else:
        with pytest.raises(errors.WaitTimeoutError, match=f"after {seconds} s"):
            caller(wait(**own))
        assert len(script.requests) == len(caller.clock.sleeps) + 1


def test_a_wait_respects_retry_after_up_to_its_end(caller):
    caller.script(answer(503, Retry_After="7"), answer(429, Retry_After="40"), answer(200, TRANSFER))
    caller(wait(total_timeout=120))
    assert caller.clock.sleeps == [7.0, 40.0]
    script = caller.script(answer(503, Retry_After="61"))
    with pytest.raises(errors.WaitTimeoutError):
        caller(wait(total_timeout=60))
    assert caller.clock.sleeps[2:] == [60.0]
    assert len(script.requests) == 1


@pytest.mark.parametrize("own", [30.0, 2.0, None])
def test_a_request_is_limited_by_the_remaining_time_and_the_client_timeout(own):
    clock, allowed = Clock(), []

    def hanging(request):
        allowed.append(request.extensions["timeout"]["read"])
        clock.now += allowed[-1]
        raise httpx.ReadTimeout("slow")

    with AgentPay(api_key=KEY, base_url=URL, timeout=own, transport=httpx.MockTransport(hanging)) as client:
        client._http.monotonic, client._http.sleep = clock.monotonic, clock.sleep
        with pytest.raises(errors.WaitTimeoutError):
            client.transfers.wait("txn_a", total_timeout=60, poll_interval=5)
    limit = math.inf if own is None else own
    assert allowed[0] == min(limit, 60)
    assert min(limit, LOOK_TIMEOUT_MIN) <= min(allowed) <= max(allowed) <= limit
    assert clock.now - 1000 == pytest.approx(60 + LOOK_TIMEOUT_MIN / 2, abs=LOOK_TIMEOUT_MIN / 2 + 1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"total_timeout": -1},
        {"total_timeout": float("nan")},
        {"poll_interval": 0},
        {"poll_interval": -1},
        {"poll_interval": math.inf},
        {"poll_interval": math.nan},
    ],
)
def test_a_negative_timeout_is_refused(caller, options):
    script = caller.script()
    with pytest.raises(ValueError, match="timeout must be from 0"):
        caller(wait(**options))
    assert script.requests == []


# --- The generator ----------------------------------------------------------------------------------------


def transfer(status):
    body = {**PENDING, "status": status}
    return codec.structure(json_text.parse_json(json.dumps(body).encode()), Transfer)


def busy(retry_after=None):
    return errors.RateLimitError("slow down", status_code=429, retry_after=retry_after)


def play(outcomes, *, timeout=60.0, poll_interval=0.5, random=lambda: 1.0, look_seconds=0.0):
    """Drive the generator with these outcomes; return its steps, the result and when it ended."""
    clock = Clock()
    flow = looks("txn_a", timeout=timeout, poll_interval=poll_interval, now=clock.monotonic, random=random)
    outcomes, steps = iter(outcomes), []
    try:
        step = next(flow)
        while isinstance(step, Sleep | Look):
            steps.append(step)
            if isinstance(step, Sleep):
                clock.sleep(step.seconds)
                step = next(flow)
            else:
                clock.now += look_seconds
                step = flow.send(next(outcomes))
        return steps, step, clock.now - 1000
    except errors.WaitTimeoutError as error:
        return steps, error, clock.now - 1000


def pauses(steps):
    return [step.seconds for step in steps if isinstance(step, Sleep)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.75, 1.125, 1.6875, 2.53125, 3.796875, PAUSE_CAP, PAUSE_CAP]),
        # They are drawn between half and all of the limit.
        ({"random": lambda: 0.0}, [0.25, 0.375, 0.5625]),
        ({"poll_interval": 20}, [20, 20, 20]),
    ],
)
def test_pauses_grow_by_half_up_to_the_cap_or_the_poll_interval(options, expected):
    answers = [transfer("submitted")] * len(expected) + [transfer("settled")]
    steps, _, _ = play(answers, timeout=None, **options)
    assert pauses(steps) == expected


def test_a_transfer_that_ends_during_the_last_pause_is_returned():
    steps, result, ended = play(
        [transfer("submitted"), transfer("settled")], timeout=0.3, random=lambda: 0.999
    )
    assert pauses(steps) == [pytest.approx(0.3)]
    assert (result.status, ended) == ("settled", pytest.approx(0.3))


def test_a_read_may_take_the_remaining_time_and_the_last_one_a_minimum():
    submitted = transfer("submitted")
    steps, _, _ = play([submitted] * 9, timeout=20, poll_interval=4, look_seconds=4)
    assert [step.timeout for step in steps if isinstance(step, Look)] == [20, 12, LOOK_TIMEOUT_MIN]


def test_retry_after_is_capped_while_waiting():
    steps, result, _ = play([busy(1e12), transfer("settled")], timeout=None)
    assert pauses(steps) == [3600.0]
    assert result.is_final


OUTCOMES = st.one_of(
    st.sampled_from(["pending_approval", "submitted", "under_review"]).map(transfer),
    st.sampled_from([None, 0.0, 0.5, 9.0, 1e9]).map(busy),
)


@given(
    st.lists(OUTCOMES, max_size=5),
    st.sampled_from([0.0, 0.001, 1.0, 33.0]),
    st.sampled_from([0.01, 0.5, 50.0]),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0.0, 0.2, 3.0]),
)
def test_a_wait_times_out_with_the_last_transfer_for_any_outcomes(
    first, timeout, interval, drawn, look_seconds
):
    def outcomes():
        yield from first
        while True:
            yield transfer("submitted")

    steps, error, ended = play(
        outcomes(), timeout=timeout, poll_interval=interval, random=lambda: drawn, look_seconds=look_seconds
    )
    assert isinstance(error, errors.WaitTimeoutError)
    assert timeout - 1e-6 <= ended <= timeout + look_seconds + 1e-6
    made = sum(isinstance(step, Look) for step in steps)
    answers = [outcome for outcome, _ in zip(outcomes(), range(made), strict=False)]
    seen = [outcome for outcome in answers if isinstance(outcome, Transfer)]
    assert error.transfer == (seen[-1] if seen else None)
    assert error.__cause__ is (answers[-1] if not isinstance(answers[-1], Transfer) else None)
