"""The plug-in: the operator console at `/dashboard`, static files that contain no operator's data.

The page calls the API like any other client, with a key that its user enters. The headers restrict it to this
server, so that markup injected into a memo or name can neither load nor send anything.

The files are plain ES modules without a build step, drawn by Preact, which is one file of another project
(`preact.js`). Types of requests and responses come from the OpenAPI documents, in
`tests/browser/openapi.d.ts`.

- `app.js` signs in, draws the frame, navigates and reads the keyboard. The key is in the tab's sessionStorage
  only. What pages share is in its component; no module has state.
- `page.js` reads the shown page: at once, after each change, and every few seconds, at most once a second. A
  page that was left cancels its requests, so a late response never replaces a newer page. All parts are shown
  together, and not while a dialog is open. Here are the lists, filters and fields that pages are made of.
- `api.js` sends requests and follows the stream of events. An event only says that something changed; the
  page then reads everything it shows again. A hidden tab has no stream and sends nothing.
- `ui.js` creates elements from text and attributes, and dialogs; nothing parses markup. It escapes characters
  that hide or reorder text, and isolates the direction of text that others wrote.
- The other modules are a page each. A dialog confirms each change, and what it is about does not change while
  it is open; if it moves money, focus starts on Cancel.

Each file is compressed once, and sent so to a browser that accepts it.
"""

import gzip
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
    (b"vary", b"accept-encoding"),
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
        coding = "gzip" if _accepts_gzip(header(b"accept-encoding") or b"") else ""
        file = _files().get((path.removeprefix(PATH).removeprefix("/") or _INDEX, coding))
        if file is None:
            what = f"The console has no such file; it starts at {PATH}."
            raise Problem(ErrorCode.NOT_FOUND, what, says_what_to_do=True)
        if header(b"if-none-match") == dict(file.headers)[b"etag"]:
            return Answer(304, b"", headers=file.headers)
        return file


def _accepts_gzip(accepted: bytes) -> bool:
    """Return whether a response may be compressed; without the header, it may not."""
    weights: dict[bytes, bytes] = {}
    for each in accepted.lower().split(b","):
        name, _, weight = each.partition(b";")
        weights[name.strip()] = weight.strip()
    weight = weights.get(b"gzip", weights.get(b"*", b"q=0")).removeprefix(b"q=")
    return weight.strip(b"0.") != b"" or weight == b""


@cache
def _files() -> dict[tuple[str, str], Answer]:
    """Return each file by name and coding, which is empty or `gzip`; each has its own ETag."""
    found: dict[tuple[str, str], Answer] = {}
    for file in _FOLDER.iterdir():
        suffix = f".{file.name.rpartition('.')[2]}"
        if suffix not in _TYPES:
            continue
        body = _filled(file.read_bytes()) if file.name == _INDEX else file.read_bytes()
        for coding, sent in (("", body), ("gzip", gzip.compress(body, mtime=0))):
            etag = f'"{hashlib.sha256(sent).hexdigest()[:32]}"'.encode("ascii")
            coded = ((b"content-encoding", coding.encode("ascii")),) if coding else ()
            found[file.name, coding] = Answer(200, sent, _TYPES[suffix], (*HEADERS, *coded, (b"etag", etag)))
    return found


def _filled(index: bytes) -> bytes:
    """Write the registry of events, and the modules to load at once, into the page."""
    events = json.dumps({name: kind.status for name, kind in EVENTS.items()}, separators=(",", ":"))
    names = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".js"))
    preloads = "\n".join(f'<link rel="modulepreload" href="{PATH}/{name}">' for name in names)
    return index.replace(b"{events}", html.escape(events).encode("ascii")).replace(
        b"{preloads}", preloads.encode("ascii")
    )


FEATURE: Final[Feature[Console]] = Feature(name="console", build=Console, pages=lambda s: s)
