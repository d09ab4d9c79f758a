"""The options of a single call, and the resulting settings.

`CallOptions` is the one place that declares them: resource methods pass them on.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Final, TypedDict

from attrs import evolve, frozen

from agentpay._calls import settings
from agentpay._calls.settings import Steps, Timeout
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.contract.suggestions import similar_to


class CallOptions(TypedDict, total=False):
    """Options that every call takes as keyword arguments. Each replaces the client's setting for that call.

    When listing, they apply to each request for a page.

    Attributes:
        timeout: seconds for each step of an exchange (connecting, sending, waiting for the response), or a
            `Timeout` of httpx or httpx2; None means no limit.
        max_retries: how often the request is retried after a temporary failure, from 0.
        total_timeout: seconds for the whole call, including retries and pauses; None means no limit. It never
            turns an unknown outcome into a failure: a payment that exceeds it raises the same error as one
            whose response was lost. The sync client cannot end the look-up of a host name. With a given
            `http_client` or `transport`, or a proxy of the environment, it ends each step of an exchange and
            looks at the time between pieces of a body; but the head of a response that arrives in small
            pieces is read to its end, and one pause in a body may last as long as was left when it began.
        extra_headers: header fields to add. Fields that the client sets are refused, such as `Authorization`.
        extra_query: parameters to add to the query, for what a newer service knows. None values are omitted.
        extra_body: fields to add to the JSON body, likewise. Fields that are arguments of the method are
            refused in both; a GET has no body.
    """

    timeout: float | Timeout | None | UnsetType
    max_retries: int | UnsetType
    total_timeout: float | None | UnsetType
    extra_headers: Mapping[str, str]
    extra_query: Mapping[str, object]
    extra_body: Mapping[str, object]


CallOptions.__module__ = "agentpay"


_NAMES: Final = frozenset(CallOptions.__annotations__)


def _unexpected(name: str, arguments: Mapping[str, object]) -> str:
    # In addition to its parameters, a method's `locals()` may have a module that it imports.
    own = [
        each
        for each, value in arguments.items()
        if each not in ("self", "options") and not isinstance(value, ModuleType)
    ]
    near = similar_to(name, {*own, *_NAMES})
    if near:
        return f"unexpected keyword argument {name!r}; did you mean {near}?"
    listed = f" ({', '.join(own)})" if own else ""
    others = f"besides the arguments of the method{listed}, a call takes {', '.join(sorted(_NAMES))}"
    return f"unexpected keyword argument {name!r}; {others}"


DEADLINE_LEFT: Final = 0.1
"""The part of the deadline that a pause must leave, or no further attempt is made."""


@frozen(kw_only=True)
class CallSettings:
    """The settings of one call, for all its requests.

    `timeout` is in seconds for each step, `total_timeout` for the whole call; None means no limit.
    `ends_at` is on the client's monotonic clock. `extras` are the additional query and body.
    """

    headers: MutableMapping[str, str]
    timeout: float | Steps | None
    max_retries: int
    total_timeout: float | None
    ends_at: float | None = None
    extras: tuple[Mapping[str, object], Mapping[str, object]] | None = None

    def begun(
        self, options: CallOptions, arguments: Mapping[str, object], now: Callable[[], float]
    ) -> "CallSettings":
        unknown = options.keys() - _NAMES
        if unknown:
            raise TypeError(_unexpected(min(unknown), arguments))
        timeout = options.get("timeout", UNSET)
        max_retries = options.get("max_retries", UNSET)
        given = options.get("total_timeout", UNSET)
        seconds = self.total_timeout if given is UNSET else settings.checked_seconds("total_timeout", given)
        extra = options.get("extra_headers")
        call = self.with_headers(settings.checked_headers("extra_headers", extra)) if extra else self
        query, body = options.get("extra_query"), options.get("extra_body")
        return evolve(
            call,
            timeout=self.timeout if timeout is UNSET else settings.checked_timeout(timeout),
            max_retries=(
                self.max_retries if max_retries is UNSET else settings.checked_max_retries(max_retries)
            ),
            total_timeout=seconds,
            ends_at=None if seconds is None else now() + seconds,
            extras=(query or {}, body or {}) if query or body else None,
        )

    def with_headers(self, headers: Mapping[str, str]) -> "CallSettings":
        copied = self.headers.copy()  # type: ignore[attr-defined]  # of httpx, and of httpx2
        copied.update(headers)
        return evolve(self, headers=copied)

    def pause_max(self, now: float) -> float:
        """Return the maximum seconds of a pause that leaves time for an attempt before the deadline."""
        if self.total_timeout is None or self.ends_at is None:
            return math.inf
        return self.ends_at - now - self.total_timeout * DEADLINE_LEFT
