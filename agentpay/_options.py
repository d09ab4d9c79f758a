"""What one call may be told beside its own arguments, and what it then runs under.

`CallOptions` is the one place where such an option is declared: every method of every resource takes it as
`**options: Unpack[CallOptions]`, and hands it on without looking inside.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final, TypedDict

from attrs import evolve, frozen

from agentpay import _settings
from agentpay.contract.requests import UNSET, UnsetType


class CallOptions(TypedDict, total=False):
    """Options that every call takes as keyword arguments. Each replaces the client's setting for that call.

    A list takes them for each request that fetches a page.

    Attributes:
        timeout: seconds that each step of an exchange (connecting, sending, waiting for the response) may
            take; None is without limit.
        max_retries: how often the request is retried after a failure that may pass, from 0.
        deadline: seconds that the call may take in all, retries and the pauses between them included; None
            is without limit. It never turns an unknown outcome into a failure: a payment that is cut short
            by it raises the same error as one whose response was lost.
        extra_headers: header fields to add. Those that the client decides itself, such as `Authorization`,
            are refused.
    """

    timeout: float | None | UnsetType
    max_retries: int | UnsetType
    deadline: float | None | UnsetType
    extra_headers: Mapping[str, str]


CallOptions.__module__ = "agentpay"


_NAMES: Final = frozenset(CallOptions.__annotations__)

DEADLINE_LEFT: Final = 0.1
"""Part of the deadline that a pause must leave: an attempt with less may well end in doubt."""


@frozen(kw_only=True)
class Call:
    """What one call of a method runs under, however many requests it makes.

    Attributes:
        headers: the header fields of every request, in the form of the HTTP library in use.
        timeout: seconds that each step of an exchange may take; None is without limit.
        max_retries: how often a request is retried.
        deadline: seconds that the call may take in all; None is without limit.
        ends_at: when these are over, on the client's monotonic clock.
    """

    headers: MutableMapping[str, str]
    timeout: float | None
    max_retries: int
    deadline: float | None
    ends_at: float | None = None

    def begun(self, options: CallOptions, now: Callable[[], float]) -> "Call":
        """Return what a call with these options runs under, when it begins now.

        Raises:
            ConfigurationError: an option has a value that it cannot have; the message names it.
            TypeError: there is no such option.
        """
        unknown = options.keys() - _NAMES
        if unknown:
            raise TypeError(
                f"unexpected keyword argument {min(unknown)!r}; beside the arguments of the method, a call "
                f"takes {', '.join(sorted(_NAMES))}"
            )
        timeout = options.get("timeout", UNSET)
        max_retries = options.get("max_retries", UNSET)
        deadline = options.get("deadline", UNSET)
        seconds = self.deadline if deadline is UNSET else _settings.checked_seconds("deadline", deadline)
        extra = options.get("extra_headers")
        call = self.with_headers(_settings.checked_headers("extra_headers", extra)) if extra else self
        return evolve(
            call,
            timeout=self.timeout if timeout is UNSET else _settings.checked_seconds("timeout", timeout),
            max_retries=(
                self.max_retries if max_retries is UNSET else _settings.checked_max_retries(max_retries)
            ),
            deadline=seconds,
            ends_at=None if seconds is None else now() + seconds,
        )

    def with_headers(self, headers: Mapping[str, str]) -> "Call":
        """Return the call with other header fields beside its own."""
        copied = self.headers.copy()  # type: ignore[attr-defined]  # of httpx, and of httpx2
        copied.update(headers)
        return evolve(self, headers=copied)

    def pause_max(self, now: float) -> float:
        """Return how many seconds a pause may take before an attempt that the deadline leaves time for."""
        if self.deadline is None or self.ends_at is None:
            return math.inf
        return self.ends_at - now - self.deadline * DEADLINE_LEFT
