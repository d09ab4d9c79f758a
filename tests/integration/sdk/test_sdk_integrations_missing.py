"""An integration whose framework is missing says which package brings it: its name may differ."""

import importlib
import sys

import pytest

PACKAGES = {
    "claude_agent_sdk": ("claude_agent_sdk", "claude-agent-sdk"),
    "langchain": ("langchain_core", "langchain"),
    "openai_agents": ("agents", "openai-agents"),
    "opentelemetry": ("opentelemetry", "opentelemetry-api"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai-slim"),
    "pympp": ("mpp", "pympp"),
}


@pytest.mark.parametrize("integration", PACKAGES)
def test_a_missing_framework_is_named_with_its_package(
    integration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, package = PACKAGES[integration]
    for name in [name for name in sys.modules if name.partition(".")[0] == imported]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"agentpay.integrations.{integration}", raising=False)
    monkeypatch.setitem(sys.modules, imported, None)
    with pytest.raises(ModuleNotFoundError) as missing:
        importlib.import_module(f"agentpay.integrations.{integration}")
    assert missing.value.name == imported
    assert str(missing.value).endswith(f"which is not installed: pip install {package}")
