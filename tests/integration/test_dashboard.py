"""The files of the console: what is served without a key, under which headers, and when not."""

import html
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import httpx
import pytest

from agentpay.contract.events import EVENTS
from agentpay_server import AgentPayServer, Settings

pytestmark = pytest.mark.plugin("console")

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
FILES = resources.files("agentpay_server.plugins.console")
PREACT = "preact.js"
ASSETS = sorted(file.name for file in FILES.iterdir() if not file.name.startswith("__"))


@pytest.fixture(scope="module")
def served() -> Iterator[httpx.Client]:
    """Requests without a key."""
    with AgentPayServer() as server, httpx.Client(base_url=server.listen()) as client:
        yield client


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/", *(f"/dashboard/{name}" for name in ASSETS)])
def test_every_file_is_served_without_a_key_under_the_same_headers(served: httpx.Client, path: str) -> None:
    response = served.get(path)
    assert response.status_code == 200
    assert HEADERS.items() <= dict(response.headers).items()
    assert response.headers["x-request-id"].startswith("req_")
    assert "set-cookie" not in response.headers
    assert not any(name.startswith("access-control") for name in response.headers)
    kind = {"js": "text/javascript", "css": "text/css"}.get(path.rpartition(".")[2], "text/html")
    assert response.headers["content-type"] == f"{kind}; charset=utf-8"


def test_the_page_has_the_status_that_each_type_of_event_leaves(served: httpx.Client) -> None:
    (events,) = re.findall(r'data-events="([^"]*)"', served.get("/dashboard").text)
    assert json.loads(html.unescape(events)) == {name: kind.status for name, kind in EVENTS.items()}


def test_the_page_preloads_every_module(served: httpx.Client) -> None:
    preloaded = re.findall(
        r'<link rel="modulepreload" href="/dashboard/(\w+\.js)">', served.get("/dashboard").text
    )
    assert preloaded == [name for name in ASSETS if name.endswith(".js")]


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_an_unchanged_file_is_304(served: httpx.Client, coding: str) -> None:
    etag = served.get("/dashboard", headers={"Accept-Encoding": coding}).headers["etag"]
    again = served.get("/dashboard", headers={"If-None-Match": etag, "Accept-Encoding": coding})
    assert (again.status_code, again.content) == (304, b"")
    assert (HEADERS | {"etag": etag, "vary": "accept-encoding"}).items() <= dict(again.headers).items()


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/app.js", "/dashboard/console.css"])
def test_a_file_is_compressed_where_the_client_accepts_it(served: httpx.Client, path: str) -> None:
    sent, tags = {}, {}
    accepts = ("gzip, deflate, br", "*", "br, gzip;q=0.5", "GZIP")
    refuses = ("identity", "gzip;q=0", "*;q=0, br", "")
    for accepted in accepts + refuses:
        with served.stream("GET", path, headers={"Accept-Encoding": accepted}) as response:
            size = len(b"".join(response.iter_raw()))
        assert response.headers["vary"] == "accept-encoding"
        sent[accepted] = (response.headers.get("content-encoding"), size)
        tags[accepted] = response.headers["etag"]
    whole = (None, len(served.get(path).content))
    assert {sent[each] for each in refuses} == {whole}
    ((coding, size),) = {sent[each] for each in accepts}
    assert coding == "gzip"
    assert size < whole[1] * 0.7
    # Each has its own tag: a cache never confuses them.
    assert len(set(tags.values())) == 2
    assert served.get(path, headers={"Accept-Encoding": "gzip", "If-None-Match": tags[""]}).status_code == 200


@pytest.mark.parametrize(
    "path", [f"/dashboard/{name}" for name in ("nothing.js", "__init__.py", "%2e%2e/settings.py")]
)
def test_nothing_else_is_served(served: httpx.Client, path: str) -> None:
    response = served.get(path)
    assert response.status_code == 404
    assert response.json() == {
        "error": "not_found",
        "message": "The console has no such file; it starts at /dashboard.",
        "request_id": response.headers["x-request-id"],
    }
    assert HEADERS.items() <= dict(response.headers).items()


def test_the_root_redirects_to_the_dashboard(served: httpx.Client) -> None:
    response = served.get("/", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, "/dashboard")
    assert response.headers["x-request-id"]
    assert served.post("/").status_code == 405


def test_the_dashboard_can_be_disabled(tmp_path: Path) -> None:
    with AgentPayServer(settings=Settings(serves_dashboard=False)) as server:
        response = httpx.get(f"{server.listen()}/dashboard")
        assert response.status_code == 401


def test_the_files_load_nothing_from_elsewhere_and_render_no_markup() -> None:
    for name in ASSETS:
        text = (FILES / name).read_text("utf-8")
        urls = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s\"'`)]*", text))
        assert {url for url in urls if "w3.org" not in url} == set(), name
        assert not re.search(r"document\.write|eval\(|new Function", text)
        # Preact sets markup by that property only, and Trusted Types forbid it.
        markup = r"innerHTML|outerHTML|insertAdjacentHTML|dangerously"
        assert bool(re.search(markup, text)) == (name == PREACT), name
        if name.endswith(".js") and name != PREACT:
            assert text.startswith("// @ts-check\n")
