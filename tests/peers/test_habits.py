"""The table of habits in the comparison: each cell is executed against the named package, if installed.

`nox -s peers` installs them all.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "comparison.md"
COLUMNS = ("agentpay", "openai", "anthropic", "stripe", "httpx")
KEY = "ap_operator_x"


def made(name: str, status: int = 200, body: object = None, **settings: Any) -> Any:
    """Return a client of a package, whose every request gets this response."""
    package = importlib.import_module(name)
    if name == "stripe":
        return package.StripeClient("sk_test_x", http_client=_Canned(package, status), **settings)
    http = importlib.import_module("httpx" if name in ("agentpay", "httpx") else package_http(package))
    transport = http.MockTransport(lambda request: http.Response(status, json=body or {}, request=request))
    if name == "httpx":
        return http.Client(transport=transport, base_url="https://api.example.com", **settings)
    client = {"agentpay": "AgentPay", "openai": "OpenAI", "anthropic": "Anthropic"}[name]
    given = {"http_client": http.Client(transport=transport)} | settings
    return getattr(package, client)(api_key=KEY, base_url="https://api.example.com", max_retries=0, **given)


def package_http(package: Any) -> str:
    """Return which httpx a package uses."""
    base = importlib.import_module(f"{package.__name__}._base_client")
    return "httpx2" if "httpx2" in inspect.getsource(base) else "httpx"


class _Canned:
    """Stripe's own kind of HTTP client."""

    def __init__(self, package: Any, status: int) -> None:
        self.name, self._status = "canned", status
        self._verify_ssl_certs = True
        self._error = package.error if hasattr(package, "error") else package

    def request_with_retries(self, *_: Any, **__: Any) -> tuple[bytes, int, dict[str, str]]:
        return b'{"error": {"message": "m"}}', self._status, {}

    def close(self) -> None:
        pass


def listing(client: Any, name: str, **options: Any) -> Any:
    """Call the simplest list, or `GET /` of httpx."""
    if name == "httpx":
        return client.get("/", **options).raise_for_status()
    methods = {"agentpay": "accounts.list", "stripe": "v1.customers.list"}
    return attrgetter(methods.get(name, "models.list"))(client)(**options)


def failure(name: str, status: int) -> Exception:
    body = {"error": "rate_limited", "message": "m", "request_id": "req_1"}
    with pytest.raises(Exception) as caught:
        listing(made(name, status, body), name)
    return caught.value


def takes(name: str, option: str, value: object) -> bool:
    page = {"data": [], "cursor": "", "has_more": False, "object": "list"}
    try:
        listing(made(name, body=page), name, **{option: value})
    except TypeError:
        return False
    return True


def timeout_of(name: str) -> object:
    http = "httpx" if name in ("agentpay", "httpx", "stripe") else package_http(importlib.import_module(name))
    return importlib.import_module(http).Timeout(30, connect=2)


def iterates(name: str) -> bool:
    """Whether a loop over a list reads the pages that follow."""
    if name in ("stripe", "httpx"):
        return name == "stripe" and not hasattr(
            importlib.import_module("stripe").ListObject, "auto_paging_iter"
        )
    page = {"data": [], "cursor": "", "has_more": False, "object": "list"}
    return hasattr(listing(made(name, body=page), name), "iter_pages")


def unwraps(name: str) -> bool:
    if name == "agentpay":
        found: Any = importlib.import_module("agentpay.webhooks").unwrap
    elif name == "anthropic":
        found = getattr(getattr(made(name).beta, "webhooks", None), "unwrap", None)
    else:
        found = getattr(getattr(made(name), "webhooks", None), "unwrap", None)
    return found is not None and "headers" in inspect.signature(found).parameters


def kept(name: str) -> bool:
    """Whether what a call returns has the response, without another way to call."""
    if name == "stripe":
        return hasattr(importlib.import_module("stripe").StripeObject, "last_response")
    body = {"data": [], "cursor": "", "has_more": False, "object": "list"}
    returned = listing(made(name, body=body), name)
    return hasattr(returned, "status_code") or hasattr(getattr(returned, "response", None), "status_code")


HABITS: dict[str, Callable[[str], bool]] = {
    "an error has `status_code`": lambda name: (
        hasattr(failure(name, 429), "status_code")
        or hasattr(getattr(failure(name, 429), "response", None), "status_code")
    ),
    "429 is `RateLimitError`": lambda name: type(failure(name, 429)).__name__ == "RateLimitError",
    "`timeout=httpx.Timeout(…)` of one call": lambda name: takes(name, "timeout", timeout_of(name)),
    "`extra_headers=` of one call": lambda name: takes(name, "extra_headers", {"X-Team": "a"}),
    "`with` closes the client": lambda name: hasattr(made(name), "__exit__"),
    "a loop over a list reads all pages": iterates,
    "`unwrap(body, headers=…)` reads a webhook": unwraps,
    "what a call returns has its response": kept,
}


def rows() -> dict[str, dict[str, str]]:
    section = PAGE.read_text("utf-8").partition("## Habits")[2].partition("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| (.+) \|$", section, re.MULTILINE)[2:]:
        habit, *cells = line.split(" | ")
        found[habit] = dict(zip(COLUMNS, cells, strict=True))
    return found


def test_the_table_has_the_habits_that_are_executed() -> None:
    assert list(rows()) == list(HABITS)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_works_where_the_table_says_so(habit: str, name: str) -> None:
    pytest.importorskip(name)
    assert HABITS[habit](name) == rows()[habit][name].startswith("yes")
