"""The simulator's own tests: patches that are taken out again, and worlds that are small."""

from collections.abc import Iterator

import pytest
from planted import BUGS, Patch


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Patch]:
    """Plant bugs by name."""

    def patch(target: object, name: str, value: object) -> None:
        monkeypatch.setattr(target, name, value, raising=False)

    yield lambda bug: BUGS[bug](patch)
