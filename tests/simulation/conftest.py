"""The simulator's own tests: patches that are taken out again, and worlds that are small."""

import inspect
from collections.abc import Callable

import planted_lies  # noqa: F401 - plants some more
import planted_payments  # noqa: F401 - plants some more
import pytest
from planted import BUGS


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Plant bugs by name."""

    def patch(target: object, name: str, value: object) -> None:
        # A name that is no more raises, and so does a function that cannot be called as the original: a bug
        # that changes nothing would be missed for ever, and a TypeError is no bug.
        _check_takes_the_same(getattr(target, name), value)
        monkeypatch.setattr(target, name, value)

    return lambda bug: BUGS[bug](patch)


def _check_takes_the_same(original: object, value: object) -> None:
    if not (inspect.isfunction(original) and inspect.isfunction(value)):
        return
    given = inspect.signature(original).parameters.values()
    named = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
    positional = [each for each in given if each.kind is not each.VAR_KEYWORD and each.name not in named]
    inspect.signature(value).bind(*positional, **named)
