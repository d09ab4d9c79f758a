"""The simulator's own tests: patches that are taken out again, and worlds that are small."""

from collections.abc import Callable

import planted_payments  # noqa: F401 - plants some more
import pytest
from planted import BUGS


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Plant bugs by name."""

    def patch(target: object, name: str, value: object) -> None:
        # A name that is no more raises: a bug that changes nothing would be missed for ever.
        monkeypatch.setattr(target, name, value)

    return lambda bug: BUGS[bug](patch)
