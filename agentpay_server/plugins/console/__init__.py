"""The plug-in: the operator console at `/dashboard`, static files that contain no operator's data.

The page calls the API like any other client, with a key that its user enters. The headers restrict it to this
server, so that markup injected into a memo or name can neither load nor send anything.

The files are plain ES modules without a build step:

- `app.js` signs in, draws the frame, navigates and reads the keyboard. The key is in the tab's sessionStorage
  only.
- `page.js` reads the shown page: at once, after each change, and every few seconds, at most once a second. A
  page that was left cancels its requests, so a late response never replaces a newer page. A list redraws only
  what differs.
- `api.js` sends requests and follows the stream of events. An event only says that something changed; the
  page then reads everything it shows again. A hidden tab has no stream and sends nothing.
- `ui.js` builds elements from text nodes and attributes; nothing parses markup. It escapes characters that
  hide or reorder text, and isolates the direction of text that others wrote.
- The other modules hold the pages: `admin.js` accounts, keys, webhooks and the audit trail; `history.js`
  timeline, sessions and deliveries; `transfer.js` approvals, and a transfer with its HTTP 402 exchange;
  `bench.js` the controls of a test chain. A dialog confirms each change; if it moves money, focus starts on
  Cancel.
"""

import hashlib
import html
import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Final

from agentpay.contract.errors import ErrorCode
from agentpay.contract.events import EVENTS
from agentpay_server.assembly.server import Server
from agentpay_server.feature import Answer, Core, Feature, Header
from agentpay_server.http.operations import require_get
from agentpay_server.ledger import audit
from agentpay_server.operators import feature as operators
from agentpay_server.platform.errors import Problem

PATH: Final = "/dashboard"

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

HEADERS: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode("ascii")),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # Makes browsers revalidate, so that modules of two versions never mix.
    (b"cache-control", b"no-cache"),
)
_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}
_INDEX: Final = "index.html"
_FOLDER: Final = resources.files("agentpay_server.plugins.console")


def link(base_url: str, code: str) -> str:
    return f"{base_url}{PATH}#code={code}"


async def console_url(server: Server, base_url: str) -> str:
    """Create a single-use link that signs in as the first operator."""
    code = await server.services.of(operators.FEATURE).sign_ins.create_code(
        audit.ServerActor(server.operator.operator_id)
    )
    return link(base_url, code.code)


class Console:
    """Its pages. The root redirects to the first."""

    headers: tuple[Header, ...] = HEADERS

    def __init__(self, core: Core) -> None:
        self._is_served = core.context.settings.serves_dashboard

    def route(self, path: str) -> str | None:
        is_ours = self._is_served and (path in ("/", PATH) or path.startswith(f"{PATH}/"))
        return PATH if is_ours else None

    async def answer(self, path: str, method: str, header: Callable[[bytes], bytes | None]) -> Answer:
        require_get(PATH, method)
        if path == "/":
            return Answer(303, b"", headers=(*HEADERS, (b"location", PATH.encode("ascii"))))
        file = _files().get(path.removeprefix(PATH).removeprefix("/") or _INDEX)
        if file is None:
            what = f"The console has no such file; it starts at {PATH}."
            raise Problem(ErrorCode.NOT_FOUND, what, says_what_to_do=True)
        if header(b"if-none-match") == dict(file.headers)[b"etag"]:
            return Answer(304, b"", headers=file.headers)
        return file


@cache
def _files() -> dict[str, Answer]:
    return {
        file.name: Answer(200, body, _TYPES[suffix], (*HEADERS, (b"etag", etag.encode("ascii"))))
        for file in _FOLDER.iterdir()
        if (suffix := f".{file.name.rpartition('.')[2]}") in _TYPES
        for body in (_filled(file.read_bytes()) if file.name == _INDEX else file.read_bytes(),)
        for etag in (f'"{hashlib.sha256(body).hexdigest()[:32]}"',)
    }


def _filled(index: bytes) -> bytes:
    """Write the registry of events, and the modules to load at once, into the page."""
    events = json.dumps({name: kind.status for name, kind in EVENTS.items()}, separators=(",", ":"))
    names = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".js"))
    preloads = "\n".join(f'<link rel="modulepreload" href="{PATH}/{name}">' for name in names)
    return index.replace(b"{events}", html.escape(events).encode("ascii")).replace(
        b"{preloads}", preloads.encode("ascii")
    )


FEATURE: Final[Feature[Console]] = Feature(name="console", build=Console, pages=lambda s: s)
