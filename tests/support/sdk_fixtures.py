"""Fixtures of the tests of the client, for the `conftest.py` of the folders that have such tests."""

from collections.abc import Iterator

import pytest
from http_service import Service, serving
from sdk_world import BACKENDS, FLAVOURS, Caller


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The async client runs on both."""
    return str(request.param)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENTPAY_API_KEY", "AGENTPAY_BASE_URL", "AGENTPAY_LOG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=FLAVOURS)
def caller(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """A client in each flavour, with a clock that never really sleeps."""
    caller = Caller.of(request.param)
    yield caller
    if caller.client is not None:
        caller(lambda client: client.close())


@pytest.fixture
def service() -> Iterator[Service]:
    """A service on a real port."""
    with serving() as running:
        yield running
