"""The service that the tests of the specification ask by plain HTTP."""

from collections.abc import Iterator

import plain_http
import pytest
from plain_http import Service


@pytest.fixture
def service() -> Iterator[Service]:
    with plain_http.running() as service:
        yield service
