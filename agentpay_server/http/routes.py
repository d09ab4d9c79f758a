"""The paths that requests match. All servers of a process share the patterns."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.contract.endpoints import EXTENSIONS, Endpoint
from agentpay.contract.errors import ErrorCode
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS
from agentpay_server.platform.errors import Problem


def no_such_path() -> Problem:
    return Problem(
        ErrorCode.NOT_FOUND,
        "Unknown path. GET /openapi.json and GET /openapi-extensions.json list all paths.",
        says_what_to_do=True,
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
            for pattern, template in _patterns().get(_family(path), ()):
                if match := pattern.fullmatch(path):
                    scope["path_params"] = match.groupdict()
                    found = self._paths[template]
                    break
            else:
                raise no_such_path()
        await found(scope, receive, send)


def _methods_of(endpoints: Iterable[Endpoint]) -> Mapping[str, Mapping[str, Endpoint]]:
    by_path: dict[str, dict[str, Endpoint]] = defaultdict(dict)
    for endpoint in endpoints:
        by_path[endpoint.path][endpoint.method] = endpoint
    return by_path


METHODS_OF: Final = _methods_of(BOUND_ENDPOINTS)


@cache
def _patterns() -> Mapping[str, tuple[tuple[re.Pattern[str], str], ...]]:
    """By path family, in the order of the tables: the first that matches applies."""
    families: dict[str, list[tuple[re.Pattern[str], str]]] = defaultdict(list)
    for path, methods in METHODS_OF.items():
        if "{" in path:
            families[_family(path)].append((_pattern(path, methods), path))
    return {family: tuple(patterns) for family, patterns in families.items()}


def _family(path: str) -> str:
    return path.removeprefix(EXTENSIONS)[1:].partition("/")[0]


def _pattern(path: str, methods: Mapping[str, Endpoint]) -> re.Pattern[str]:
    """A parameter matches one segment, but the last may match several."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
    if any(endpoint.takes_rest_of_path for endpoint in methods.values()):
        pattern = f"{pattern.removesuffix('[^/]+)')}.*)"
    return re.compile(pattern)
