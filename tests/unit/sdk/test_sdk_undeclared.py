"""Once a request was handed over, a call raises only declared errors, whatever the source."""

import asyncio
import concurrent.futures
import logging
import ssl

import anyio
import httpcore
import httpx
import pytest
from sdk_world import ACCOUNT, BALANCE, Script, answer, paid

from agentpay import errors
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


def test_a_creation_is_not_retried_after_an_undeclared_exception(caller):
    script = caller.script(raising(RuntimeError("a bug")))
    with pytest.raises(errors.OutcomeUnknownError, match="Read the current state") as caught:
        caller(lambda c: c.accounts.create(name="Agent"))
    assert caught.value.__cause__.may_have_been_processed
    assert len(script.requests) == 1


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


@pytest.mark.parametrize("foreign", [RuntimeError("gone"), OSError("gone"), httpx.ReadError("gone")])
def test_a_body_that_breaks_off_raises_a_declared_error(caller, foreign):
    stream = Stream(b'{"transfer_id":', error=foreign)
    caller.connect(httpx.MockTransport(lambda _: httpx.Response(200, stream=stream)), max_retries=0)
    with pytest.raises(errors.TransferOutcomeUnknownError):
        caller(pay)


def test_an_error_while_closing_the_connection_does_not_discard_the_response(caller):
    stream = Stream(answer(200, BALANCE).content, error_of_close=RuntimeError("Event loop is closed"))
    caller.connect(httpx.MockTransport(lambda _: httpx.Response(200, stream=stream)))
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


def test_an_error_during_a_pause_after_a_lost_response_is_outcome_unknown(caller):
    caller.script(httpx.ReadTimeout(""))

    def fail(_seconds):
        raise OverflowError("timestamp too large")

    async def afail(_seconds):
        fail(_seconds)

    caller.client._http.sleep = afail if caller.is_async else fail
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        caller(pay)
    assert caught.value.idempotency_key == "mine"
    assert isinstance(caught.value.__cause__, OverflowError), "a fault of ours keeps its traceback"


def test_a_failure_of_the_decoder_is_outcome_unknown(caller, monkeypatch):
    def fail(*_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(codec, "structure", fail)
    caller.script(paid, answer(200, ACCOUNT))
    with pytest.raises(errors.TransferOutcomeUnknownError):
        caller(pay)
    with pytest.raises(errors.APIConnectionError, match="ZeroDivisionError was raised here"):
        caller(lambda c: c.accounts.get("acct_a"))


def test_closing_the_client_between_attempts_is_outcome_unknown_with_the_key(caller):
    script = caller.script(httpx.ReadTimeout(""))
    http = caller.client._http

    def close(_seconds):
        http.closed = True

    async def aclose(_seconds):
        close(_seconds)

    http.sleep = aclose if caller.is_async else close
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        caller(pay)
    assert isinstance(caught.value.__cause__, errors.ClosedClientError)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    "interruption", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
)
def test_a_base_exception_passes_through_with_a_note_of_the_key(interruption):
    from sdk_world import Caller  # noqa: PLC0415

    from agentpay import AgentPay  # noqa: PLC0415

    caller = Caller(AgentPay)
    caller.connect(Script(raising(interruption())))
    with pytest.raises(interruption) as caught:
        caller(pay)
    assert "idempotency_key='mine'" in caught.value.__notes__[0]
