"""The tools in agent frameworks, called by a scripted model.

Each framework has a module here, which a test loads when it runs: the frameworks take seconds to load.
`story` plays the whole story of `scripted.py` and returns what the model was told; `payment` plays one call
to pay, about which a person decides.
"""

import importlib
from typing import Any

import pytest
from scripted import World, required

pytestmark = pytest.mark.anyio

FRAMEWORKS = {
    "claude_agent": "claude_agent_sdk",
    "langchain_agent": "langchain",
    "openai_agent": "agents",
    "pydantic_agent": "pydantic_ai",
}
ONE_PAYMENT = 3
"""Where in the story the calls begin that pay without a fault."""


def agent(module: str) -> Any:
    required(FRAMEWORKS[module])
    return importlib.import_module(module)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Any:
    return agent(request.param)


async def test_a_careless_model_pays_once_within_the_policy(world: World, framework: Any) -> None:
    world.assert_told(await framework.story(world))


@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_spending_tool_needs_human_approval(world: World, framework: Any, is_approved: bool) -> None:
    world.position = ONE_PAYMENT
    await framework.payment(world, is_approved=is_approved)
    assert world.balance(world.shop) == ("1.500000" if is_approved else "0.000000")


def test_a_careless_model_pays_once_with_sync_tools(world: World) -> None:
    world.assert_told(agent("langchain_agent").story_with_sync_tools(world))


@pytest.mark.parametrize("answer", ["yes", {"type": "approve"}])
async def test_in_langchain_only_true_approves(world: World, answer: Any) -> None:
    world.position = ONE_PAYMENT
    await agent("langchain_agent").payment(world, is_approved=answer)
    assert world.balance(world.shop) == "0.000000"


@pytest.mark.parametrize("arguments", ["{", "[]", ""])
async def test_arguments_that_are_not_json_are_refused(world: World, arguments: str) -> None:
    result = await agent("openai_agent").result_of(world, arguments)
    assert result["error"] == "invalid_arguments"


def test_read_only_lists_the_tools_that_cannot_spend() -> None:
    required("claude_agent_sdk")
    read_only = importlib.import_module("agentpay.integrations.claude_agent_sdk").READ_ONLY
    names = ("get_budget", "check_payment", "get_payment", "list_payments")
    assert set(read_only) == {f"mcp__agentpay__{name}" for name in names}
