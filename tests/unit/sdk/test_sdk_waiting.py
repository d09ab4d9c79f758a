"""Waiting for a transfer: through both clients on a virtual clock, and only the generator, fed with data."""

import json
import math
import pickle

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st
from sdk_world import KEY, PENDING, TRANSFER, URL, Clock, answer, refusal

from agentpay import AgentPay, AsyncAgentPay, Transfer, errors
from agentpay._calls.retries import Sleep
from agentpay._calls.waiting import LOOK_TIMEOUT_MIN, PAUSE_CAP, Look, looks
from agentpay.contract import codec, json_text

SUBMITTED = {**PENDING, "status": "submitted"}
REFUSED = {**PENDING, "status": "rejected", "error": "escalation_rejected", "message": "No."}


def wait(**options):
    return lambda client: client.transfers.wait("txn_a", **options)


# --- Through a client -------------------------------------------------------------------------------------


def test_waiting_ends_when_the_transfer_is_final(caller):
    script = caller.script(answer(200, PENDING), answer(200, SUBMITTED), answer(200, TRANSFER))
    transfer = caller(wait())
    assert transfer.status == "settled"
    assert [request.url.path for request in script.requests] == ["/v1/transfers/txn_a"] * 3
    first, second = caller.clock.sleeps
    assert 0.25 <= first <= 0.5
    assert 0.375 <= second <= 0.75


@pytest.mark.parametrize("status", ["settled", "rejected", "failed"])
def test_a_final_transfer_is_not_waited_for(caller, status):
    caller.script(answer(200, {**TRANSFER, "status": status}))
    assert caller(wait(total_timeout=0)).status == status
    assert caller.clock.sleeps == []


def test_a_refused_transfer_is_returned_with_its_reason(caller):
    caller.script(answer(200, PENDING), answer(200, REFUSED))
    transfer = caller(wait())
    assert (transfer.status, transfer.error, transfer.message) == ("rejected", "escalation_rejected", "No.")


def test_an_unknown_status_is_waited_for(caller):
    caller.script(answer(200, {**PENDING, "status": "under_review"}), answer(200, TRANSFER))
    assert caller(wait()).status == "settled"


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


def test_a_wait_timeout_mentions_a_pending_approval(caller):
    caller.script(answer(200, PENDING))
    with pytest.raises(errors.WaitTimeoutError, match="an operator must approve or reject it"):
        caller(wait(total_timeout=0))


def test_a_timeout_of_zero_reads_the_transfer_once(caller):
    script = caller.script(answer(200, PENDING))
    with pytest.raises(errors.WaitTimeoutError):
        caller(wait(total_timeout=0))
    assert len(script.requests) == 1
    assert caller.clock.sleeps == []


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


def test_a_wait_timeout_during_an_outage_keeps_the_last_transfer(caller):
    caller.script(answer(200, PENDING), *[httpx.ConnectError("refused") for _ in range(40)])
    with pytest.raises(errors.WaitTimeoutError) as caught:
        caller(wait(total_timeout=10))
    assert caught.value.transfer.status == "pending_approval"
    assert isinstance(caught.value.__cause__, errors.APIConnectionError)


def test_a_wait_timeout_without_any_response_has_no_transfer(caller):
    caller.script(*[answer(503) for _ in range(40)])
    with pytest.raises(errors.WaitTimeoutError, match="txn_a could not be read within 10 s") as caught:
        caller(wait(total_timeout=10))
    assert caught.value.transfer is None
    assert isinstance(caught.value.__cause__, errors.ServerError)
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


@pytest.mark.parametrize(("own", "seconds"), [({}, 4), ({"total_timeout": 6}, 6), ({"timeout": 1}, 4)])
def test_the_total_timeout_of_the_client_ends_a_wait_unless_the_call_has_one(caller, own, seconds):
    caller.script(*[answer(200, PENDING) for _ in range(40)], total_timeout=4)
    with pytest.raises(errors.WaitTimeoutError, match=f"after {seconds} s"):
        caller(wait(**own))


def test_a_wait_ends_after_a_minute_by_default(caller):
    caller.script(*[answer(200, PENDING) for _ in range(40)], total_timeout=100)
    with pytest.raises(errors.WaitTimeoutError, match="after 60 s"):
        caller(wait())


def test_an_unknown_option_is_refused(caller):
    script = caller.script()
    with pytest.raises(TypeError, match="unexpected keyword argument 'patience'"):
        caller(wait(patience=1))
    assert script.requests == []


def test_a_wait_with_impossible_retries_is_refused(caller):
    caller.script()
    with pytest.raises(errors.ConfigurationError, match="max_retries must be an integer from 0 up"):
        caller(wait(max_retries=-1))


def test_a_closed_client_does_not_wait(caller):
    caller.script()
    caller(lambda client: client.close())
    with pytest.raises(errors.ClosedClientError):
        caller(wait())


def test_a_wait_respects_retry_after(caller):
    caller.script(answer(503, Retry_After="7"), answer(429, Retry_After="40"), answer(200, TRANSFER))
    caller(wait(total_timeout=120))
    assert caller.clock.sleeps == [7.0, 40.0]


def test_a_retry_after_beyond_the_timeout_is_respected(caller):
    script = caller.script(answer(503, Retry_After="61"))
    with pytest.raises(errors.WaitTimeoutError):
        caller(wait(total_timeout=60))
    assert caller.clock.sleeps == [60.0]
    assert len(script.requests) == 1


def test_without_a_timeout_a_wait_lasts_until_the_transfer_is_final(caller):
    caller.script(*[answer(200, PENDING) for _ in range(200)], answer(200, TRANSFER))
    assert caller(wait(total_timeout=None)).status == "settled"
    assert sum(caller.clock.sleeps) > 400


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


def test_without_any_timeout_a_request_has_none():
    def final(request):
        assert request.extensions["timeout"]["read"] is None
        return answer(200, TRANSFER)

    with AgentPay(api_key=KEY, base_url=URL, timeout=None, transport=httpx.MockTransport(final)) as client:
        assert client.transfers.wait("txn_a", total_timeout=None).is_final


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


@respx.mock
def test_a_wait_reads_the_transfer_endpoint():
    route = respx.get(f"{URL}/v1/transfers/txn_a").mock(return_value=answer(200, TRANSFER))
    with AgentPay(api_key=KEY, base_url=URL) as client:
        assert client.transfers.wait("txn_a").is_final
    assert route.call_count == 1
    assert route.calls.last.request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.anyio
@respx.mock
async def test_an_async_wait_reads_the_transfer_endpoint():
    route = respx.get(f"{URL}/v1/transfers/txn_a").mock(return_value=answer(200, TRANSFER))
    async with AsyncAgentPay(api_key=KEY, base_url=URL) as client:
        assert (await client.transfers.wait("txn_a")).is_final
    assert route.call_count == 1


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


def test_pauses_grow_by_half_up_to_the_cap():
    steps, _, _ = play([transfer("submitted")] * 8 + [transfer("settled")], timeout=None)
    assert pauses(steps) == [0.5, 0.75, 1.125, 1.6875, 2.53125, 3.796875, PAUSE_CAP, PAUSE_CAP]


def test_pauses_are_drawn_between_half_and_all_of_the_limit():
    steps, _, _ = play([transfer("submitted")] * 3 + [transfer("settled")], random=lambda: 0.0)
    assert pauses(steps) == [0.25, 0.375, 0.5625]


def test_a_long_poll_interval_is_kept():
    steps, _, _ = play([transfer("submitted")] * 3 + [transfer("settled")], timeout=100, poll_interval=20)
    assert pauses(steps) == [20, 20, 20]


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
