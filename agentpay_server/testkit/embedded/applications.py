"""Delivers events to the user's application in process, by ASGI or WSGI.

A post ends with the application's response. Later work (background tasks, the handlers of a `WebhookRouter`)
is tracked so that a test can wait for it.
"""

import asyncio
import contextlib
import inspect
import io
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from typing import Any, Final, TypeVar

from starlette.types import Message

from agentpay.integrations.router import HANDLING
from agentpay_server.testkit.embedded.owner_thread import OwnerThread

T = TypeVar("T")
Headers = Sequence[tuple[str, str]]

_HOST: Final = "testserver"
"""The host name of frameworks' test clients, which frameworks accept in tests."""


class WebhookApplication:
    """An application of either kind, and the work that its posts have started.

    `loop` is the caller's event loop that it runs on; None if it has its own thread.
    """

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, app: Callable[..., Any], path: str) -> None:
        self._app = app
        self._path = path
        self._work: list[Future[Any]] = []

    async def post(self, headers: Headers, body: bytes) -> int:
        """Return the status of its response."""
        raise NotImplementedError

    def settle(self, timeout: float) -> None:
        """Wait for all work that posts started; raise its exception, or `TimeoutError`."""
        while self._work:
            futures = list(self._work)
            _, late = wait(futures, timeout)
            if late:
                raise TimeoutError("the application is still handling a delivery")
            self._work = self._work[len(futures) :]
            for future in futures:
                future.result()

    def close(self) -> None:
        """End its thread, if it has one."""

    def _add(self, future: "Future[Any]") -> None:
        self._work.append(future)


def application(app: Callable[..., Any], path: str) -> WebhookApplication:
    """Wrap an ASGI 3 or WSGI application, distinguished by the number of arguments.

    Raises TypeError if it is neither, ValueError if the path does not begin with a slash.
    """
    if not path.startswith("/"):
        raise ValueError(f"the path of a receiver begins with a slash, as /hooks does, not {path!r}")
    try:
        count = len(inspect.signature(app).parameters)
    except (TypeError, ValueError):
        count = 0
    if count == 3:
        return _Asgi(app, path)
    if count == 2:
        return _Wsgi(app, path)
    raise TypeError(
        "deliver_to takes an ASGI application, called with scope, receive and send, or a WSGI application, "
        f"called with environ and start_response, not {type(app).__name__}"
    )


class _Asgi(WebhookApplication):
    def __init__(self, app: Callable[..., Any], path: str) -> None:
        super().__init__(app, path)
        with contextlib.suppress(RuntimeError):
            self.loop = asyncio.get_running_loop()
        self._owner = OwnerThread("agentpay-receiver") if self.loop is None else None

    async def post(self, headers: Headers, body: bytes) -> int:
        answered: Future[int] = Future()
        self._add(self._begin(self._run(headers, body, answered)))
        return await asyncio.wrap_future(answered)

    def _begin(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        if self._owner is not None:
            return self._owner.begin(work)
        assert self.loop is not None  # noqa: S101 - one or the other
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            # The test's event loop has ended, which is like a closed port.
            work.close()
            raise

    async def _run(self, headers: Headers, body: bytes, answered: "Future[int]") -> None:
        requests = [{"type": "http.request", "body": body, "more_body": False}]
        ended = asyncio.Event()
        status = 500

        async def receive() -> Message:
            if requests:
                return requests.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                ended.set()
                _answer(answered, status)

        HANDLING.set(self._add)
        try:
            await self._app(self._scope(headers, body), receive, send)
        finally:
            # If the application raised or did not respond: respond 500, as servers do.
            _answer(answered, 500)

    def _scope(self, headers: Headers, body: bytes) -> dict[str, Any]:
        sent = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        sent = [(name, value) for name, value in sent if name not in (b"host", b"content-length")]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", _HOST.encode()), *sent, (b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 0),
            "server": (_HOST, 80),
        }

    def close(self) -> None:
        if self._owner is not None:
            self._owner.stop()


def _answer(answered: "Future[int]", status: int) -> None:
    """Respond, unless the application has responded, or the sender no longer waits."""
    with contextlib.suppress(InvalidStateError):
        answered.set_result(status)


class _Wsgi(WebhookApplication):
    async def post(self, headers: Headers, body: bytes) -> int:
        # The application continues even if the sender no longer waits.
        handled: Future[None] = Future()
        self._add(handled)
        return await asyncio.to_thread(self._run, headers, body, handled)

    def _run(self, headers: Headers, body: bytes, handled: "Future[None]") -> int:
        status = 500

        def start_response(line: str, *_: object) -> Callable[[bytes], object]:
            nonlocal status
            status = int(line.split(" ", 1)[0])
            return lambda _: None

        token = HANDLING.set(self._add)
        try:
            chunks = self._app(self._environ(headers, body), start_response)
            try:
                for _ in chunks:
                    pass
            finally:
                if hasattr(chunks, "close"):
                    chunks.close()
        except Exception as error:  # noqa: BLE001 - raised again where the test waits
            handled.set_exception(error)
            return 500
        else:
            handled.set_result(None)
        finally:
            HANDLING.reset(token)
        return status

    def _environ(self, headers: Headers, body: bytes) -> dict[str, Any]:
        sent = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers}
        return {
            **sent,
            "REQUEST_METHOD": "POST",
            "SCRIPT_NAME": "",
            "PATH_INFO": self._path,
            "QUERY_STRING": "",
            "CONTENT_TYPE": sent.pop("HTTP_CONTENT_TYPE", "application/json"),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_HOST": _HOST,
            "SERVER_NAME": _HOST,
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
