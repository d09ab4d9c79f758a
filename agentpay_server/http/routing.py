"""Matching request paths. All servers of a process share the matchers; each has its own handlers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import ErrorCode
from agentpay_server.contract.endpoints import BOUND_ENDPOINTS
from agentpay_server.errors import Problem

_PATHS: Final = "agentpay.paths"


def no_such_path() -> Problem:
    return Problem(
        ErrorCode.NOT_FOUND,
        "Unknown path. GET /openapi.json and GET /openapi-extensions.json list all paths.",
    )


class Paths:
    def __init__(self, paths: Mapping[str, ASGIApp]) -> None:
        self._paths = paths
        # Most paths have no parameters, and need no matching.
        self._fixed = {path: found for path, found in paths.items() if "{" not in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        found = self._fixed.get(path)
        if found is None:
            scope[_PATHS] = self._paths
            found = _routers().get(_family(path), _no_route)
        await found(scope, receive, send)


def _methods_of(endpoints: Iterable[Endpoint]) -> Mapping[str, Mapping[str, Endpoint]]:
    by_path: dict[str, dict[str, Endpoint]] = defaultdict(dict)
    for endpoint in endpoints:
        by_path[endpoint.path][endpoint.method] = endpoint
    return by_path


METHODS_OF: Final = _methods_of(BOUND_ENDPOINTS)


@cache
def _routers() -> Mapping[str, Router]:
    """By path family: a router tries its routes one by one."""
    families: dict[str, list[Route]] = defaultdict(list)
    for path, methods in METHODS_OF.items():
        families[_family(path)].append(Route(_pattern(path, methods), _Found(path)))
    return {
        family: Router(routes=routes, redirect_slashes=False, default=_no_route)
        for family, routes in families.items()
    }


class _Found:
    """Passes a matched request to its server's handler."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_PATHS][self._path](scope, receive, send)


def _family(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""


def _pattern(path: str, methods: Mapping[str, Endpoint]) -> str:
    """The last parameter may match several segments."""
    is_open = any(endpoint.takes_rest_of_path for endpoint in methods.values())
    return f"{path.removesuffix('}')}:path}}" if is_open else path


async def _no_route(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise no_such_path()
