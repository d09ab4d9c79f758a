"""Once a request was handed over, a call raises only declared errors, whatever the source."""

import asyncio
import concurrent.futures
import logging
import ssl

import anyio
import httpcore
import httpx
import pytest
from sdk_world import ACCOUNT, BALANCE, Caller, answer, paid

from agentpay import AgentPay, errors
from agentpay.contract import codec


class MuteError(Exception):
    """Fails even when it is printed."""

    def __str__(self):
        raise RuntimeError("no text")


FOREIGN = [
    RuntimeError("Event loop is closed"),
    OSError(9, "Bad file descriptor"),
    ConnectionResetError(104, "Connection reset by peer"),
    ValueError("write to closed file"),
    KeyError("lost"),
    AttributeError("'NoneType' object has no attribute 'recv'"),
    ssl.SSLError("bad record mac"),
    anyio.ClosedResourceError(),
    anyio.BrokenResourceError(),
    httpcore.ReadError("raw"),
    httpcore.ConnectError("raw, and perhaps from an internal second attempt"),
    httpx.InvalidURL("of a redirect"),
    httpx.StreamConsumed(),
    httpx.CookieConflict("two"),
    concurrent.futures.CancelledError(),
    TimeoutError("from an internal timer"),
    AssertionError("not so"),
    StopIteration(),
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    ExceptionGroup("many", [OSError("one")]),
    MuteError(),
]


def pay(client, **options):
    return client.transfers.create(
        from_="acct_a", to="acct_b", amount="1.5", idempotency_key="mine", **options
    )


def raising(error):
    def step(_request):
        raise error

    return step


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda error: type(error).__name__)
def test_any_exception_of_a_transport_becomes_a_declared_error(caller, foreign):
    caller.script(raising(foreign), raising(foreign), max_retries=0)
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        caller(pay)
    assert caught.value.idempotency_key == "mine"
    assert isinstance(caught.value.__cause__, errors.APIConnectionError)
    assert caught.value.__cause__.may_have_been_processed
    with pytest.raises(errors.APIConnectionError) as caught:
        caller(lambda c: c.accounts.balance("acct_a"))
    assert caught.value.may_have_been_processed
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_the_declared_error_names_the_exception_and_its_location(caller):
    caller.script(raising(RuntimeError("a bug")), max_retries=0)
    with pytest.raises(
        errors.APIConnectionError, match=r"a bug \(RuntimeError at test_sdk_undeclared.py:\d+\)"
    ):
        caller(lambda c: c.accounts.balance("acct_a"))


def test_an_undeclared_exception_is_retried_like_a_lost_request(caller):
    script = caller.script(raising(RuntimeError("a bug")), raising(OSError("another")), paid)
    assert caller(pay).idempotency_key == "mine"
    assert len(script.requests) == 3
    script = caller.script(raising(RuntimeError("a bug")))
    with pytest.raises(errors.OutcomeUnknownError, match="Read the current state") as caught:
        caller(lambda c: c.accounts.create(name="Agent"))
    assert caught.value.__cause__.may_have_been_processed
    assert len(script.requests) == 1, "a creation is not repeated"


class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that begins, and may fail while it continues or when it is closed."""

    def __init__(self, *chunks, error=None, error_of_close=None):
        self.chunks, self.error, self.error_of_close = chunks, error, error_of_close

    def __iter__(self):
        yield from self.chunks
        if self.error is not None:
            raise self.error

    async def __aiter__(self):
        for chunk in self:
            yield chunk

    def close(self):
        if self.error_of_close is not None:
            raise self.error_of_close

    async def aclose(self):
        self.close()


def test_a_body_that_breaks_off_raises_a_declared_error_and_a_whole_one_counts(caller):
    for foreign in (RuntimeError("gone"), OSError("gone"), httpx.ReadError("gone")):
        broken = Stream(b'{"transfer_id":', error=foreign)
        caller.script(httpx.Response(200, stream=broken), max_retries=0)
        with pytest.raises(errors.TransferOutcomeUnknownError):
            caller(pay)
    whole = Stream(answer(200, BALANCE).content, error_of_close=RuntimeError("Event loop is closed"))
    caller.script(httpx.Response(200, stream=whole))
    assert caller(lambda c: c.accounts.balance("acct_a")).account_id == "acct_a"


def test_a_failing_log_handler_does_not_hide_a_payment(caller, monkeypatch):
    class Failing(logging.Handler):
        def emit(self, record):
            raise OSError("disk full")

    logger = logging.getLogger("agentpay")
    monkeypatch.setattr(logger, "handlers", [Failing()])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()
    caller.script(paid)
    try:
        assert caller(pay).idempotency_key == "mine"
    finally:
        monkeypatch.undo()
        logger.manager._clear_cache()


@pytest.mark.parametrize("event", ["an error", "a close"])
def test_an_error_or_a_close_during_a_pause_after_a_lost_response_is_outcome_unknown(caller, event):
    script = caller.script(httpx.ReadTimeout(""))
    http = caller.client._http

    def happen(_seconds):
        if event == "an error":
            raise OverflowError("timestamp too large")
        http.closed = True

    async def ahappen(_seconds):
        happen(_seconds)

    http.sleep = ahappen if caller.is_async else happen
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        caller(pay)
    assert caught.value.idempotency_key == "mine"
    # A fault of ours keeps its traceback.
    cause = OverflowError if event == "an error" else errors.ClosedClientError
    assert isinstance(caught.value.__cause__, cause)
    assert len(script.requests) == 1


def test_a_failure_of_the_decoder_is_outcome_unknown(caller, monkeypatch):
    def fail(*_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(codec, "structure", fail)
    caller.script(paid, answer(200, ACCOUNT))
    with pytest.raises(errors.TransferOutcomeUnknownError):
        caller(pay)
    with pytest.raises(errors.APIConnectionError, match="ZeroDivisionError was raised here"):
        caller(lambda c: c.accounts.get("acct_a"))


@pytest.mark.parametrize(
    "interruption", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
)
def test_a_base_exception_passes_through_with_a_note_of_the_key(interruption):
    caller = Caller(AgentPay)
    caller.script(raising(interruption()))
    with pytest.raises(interruption) as caught:
        caller(pay)
    (note,) = caught.value.__notes__
    assert "Do not pay again under a new key" in note
    assert "idempotency_key='mine'" in note
