import pytest
from http_service import serving
from sdk_world import Caller

from agentpay import AgentPay, AsyncAgentPay

FLAVOURS = {
    "sync": (AgentPay,),
    "asyncio": (AsyncAgentPay, "asyncio"),
    "trio": (AsyncAgentPay, "trio"),
}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request) -> str:
    """The async client runs on both."""
    return request.param


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in ("AGENTPAY_API_KEY", "AGENTPAY_BASE_URL", "AGENTPAY_LOG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=FLAVOURS.values(), ids=FLAVOURS)
def caller(request):
    """A client in each flavour, with a clock that never really sleeps."""
    caller = Caller(*request.param)
    yield caller
    if caller.client is not None:
        caller(lambda client: client.close())


@pytest.fixture
def service():
    """A service on a real port."""
    with serving() as running:
        yield running
