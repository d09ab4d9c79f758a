import pytest
from sdk_world import Caller

from agentpay import AgentPay, AsyncAgentPay


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in ("AGENTPAY_API_KEY", "AGENTPAY_BASE_URL", "AGENTPAY_LOG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=[AgentPay, AsyncAgentPay], ids=["sync", "async"])
def caller(request):
    """A client in both flavours, with a clock that never really sleeps."""
    caller = Caller(request.param)
    yield caller
    if caller.client is not None:
        caller(lambda client: client.close())
