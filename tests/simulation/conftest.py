"""The simulator's own tests: patches that are taken out again, and worlds that are small."""

from collections.abc import Callable

import pytest
from planted import BUGS


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Plant bugs by name."""

    def patch(target: object, name: str, value: object) -> None:
        monkeypatch.setattr(target, name, value, raising=False)

    return lambda bug: BUGS[bug](patch)
